#!/usr/bin/env python3
"""Attention in PyTorch on the GPU: its FlashAttention-2 and cuDNN backends, forward and backward.

    bench/peers/torch_attention.py [--shapes BATCH:TOKENS:HEADS:KV_HEADS:HEAD_DIM:MASK:TYPE,...]
                                   [--no-backward] [--deterministic]

MASK is full or causal, TYPE f16 or bf16. One JSON line a shape, in seconds a call; each figure is
the median of nine runs of several calls, by events on the stream. The two backends take turns, so
that both find the device as warm as the other. What a backend refuses is null, with the reason.
`millrace bench attention --peer torch` calls it.
"""
import argparse
import json
import statistics
import sys

TYPES = {"f16": "float16", "bf16": "bfloat16"}
DEFAULT = ",".join(
    f"{16384 // s}:{s}:{h}:{h}:{d}:{mask}:bf16"
    for d, h in ((128, 16), (64, 32))
    for mask in ("full", "causal")
    for s in (512, 2048, 8192, 16384)
)


def seconds(torch, function, calls):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / calls


def functions(torch, shape, backend, backward):
    """What is timed: [forward] or [forward, backward] of one backend, called once already."""
    from torch.nn.attention import sdpa_kernel

    batch, tokens, heads, kv_heads, dim = (int(x) for x in shape[:5])
    dtype = getattr(torch, TYPES[shape[6]])

    def make(count):
        return torch.randn(batch, count, tokens, dim, device="cuda", dtype=dtype)

    q, k, v, grad = make(heads), make(kv_heads), make(kv_heads), make(heads)
    options = {"is_causal": shape[5] == "causal", "enable_gqa": heads != kv_heads}

    def forward():
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    with torch.no_grad():
        forward()
    calls = [lambda: no_grad(torch, forward)]
    if backward:
        for x in (q, k, v):
            x.requires_grad_()
        out = forward()

        def back():
            torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

        back()
        calls.append(back)
    return calls


def no_grad(torch, function):
    with torch.no_grad():
        function()


def measure(torch, text, backward):
    from torch.nn.attention import SDPBackend

    shape = text.split(":")
    batch, tokens, heads, kv_heads, dim = (int(x) for x in shape[:5])
    out = {"shape": text, "torch": torch.__version__}
    flops = 4.0 * batch * heads * tokens * tokens * dim * (0.5 if shape[5] == "causal" else 1)
    made = {}
    for name, backend in (
        ("flash", SDPBackend.FLASH_ATTENTION),
        ("cudnn", SDPBackend.CUDNN_ATTENTION),
    ):
        try:
            made[name] = functions(torch, shape, backend, backward)
        except Exception as error:  # refused: no kernel, or no memory
            out[name] = {"forward": None, "backward": None, "error": str(error).split("\n")[0]}
            torch.cuda.empty_cache()
    times = {name: [[] for _ in calls] for name, calls in made.items()}
    for i in range(11):
        for name, calls in made.items():
            for which, call in enumerate(calls):
                work = flops * (2.5 if which else 1)
                count = min(max(int(5e-3 * 4e14 / work), 1), 32)
                t = seconds(torch, call, count)
                if i >= 2:
                    times[name][which].append(t)
    for name, both in times.items():
        both = [statistics.median(x) for x in both]
        out[name] = {"forward": both[0], "backward": both[1] if len(both) > 1 else None}
    made.clear()
    torch.cuda.empty_cache()
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", default=DEFAULT)
    parser.add_argument("--no-backward", action="store_true")
    parser.add_argument("--deterministic", action="store_true", help="a backward with fixed bits")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("torch_attention.py: this python has no torch: pip install torch")
    if not torch.cuda.is_available():
        sys.exit("torch_attention.py: torch sees no GPU")
    torch.use_deterministic_algorithms(options.deterministic, warn_only=True)
    for text in options.shapes.split(","):
        print(json.dumps(measure(torch, text, not options.no_backward)), flush=True)


if __name__ == "__main__":
    main()
