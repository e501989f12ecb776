#!/usr/bin/env python3
"""norm + residual in PyTorch on the GPU: eager, eager in a CUDA graph, torch.compile in a graph.

    bench/peers/torch_norm.py [--hidden 2560] [--tokens 1,256,1024,32768] [--type f16]
                              [--kind layer|rms]

One JSON line per number of tokens, in microseconds per call: out = norm(x + residual), the same
buffers as `millrace-lab norms` moves. Each figure is the median of nine runs of `calls` calls.
What cannot be run (no compiler for torch.compile) is null, with the reason.
"""
import argparse
import json
import statistics
import sys

TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def microseconds(torch, run, calls, runs=9):
    """Median time of run(), which makes `calls` calls, by events on the stream; a call's share."""
    times = []
    for i in range(runs + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        if i >= 2:
            times.append(begin.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times)


def in_a_graph(torch, function, calls):
    """`calls` calls of function() captured in one graph; gives what replays it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            function()
    return graph.replay


def measure(torch, options, tokens):
    dtype = getattr(torch, TYPES[options.type])
    shape = (tokens, options.hidden)
    x, residual = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
    weight, bias = (torch.randn(options.hidden, device="cuda", dtype=dtype) for _ in range(2))

    def norm():
        s = x + residual
        if options.kind == "rms":
            return torch.nn.functional.rms_norm(s, (options.hidden,), weight, 1e-5)
        return torch.nn.functional.layer_norm(s, (options.hidden,), weight, bias, 1e-5)

    calls = min(max((1 << 18) // tokens, 8), 256)

    def many():
        for _ in range(calls):
            norm()

    line = {"peer": f"torch {torch.__version__}", "device": torch.cuda.get_device_name(),
            "kind": options.kind, "hidden": options.hidden, "tokens": tokens,
            "type": options.type, "bytes": 3 * x.numel() * x.element_size()}
    many()
    torch.cuda.synchronize()
    line["eager_us"] = microseconds(torch, many, calls)
    line["graph_us"] = microseconds(torch, in_a_graph(torch, norm, calls), calls)
    try:
        torch._dynamo.reset()  # every size is compiled separately
        compiled = torch.compile(norm, dynamic=False)
        compiled()
        torch.cuda.synchronize()
        line["compiled_graph_us"] = microseconds(torch, in_a_graph(torch, compiled, calls), calls)
    except Exception as error:  # any compiler error: the other figures are still valid
        line["compiled_graph_us"] = None
        line["why"] = str(error).splitlines()[0] if str(error) else type(error).__name__
    return line


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=2560)
    parser.add_argument("--tokens", default="1,256,1024,32768")
    parser.add_argument("--type", choices=TYPES, default="f16")
    parser.add_argument("--kind", choices=["layer", "rms"], default="layer")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("torch_norm.py: PyTorch is not installed", file=sys.stderr)
        return 1
    if not torch.cuda.is_available():
        print("torch_norm.py: PyTorch sees no GPU", file=sys.stderr)
        return 3
    for tokens in options.tokens.split(","):
        print(json.dumps(measure(torch, options, int(tokens))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
