#!/usr/bin/env python3
"""Lesson 1 on a laptop: work is sent to a "device", which is a second process.

A token needs 57 matrices, and each of their bytes once. The work on a matrix is a search for a byte
that stands at its end: it reads all bytes at about the speed of memory, as a product of a matrix with
a vector does. The byte stands in another place in each matrix, so a wrong matrix is noticed. The
second process is as fast as this one: all that a rung costs above the first line is sending.

    python3 examples/learn/offload.py [--matrix BYTES] [--reps N]
"""
import argparse
import multiprocessing
import statistics
import time
from multiprocessing import shared_memory

MATRICES = 57  # 7 products in each of 8 layers, and the head
NEEDLE = 255


def make_matrix(size, number):
    """`size` bytes with one NEEDLE. Written once, so that every page is really there."""
    matrix = bytearray(i % 251 for i in range(4096)) * (size // 4096)
    matrix[size - 1 - number] = NEEDLE
    return matrix


def work(matrix):
    return matrix.find(NEEDLE)


def device(link, buffer_name, size):
    """The second process: does what it is asked for until it is asked to stop."""
    shared = shared_memory.SharedMemory(buffer_name)
    resident = [make_matrix(size, i) for i in range(MATRICES)]
    landing = bytearray(size)
    while True:
        order = link.recv_bytes()
        if order == b"stop":
            break
        if order == b"send":  # the matrix follows through the pipe, into memory taken for it
            result = work(link.recv_bytes())
        elif order == b"copy":  # the matrix is in the shared buffer: copy it to our own memory
            landing[:] = shared.buf[:size]
            result = work(landing)
        elif order == b"all":
            result = sum(work(matrix) for matrix in resident)
        else:  # the number of a resident matrix
            result = work(resident[int(order)])
        link.send_bytes(str(result).encode())
    shared.close()


def ask(link, order, matrix=None):
    link.send_bytes(order)
    if matrix is not None:
        link.send_bytes(matrix)
    return int(link.recv_bytes())


def rungs(matrices, link, shared, size):
    """(name, bytes sent for a token, round trips, one token: the sum of the places that were found)"""

    def copy(matrix):
        shared.buf[:size] = matrix
        return ask(link, b"copy")

    total = MATRICES * size
    return [
        ("0 here", 0, 0, lambda: sum(map(work, matrices))),
        ("1 send every matrix", total, MATRICES,
         lambda: sum(ask(link, b"send", matrix) for matrix in matrices)),
        ("2 memory taken once", total, MATRICES, lambda: sum(map(copy, matrices))),
        ("3 matrices stay there", 0, MATRICES,
         lambda: sum(ask(link, str(i).encode()) for i in range(MATRICES))),
        ("4 one order per token", 0, 1, lambda: ask(link, b"all")),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrix", type=int, default=2_928_640, help="bytes of a matrix")
    parser.add_argument("--reps", type=int, default=7, help="tokens per rung; the median counts")
    args = parser.parse_args()
    size = max(1, args.matrix // 4096) * 4096

    shared = shared_memory.SharedMemory(create=True, size=size)
    link, other_end = multiprocessing.Pipe()
    child = multiprocessing.Process(target=device, args=(other_end, shared.name, size))
    child.start()
    try:
        matrices = [make_matrix(size, i) for i in range(MATRICES)]
        print(f"{MATRICES} matrices, {MATRICES * size / 1e6:.1f} MB per token")
        print("rung                     MB sent  round trips   ms/token   of the first")
        first = None
        expected = sum(size - 1 - i for i in range(MATRICES))
        for name, sent, trips, token in rungs(matrices, link, shared, size):
            times = []
            for _ in range(args.reps + 1):
                start = time.perf_counter()
                found = token()
                times.append(time.perf_counter() - start)
                if found != expected:
                    raise SystemExit(f"rung {name}: a matrix arrived damaged")
            ms = statistics.median(times[1:]) * 1e3  # the first one warms up
            first = first or ms
            print(f"{name:<24} {sent / 1e6:7.1f}  {trips:11d}  {ms:9.2f}  {ms / first:10.2f}x")
    finally:
        link.send_bytes(b"stop")
        child.join()
        shared.close()
        shared.unlink()


if __name__ == "__main__":
    main()
