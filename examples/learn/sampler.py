#!/usr/bin/env python3
"""Lesson 3 on a laptop: two samplers that draw the same token, with a clock on each stage (processor time).

Both draw with temperature, top-k and top-p from rows of logits, and tell the probability of the best
token, by which a diffusion model decides what to settle. One sorts the whole vocabulary to find the k
best. The other one selects them.

    python3 examples/learn/sampler.py [--vocab N] [--top-k N] [--rows N]
"""
import argparse
import heapq
import math
import random
import time

TEMPERATURE, TOP_P = 0.8, 0.9


def by_rank(pair):
    return -pair[0], pair[1]  # the largest logit first; of equal ones the smaller id


def by_sorting(logits, k):
    return sorted(zip(logits, range(len(logits))), key=by_rank)[:k]


def by_selecting(logits, k):
    return heapq.nsmallest(k, zip(logits, range(len(logits))), key=by_rank)


def confidence(logits):
    """The largest probability of the softmax: one pass over the row, in any order."""
    best = max(logits)
    return 1 / sum(math.exp(logit - best) for logit in logits)


def draw(candidates, uniform):
    """candidates: (logit, id), best first. Keeps those that make up TOP_P, and takes one of them."""
    best = candidates[0][0]
    weights = [math.exp((logit - best) / TEMPERATURE) for logit, _ in candidates]
    enough = TOP_P * sum(weights)
    kept = total = 0
    while total < enough:
        total += weights[kept]
        kept += 1
    place = uniform * total
    for weight, (_, token) in zip(weights[:kept], candidates):
        place -= weight
        if place < 0:
            return token
    return candidates[kept - 1][1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=151_936, help="tokens in the vocabulary")
    parser.add_argument("--top-k", type=int, default=50, help="candidates")
    parser.add_argument("--rows", type=int, default=4, help="rows of logits")
    args = parser.parse_args()

    numbers = random.Random(1)
    rows = [[numbers.gauss(0, 2) for _ in range(args.vocab)] for _ in range(args.rows)]
    uniforms = [numbers.random() for _ in rows]
    print(f"a row: {args.vocab} logits, {args.vocab * 4 / 1e3:.1f} kB in f32; its answer: 4 bytes")
    print("sampler ms per row:  k best  softmax    draw     all   tokens")
    expected = None
    for name, best_of in (("sort", by_sorting), ("select", by_selecting)):
        tokens = []
        spent = [0.0, 0.0, 0.0]  # seconds: the k best, the softmax, the draw
        for row, uniform in zip(rows, uniforms):
            clocks = [time.process_time()]
            candidates = best_of(row, args.top_k)
            clocks.append(time.process_time())
            sure = confidence(row)
            clocks.append(time.process_time())
            tokens.append((draw(candidates, uniform), sure))
            clocks.append(time.process_time())
            spent = [s + after - before for s, before, after in zip(spent, clocks, clocks[1:])]
        ms = [s * 1e3 / len(rows) for s in spent]
        ids = " ".join(str(token) for token, _ in tokens)
        print(f"{name:<18} {ms[0]:8.1f} {ms[1]:8.1f} {ms[2]:7.2f} {sum(ms):7.1f}   {ids}")
        if tokens != (expected or tokens):
            raise SystemExit("another token than the first sampler's")
        expected = tokens


if __name__ == "__main__":
    main()
