#!/usr/bin/env python3
"""Lesson 1 on a laptop: work is sent to a "device", which is a second process.

A token needs 57 matrices, and each of their bytes once. The work on a matrix is a search for a byte
that is not there: it reads every byte at about the speed of memory, as a product of a matrix with a
vector does. The second process is no faster than this one, so what a rung costs above the first
line is the cost of sending.

    python3 examples/learn/offload.py [--matrix BYTES] [--reps N]
"""
import argparse
import multiprocessing
import statistics
import time
from multiprocessing import shared_memory

MATRICES = 57  # 7 products in each of 8 layers, and the head
ABSENT = b"\xff"


def make_matrix(size):
    """`size` bytes, none of them ABSENT. Written once, so that every page is really there."""
    return bytearray(i % 251 for i in range(4096)) * (size // 4096)


def work(matrix):
    return matrix.find(ABSENT)  # -1, after a look at every byte


def device(link, buffer_name, size):
    """The second process: does what it is asked for until it is asked to stop."""
    shared = shared_memory.SharedMemory(buffer_name)
    resident = [make_matrix(size) for _ in range(MATRICES)]
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
            result = max(work(matrix) for matrix in resident)
        else:  # the number of a resident matrix
            result = work(resident[int(order)])
        link.send_bytes(str(result).encode())
    shared.close()


def expect_absent(answer):
    if int(answer) != -1:
        raise SystemExit("the byte that is nowhere was found: a matrix arrived damaged")


def ask(link, order):
    link.send_bytes(order)
    expect_absent(link.recv_bytes())


def rungs(matrices, link, shared, size):
    """(name, bytes sent for a token, round trips, what to do for one token)"""

    def send_each():
        for matrix in matrices:
            link.send_bytes(b"send")
            link.send_bytes(matrix)
            expect_absent(link.recv_bytes())

    def copy_each():
        for matrix in matrices:
            shared.buf[:size] = matrix
            ask(link, b"copy")

    def resident_each():
        for i in range(MATRICES):
            ask(link, str(i).encode())

    total = MATRICES * size
    return [
        ("0 here", 0, 0, lambda: expect_absent(max(work(matrix) for matrix in matrices))),
        ("1 send every matrix", total, MATRICES, send_each),
        ("2 memory taken once", total, MATRICES, copy_each),
        ("3 matrices stay there", 0, MATRICES, resident_each),
        ("4 one order a token", 0, 1, lambda: ask(link, b"all")),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrix", type=int, default=2_928_640, help="bytes of a matrix")
    parser.add_argument("--reps", type=int, default=7, help="tokens a rung; the median counts")
    args = parser.parse_args()
    size = max(1, args.matrix // 4096) * 4096

    shared = shared_memory.SharedMemory(create=True, size=size)
    link, other_end = multiprocessing.Pipe()
    child = multiprocessing.Process(target=device, args=(other_end, shared.name, size))
    child.start()
    try:
        matrices = [make_matrix(size) for _ in range(MATRICES)]
        print(f"{MATRICES} matrices, {MATRICES * size / 1e6:.1f} MB a token")
        print("rung                     MB sent  round trips   ms/token   of the first")
        first = None
        for name, sent, trips, token in rungs(matrices, link, shared, size):
            times = []
            for _ in range(args.reps + 1):
                start = time.perf_counter()
                token()
                times.append(time.perf_counter() - start)
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
