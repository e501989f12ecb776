#!/usr/bin/env python3
"""PyTorch's way of drawing tokens on the GPU, for `millrace-lab sampler` to be compared with:
top-k, then top-p among those left, then multinomial. One JSON line per row count.

  bench/peers/torch_sampling.py [--vocab 151936] [--rows 1,4,16,32,64] [--top-k 50] [--top-p 0.9]
                                [--temp 0.8] [--graph]

Times are medians over CUDA events, in microseconds, of launches that follow each other; the logits
rotate through more memory than the second-level cache holds. --graph replays a captured call.
"""
import argparse
import json
import statistics
import sys

try:
    import torch
except ImportError:
    sys.exit("torch_sampling.py: PyTorch is not installed")


def draw(logits, temperature, top_k, top_p):
    """One id per row of logits [rows, vocab]."""
    scaled = logits / temperature
    if top_k > 0:  # sorted, greatest first
        values, ids = torch.topk(scaled, top_k, dim=-1)
    else:
        values, ids = torch.sort(scaled, dim=-1, descending=True)
    probabilities = torch.softmax(values, dim=-1)
    if top_p < 1:
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities.masked_fill(before >= top_p, 0.0)
    # An exponential race instead of torch.multinomial, which waits for the device.
    race = probabilities / torch.empty_like(probabilities).exponential_()
    return ids.gather(-1, race.argmax(dim=-1, keepdim=True))


def microseconds(buffers, args, repetitions=50):
    def call(logits):
        return draw(logits, args.temp, args.top_k, args.top_p)

    graphs = []
    for logits in buffers:
        call(logits)
    torch.cuda.synchronize()
    if args.graph:
        for logits in buffers:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call(logits)
            graphs.append(graph)
    times = []
    for i in range(repetitions + 5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        if graphs:
            graphs[i % len(graphs)].replay()
        else:
            call(buffers[i % len(buffers)])
        end.record()
        end.synchronize()
        if i >= 5:
            times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--rows", default="1,4,16,32,64")
    parser.add_argument("--top-k", type=int, default=50)
    parser.add_argument("--top-p", type=float, default=0.9)
    parser.add_argument("--temp", type=float, default=0.8)
    parser.add_argument("--graph", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch_sampling.py: PyTorch sees no GPU")
    properties = torch.cuda.get_device_properties(0)
    for rows in (int(r) for r in args.rows.split(",")):
        row_bytes = args.vocab * 4
        count = max(2, min(64, 4 * properties.L2_cache_size // (rows * row_bytes) + 1))
        buffers = [2.2 * torch.randn(rows, args.vocab, device="cuda") for _ in range(count)]
        line = {
            "peer": "torch " + torch.__version__,
            "device": properties.name,
            "vocab": args.vocab,
            "rows": rows,
            "top_k": args.top_k,
            "top_p": args.top_p,
            "temperature": args.temp,
            "graph": args.graph,
            "us": microseconds(buffers, args),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
