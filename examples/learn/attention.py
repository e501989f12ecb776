#!/usr/bin/env python3
"""Lesson 4 on a laptop: attention with the whole matrix, and attention in tiles that never has it.

Both compute softmax(Q K^T / sqrt(d)) V with a causal mask, in plain Python and f64. The first one
writes every score down before it looks at the first value. The second one keeps, for each query, the
largest score so far (m), the sum of exponentials (l) and the weighted sum of values (a), and
corrects them when a larger score comes.

    python3 examples/learn/attention.py [--tokens N,...] [--dim N] [--tile N] [--spread X]
"""
import argparse
import math
import random
import tracemalloc
from array import array
from operator import mul


def dot(x, y):
    return sum(map(mul, x, y))


def whole_matrix(q, k, v, dim):
    """One row of scores for each query, then the softmax of each row, then the values."""
    scale = 1 / math.sqrt(dim)
    scores = [array("d", (scale * dot(qi, kj) for kj in k[: i + 1])) for i, qi in enumerate(q)]
    for row in scores:
        largest = max(row)
        weights = [math.exp(s - largest) for s in row]
        total = sum(weights)
        row[:] = array("d", (w / total for w in weights))
    return [array("d", (dot(row, column) for column in columns(v[: len(row)]))) for row in scores]


def columns(rows):
    return zip(*rows)


def in_tiles(q, k, v, dim, tile):
    """A tile of queries meets one tile of keys after another. Scores live for one pair of tiles."""
    scale = 1 / math.sqrt(dim)
    out = []
    for first in range(0, len(q), tile):
        rows = range(first, min(first + tile, len(q)))
        m = {i: -math.inf for i in rows}
        l = {i: 0.0 for i in rows}
        a = {i: array("d", bytes(8 * dim)) for i in rows}
        for start in range(0, rows[-1] + 1, tile):  # tiles behind the last query are not visited
            for i in rows:
                end = min(start + tile, i + 1)
                if end <= start:
                    continue
                scores = [scale * dot(q[i], kj) for kj in k[start:end]]
                largest = max(m[i], max(scores))
                correction = math.exp(m[i] - largest)  # 0 for the first tile
                weights = [math.exp(s - largest) for s in scores]
                m[i] = largest
                l[i] = correction * l[i] + sum(weights)
                for c, column in enumerate(columns(v[start:end])):
                    a[i][c] = correction * a[i][c] + dot(weights, column)
        out.extend(array("d", (x / l[i] for x in a[i])) for i in rows)
    return out


def measured(attention, *args):
    """(result, peak of the memory that it took beside its inputs and its result)"""
    tracemalloc.start()
    result = attention(*args)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return result, peak - kept


def count(text):
    if int(text) < 1:
        raise ValueError
    return int(text)


def counts(text):
    return [count(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=counts, default="64,128,256", help="lengths, with commas")
    parser.add_argument("--dim", type=count, default=16, help="numbers per head")
    parser.add_argument("--tile", type=count, default=32, help="queries and keys of a tile")
    parser.add_argument("--spread", type=float, default=1.0, help="scales the queries, so the scores")
    args = parser.parse_args()

    numbers = random.Random(1)
    print("tokens   whole matrix: peak KB   tiles: peak KB   largest difference")
    for tokens in args.tokens:
        q, k, v = ([array("d", (numbers.gauss(0, scale) for _ in range(args.dim)))
                    for _ in range(tokens)] for scale in (args.spread, 1, 1))
        full, full_peak = measured(whole_matrix, q, k, v, args.dim)
        tiled, tiled_peak = measured(in_tiles, q, k, v, args.dim, args.tile)
        difference = max(abs(x - y) for a, b in zip(full, tiled) for x, y in zip(a, b))
        print(f"{tokens:6d}  {full_peak / 1e3:22.1f}  {tiled_peak / 1e3:15.1f}"
              f"  {difference:19.1e}")
        if not difference < 1e-9:
            raise SystemExit("the two results differ")


if __name__ == "__main__":
    main()
