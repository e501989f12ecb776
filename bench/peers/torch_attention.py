#!/usr/bin/env python3
"""Attention in PyTorch on the GPU: its FlashAttention-2 and cuDNN backends, forward and backward.

    bench/peers/torch_attention.py [--shapes SHAPE,...] [--serve] [--no-backward] [--deterministic]

SHAPE is BATCH:TOKENS:HEADS:KV_HEADS:HEAD_DIM:MASK:TYPE, and `:forward` where there is no backward.
TOKENS of a packed batch are its lengths, 300+700, and BATCH is 1. MASK is full, causal, or
window/WINDOW, which is causal; TYPE f16 or bf16. One JSON line per shape, in seconds per call; each
figure is the median of nine runs of several calls, by events on the stream. The two backends take
turns, so that both find the device as warm as the other. What a backend refuses, or has no way to be
asked for (block-causal masks, sinks; of cuDNN packed batches and windows), is null, with the reason.

Packed batches and windows go to FlashAttention-2 itself (aten._flash_attention_forward and
_backward, with cumulative lengths); the rest goes through scaled_dot_product_attention.

--serve: a line of input is a shape, `round` (measure it once) or `end` (say the medians), and every
one is answered by a line. `millrace-lab attention --peer torch` does so, in turns with its own
measurements. A device at its power limit changes its clock within tenths of a second, so everybody
measures after a rest.
"""
import argparse
import json
import statistics
import sys
import time

TYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}
DEFAULT = ",".join(
    f"{16384 // s}:{s}:{h}:{h}:{d}:{mask}:bf16"
    for d, h in ((128, 16), (64, 32))
    for mask in ("full", "causal")
    for s in (512, 2048, 8192, 16384)
)


def seconds(torch, function, calls, last):
    """After a rest of twice what the last time took, as in lab/attention/flash_measure.cu."""
    time.sleep(2 * min(last, 20e-3))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # The device waits for about 2 ms, so that all calls are queued when it begins.
    torch.cuda._sleep(4_000_000)
    begin.record()
    for _ in range(calls):
        function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / calls


class Shape:
    def __init__(self, torch, text):
        parts = text.split(":")
        self.batch, self.heads, self.kv_heads, self.dim = (int(parts[i]) for i in (0, 2, 3, 4))
        self.packed = "+" in parts[1]
        self.lengths = [int(x) for x in parts[1].split("+")] * self.batch
        self.mask, *numbers = parts[5].split("/")
        self.window = int(numbers[0]) if self.mask == "window" else 0
        self.sinks = int(numbers[1]) if self.mask == "window" and len(numbers) > 1 else 0
        self.causal = self.mask in ("causal", "window")
        self.dtype = getattr(torch, TYPES[parts[6]])
        self.forward_alone = parts[7:] == ["forward"]

    def flops(self):
        def pairs(n):
            if self.window:
                return sum(min(i + 1, self.window) for i in range(n))
            return n * n * (0.5 if self.causal else 1)

        return 4.0 * self.heads * self.dim * sum(pairs(n) for n in self.lengths)


def functions(torch, shape, backend, backward):
    """What is timed: [forward] or [forward, backward] of one backend, called once already."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if shape.mask == "block-causal" or shape.sinks:
        raise ValueError("no such mask")
    backward = backward and not shape.forward_alone
    if shape.packed or shape.window:
        if backend != SDPBackend.FLASH_ATTENTION:
            raise ValueError("no packed batches, no windows")
        return packed_functions(torch, shape, backward)

    def make(count):
        return torch.randn(
            shape.batch, count, shape.lengths[0], shape.dim, device="cuda", dtype=shape.dtype
        )

    q, k, v = make(shape.heads), make(shape.kv_heads), make(shape.kv_heads)
    grad = make(shape.heads)
    options = {"is_causal": shape.causal, "enable_gqa": shape.heads != shape.kv_heads}

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


def packed_functions(torch, shape, backward):
    """The same of FlashAttention-2 with cumulative lengths."""
    tokens, longest = sum(shape.lengths), max(shape.lengths)
    ends = torch.tensor([0] + shape.lengths, device="cuda").cumsum(0).to(torch.int32)

    def make(count):
        return torch.randn(tokens, count, shape.dim, device="cuda", dtype=shape.dtype)

    q, k, v = make(shape.heads), make(shape.kv_heads), make(shape.kv_heads)
    grad = make(shape.heads)
    where = (ends, ends, longest, longest, 0.0, shape.causal)
    window = {"window_size_left": shape.window - 1, "window_size_right": 0} if shape.window else {}

    def forward():
        return torch.ops.aten._flash_attention_forward(q, k, v, *where, False, **window)

    calls = [lambda: no_grad(torch, forward)]
    with torch.no_grad():
        out, lse, state, unused, _ = forward()
    if backward:

        def back():
            torch.ops.aten._flash_attention_backward(
                grad, q, k, v, out, lse, *where, state, unused, **window
            )

        back()
        calls.append(back)
    return calls


def no_grad(torch, function):
    with torch.no_grad():
        function()


class Measurement:
    """One shape, both backends."""

    def __init__(self, torch, text, backward):
        from torch.nn.attention import SDPBackend

        shape = Shape(torch, text)
        self.torch = torch
        self.flops = shape.flops()
        self.out = {"shape": text, "torch": torch.__version__}
        self.made = {}
        for name, backend in (
            ("flash", SDPBackend.FLASH_ATTENTION),
            ("cudnn", SDPBackend.CUDNN_ATTENTION),
        ):
            try:
                self.made[name] = functions(torch, shape, backend, backward)
            except Exception as error:  # refused: no kernel, or out of memory
                self.out[name] = {
                    "forward": None,
                    "backward": None,
                    "error": str(error).split("\n")[0],
                }
                torch.cuda.empty_cache()
        self.times = {name: [[] for _ in calls] for name, calls in self.made.items()}

    def round(self):
        for name, calls in self.made.items():
            for which, call in enumerate(calls):
                work = self.flops * (2.5 if which else 1)
                count = min(max(int(5e-3 * 4e14 / work), 1), 32)
                times = self.times[name][which]
                last = times[-1] * count if times else 5e-3
                times.append(seconds(self.torch, call, count, last))

    def end(self):
        """Medians of all rounds but the first two."""
        for name, both in self.times.items():
            both = [statistics.median(x[2:]) for x in both]
            self.out[name] = {"forward": both[0], "backward": both[1] if len(both) > 1 else None}
        self.made.clear()
        self.torch.cuda.empty_cache()
        return self.out


def serve(torch, backward):
    measurement = None
    for line in sys.stdin:
        text = line.strip()
        if text == "round":
            measurement.round()
            answer = {"shape": measurement.out["shape"]}
        elif text == "end":
            answer = measurement.end()
        else:
            measurement = Measurement(torch, text, backward)
            answer = {"shape": text}
        print(json.dumps(answer), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", default=DEFAULT)
    parser.add_argument("--serve", action="store_true", help="shapes and rounds as they are asked")
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
    if options.serve:
        serve(torch, not options.no_backward)
        return
    for text in options.shapes.split(","):
        measurement = Measurement(torch, text, not options.no_backward)
        for _ in range(11):
            measurement.round()
        print(json.dumps(measurement.end()), flush=True)


if __name__ == "__main__":
    main()
