#!/usr/bin/env python3
"""mr.ops beside PyTorch on one GPU: the Python package's operations, as a user calls them.

    bench/peers/torch_ops.py [--only overhead,attention,norm,sample] [--json FILE]

Wants the package (`pip install .`) and torch in one Python. Prints one line per measurement, ours,
torch's and their ratio, and writes all of them to FILE as JSON. Device times are medians over
events, of calls that follow one another with the queue full; overheads are times of the host, of
calls on tensors so small that the device waits for it.
"""
import argparse
import json
import statistics
import sys
import time

import torch

import millrace as mr
from torch_norm import in_a_graph

found = []


def report(what, ours, peer, unit, **more):
    found.append({"what": what, "ours": ours, "peer": peer, "unit": unit,
                  "ratio": peer / ours if ours else None, **more})
    print(f"{what:58s} {ours:10.2f} {peer:10.2f} {unit}   {peer / ours:6.2f}x", flush=True)


def title(text, peer="torch"):
    print(f"\n{text:58s} {'ours':>10s} {peer:>10s}")


def device_us(function, calls, rounds=11):
    """Of one call, in microseconds."""
    times = []
    for i in range(rounds + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(4_000_000)  # meanwhile the queue fills
        begin.record()
        for _ in range(calls):
            function()
        end.record()
        end.synchronize()
        if i >= 2:
            times.append(begin.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times)


def host_us(function, calls=2000, rounds=9):
    """Of one call, in microseconds of the host: the queue is emptied before it can be full."""
    for _ in range(200):
        function()
    times = []
    for _ in range(rounds):
        spent = 0.0
        for _ in range(calls // 200):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(200):
                function()
            spent += time.perf_counter() - begin
        times.append(spent / (calls // 200 * 200) * 1e6)
    return min(times)


# ---- what a call costs --------------------------------------------------------------------------


def noop_op():
    """An op of torch.library with a Python body, as ours are, that allocates a result and ends."""
    return torch.library.custom_op(
        "millrace_bench::noop", lambda q, k, v: torch.empty_like(q), mutates_args=(),
        schema="(Tensor q, Tensor k, Tensor v) -> Tensor")


def lean_noop_op():
    """The same by the leanest way that torch has for Python."""
    library = torch.library.Library("millrace_bench_lean", "DEF")
    library.define("noop(Tensor q, Tensor k, Tensor v) -> Tensor")
    library.impl("noop", lambda q, k, v: torch.empty_like(q), "CUDA")
    return library


class Noop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        return torch.empty_like(q)

    @staticmethod
    def backward(ctx, d):
        return torch.empty_like(d), torch.empty_like(d), torch.empty_like(d)


def overhead():
    title("host, us per call", "noop")
    q, k, v = (torch.randn(1, 64, 1, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    keep = noop_op(), lean_noop_op()
    mr.ops.attention(q, k, v)
    with torch.no_grad():
        custom = host_us(lambda: torch.ops.millrace_bench.noop(q, k, v))
        lean = host_us(lambda: torch.ops.millrace_bench_lean.noop(q, k, v))
        ours = host_us(lambda: mr.ops.attention(q, k, v))
        rest = (None, None, 0, 0, True, 0, 0, 0, 0, False, None)
        through = host_us(lambda: torch.ops.millrace.attention(q, k, v, *rest))
        sdpa = host_us(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v))
    report("attention, beside a custom_op that does nothing", ours, custom, "us",
           over_us=ours - custom)
    report("attention, beside Library.impl that does nothing", ours, lean, "us",
           over_us=ours - lean)
    report("torch.ops.millrace.attention, beside that custom_op", through, custom, "us",
           over_us=through - custom)
    report("attention, beside scaled_dot_product_attention", ours, sdpa, "us")
    ours = host_us(lambda: mr.ops.attention(*leaves))
    noop = host_us(lambda: Noop.apply(*leaves))
    report("attention with grad, beside autograd.Function", ours, noop, "us", over_us=ours - noop)

    def both(function):
        out = function(*leaves)
        torch.autograd.grad(out, leaves, out)

    ours = host_us(lambda: both(mr.ops.attention), 1000)
    noop = host_us(lambda: both(Noop.apply), 1000)
    report("attention forward + backward, beside the same", ours, noop, "us", over_us=ours - noop)
    x, w = torch.randn(4, 256, device="cuda", dtype=torch.float16), torch.ones(256, device="cuda")
    with torch.no_grad():
        ours = host_us(lambda: mr.ops.layernorm_residual(x, x, w, w))
        report("layernorm_residual, beside that custom_op", ours, custom, "us",
               over_us=ours - custom)
        rows = torch.randn(4, 1000, device="cuda")
        ours = host_us(lambda: mr.ops.sample(rows, 0.8, 50, 0.9, seed=1))
        report("sample, beside that custom_op", ours, custom, "us", over_us=ours - custom)
    del keep


# ---- attention ----------------------------------------------------------------------------------


def attention():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    title("attention, bf16, causal, 16,384 tokens in all")
    for dim, heads in ((128, 16), (64, 32)):
        for tokens in (2048, 4096, 8192, 16384):
            batch = 16384 // tokens
            shape = (batch, tokens, heads, dim)
            q, k, v, dout = (torch.randn(shape, device="cuda", dtype=torch.bfloat16)
                             for _ in range(4))
            theirs = [x.transpose(1, 2).contiguous() for x in (q, k, v, dout)]
            for leaf in (q, k, v, *theirs[:3]):
                leaf.requires_grad_()

            def step(function, leaves, slope):
                out = function(*leaves)
                torch.autograd.grad(out, leaves, slope)

            calls = max(1, 16384 // tokens)
            times = {"ours": [], "flash": [], "cudnn": []}
            for _ in range(3):  # in turns: a GPU at its power limit changes its clock
                times["ours"].append(device_us(lambda: step(mr.ops.attention, (q, k, v), dout),
                                               calls, 5))
                for name, backend in (("flash", SDPBackend.FLASH_ATTENTION),
                                      ("cudnn", SDPBackend.CUDNN_ATTENTION)):
                    try:
                        with sdpa_kernel(backend):
                            times[name].append(device_us(lambda: step(
                                lambda *a: torch.nn.functional.scaled_dot_product_attention(
                                    *a, is_causal=True), theirs[:3], theirs[3]), calls, 5))
                    except RuntimeError as error:
                        times[name] = [float("nan")] * 3
                        print(f"  {name}: {str(error).splitlines()[0]}", file=sys.stderr)
                time.sleep(0.05)
            ours = statistics.median(times["ours"])
            for name in ("flash", "cudnn"):
                report(f"forward + backward, head_dim {dim}, {batch} x {tokens}, {name}", ours,
                       statistics.median(times[name]), "us", head_dim=dim, tokens=tokens)


# ---- norm and sampling --------------------------------------------------------------------------


def norm():
    title("norm + residual, [1, 2048, 2560] f16")
    x, residual = (torch.randn(1, 2048, 2560, device="cuda", dtype=torch.float16) for _ in range(2))
    w, b = (torch.randn(2560, device="cuda", dtype=torch.float16) for _ in range(2))

    def theirs():
        return torch.nn.functional.layer_norm(x + residual, (2560,), w, b, 1e-5)

    def ours():
        return mr.ops.layernorm_residual(x, residual, w, b, 1e-5)

    with torch.no_grad():
        report("eager", device_us(ours, 100), device_us(theirs, 100), "us")
        graphs = {"ours": in_a_graph(torch, ours, 50), "eager": in_a_graph(torch, theirs, 50)}
        try:
            compiled = torch.compile(theirs)
            compiled()
            graphs["compiled"] = in_a_graph(torch, compiled, 50)
        except Exception as error:  # any compiler error: the other figures are still valid
            print(f"  torch.compile: {str(error).splitlines()[0]}", file=sys.stderr)
        times = {name: device_us(graph, 4) / 50 for name, graph in graphs.items()}
        for name in ("eager", "compiled"):
            if name in times:
                report(f"in a graph, beside torch {name}", times["ours"], times[name], "us")
        wide_w, wide_b = w.float(), b.float()
        alone = in_a_graph(
            torch, lambda: mr.ops.layernorm_residual(x, residual, wide_w, wide_b, 1e-5), 50)
        report("in a graph with f32 weights, beside torch compiled",
               device_us(alone, 4) / 50, times.get("compiled", float("nan")), "us")

    leaves = [a.clone().requires_grad_() for a in (x, residual, w, b)]

    def step(function):
        out = function(*leaves)
        torch.autograd.grad(out, leaves, x)

    report("forward + backward, eager",
           device_us(lambda: step(lambda *a: mr.ops.layernorm_residual(*a, 1e-5)), 20),
           device_us(lambda: step(lambda x, r, w, b: torch.nn.functional.layer_norm(
               x + r, (2560,), w, b, 1e-5)), 20), "us")


def sample():
    title("sampling, 32 rows of 151,936, top-k 50, top-p 0.9")
    rows = [2.2 * torch.randn(32, 151936, device="cuda") for _ in range(8)]  # more than L2 holds
    turn = iter(range(1 << 60))

    def theirs():
        scaled = rows[next(turn) % 8] / 0.8
        values, ids = torch.topk(scaled, 50, dim=-1)
        p = torch.softmax(values, dim=-1)
        p = p.masked_fill(p.cumsum(dim=-1) - p >= 0.9, 0.0)
        return ids.gather(-1, torch.multinomial(p, 1))

    def ours():
        return mr.ops.sample(rows[next(turn) % 8], 0.8, 50, 0.9, seed=7)

    def race():  # torch.multinomial waits for the device; this does not
        scaled = rows[next(turn) % 8] / 0.8
        values, ids = torch.topk(scaled, 50, dim=-1)
        p = torch.softmax(values, dim=-1)
        p = p.masked_fill(p.cumsum(dim=-1) - p >= 0.9, 0.0)
        return ids.gather(-1, (p / torch.empty_like(p).exponential_()).argmax(-1, keepdim=True))

    def warped():  # as transformers filters: sorts the whole vocabulary
        scaled = rows[next(turn) % 8] / 0.8
        scaled = scaled.masked_fill(scaled < torch.topk(scaled, 50)[0][..., -1, None], -torch.inf)
        values, ids = torch.sort(scaled, descending=False)
        out = values.softmax(-1).cumsum(-1) <= 1 - 0.9
        out[..., -1:] = False
        scaled = scaled.masked_fill(out.scatter(1, ids, out), -torch.inf)
        return torch.multinomial(torch.softmax(scaled, -1), 1)

    here = device_us(ours, 50)
    report("top-k, sort + cumsum, multinomial", here, device_us(warped, 20), "us")
    report("top-k + softmax + cumsum + multinomial", here, device_us(theirs, 50), "us")
    report("top-k + softmax + cumsum + exponential race", here, device_us(race, 50), "us")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="norm,overhead,attention,sample",
                        help="in this order: torch 2.11 does not compile behind the others")
    parser.add_argument("--json", help="a file that gets all figures")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch_ops.py: torch sees no GPU")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, millrace {mr.__version__}")
    for name in options.only.split(","):
        {"overhead": overhead, "attention": attention, "norm": norm, "sample": sample}[name]()
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__,
                       "millrace": mr.__version__, "rows": found}, file, indent=1)


if __name__ == "__main__":
    main()
