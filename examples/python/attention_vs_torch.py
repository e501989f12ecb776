"""Millrace's attention beside torch's, forward and backward: the same values, and the time of each.

    python attention_vs_torch.py --seq 2048 4096 8192 --dtype bf16          # with a GPU
"""
import argparse
import sys
import time

try:
    import torch
except ImportError:
    sys.exit("attention_vs_torch.py: torch is not installed")

import millrace as mr

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def torchs(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def ours(q, k, v):
    return mr.ops.attention(q, k, v, causal=True, layout="bhsd")


def passes(attention, inputs, gradient):
    """The output, and the gradients of q, k and v."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = attention(*leaves)
    out.backward(gradient)
    return [out.detach()] + [x.grad for x in leaves]


def seconds(work, device, reps):
    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    best = float("inf")
    for _ in range(reps + 1):  # the first one is a warm-up
        wait()
        begin = time.perf_counter()
        work()
        wait()
        best = min(best, time.perf_counter() - begin)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=TYPES, default="f32")
    parser.add_argument("--seq", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--reps", type=int, default=5)
    given = parser.parse_args()

    torch.manual_seed(0)
    print(f"{'tokens':>8}{'torch ms':>12}{'millrace ms':>14}{'ratio':>8}{'difference':>13}")
    for tokens in given.seq:
        shape = (given.batch, given.heads, tokens, given.head_dim)
        inputs = [torch.randn(shape, dtype=TYPES[given.dtype], device=given.device)
                  for _ in range(3)]
        gradient = torch.randn_like(inputs[0])
        pairs = zip(passes(ours, inputs, gradient), passes(torchs, inputs, gradient))
        worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
        theirs = seconds(lambda: passes(torchs, inputs, gradient), given.device, given.reps)
        mine = seconds(lambda: passes(ours, inputs, gradient), given.device, given.reps)
        print(f"{tokens:8}{1e3 * theirs:12.3f}{1e3 * mine:14.3f}{theirs / mine:7.2f}x{worst:13.1e}")


if __name__ == "__main__":
    main()
