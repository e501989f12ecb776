#!/usr/bin/env python3
"""Lesson 5 on a laptop: copy in, compute, copy out; one after the other, and at the same time.

The link is simulated: a copy is a real copy of the chunk that then sleeps until a link of the given
rate would have delivered it, as a DMA engine leaves the processor alone. The computation is simulated
in the same way. So the times are those of a machine with one engine for each part, whatever else this
machine does. The data is real: each result is compared with the synchronous one, byte by byte.

    python3 examples/learn/overlap.py [--part-ms MS] [--chunks N,...] [--bytes N]
"""
import argparse
import queue
import threading
import time

KEY = bytes(255 - i for i in range(256))  # "computing" a byte is a look into this table


class Engine:
    """Does one thing at a time: moves `size` bytes in `seconds`, at an even pace."""

    def __init__(self, size, seconds):
        self.seconds_a_byte = seconds / size

    def run(self, out, data, begin, end, table=None):
        deadline = time.perf_counter() + (end - begin) * self.seconds_a_byte
        chunk = data[begin:end]
        out[begin:end] = chunk.translate(table) if table else chunk
        time.sleep(max(0, deadline - time.perf_counter()))


class Job:
    def __init__(self, size, part_seconds):
        self.data = bytes(range(256)) * (size // 256)
        self.size = len(self.data)
        self.engines = [Engine(self.size, part_seconds) for _ in range(3)]  # in, compute, out
        self.clear()

    def clear(self):
        self.inputs, self.results, self.output = (bytearray(self.size) for _ in range(3))

    def step(self, part, begin, end):
        """One part of one chunk: 0 copy in, 1 compute, 2 copy out."""
        source, target, table = [(self.data, self.inputs, None), (self.inputs, self.results, KEY),
                                 (self.results, self.output, None)][part]
        self.engines[part].run(target, source, begin, end, table)

    def ranges(self, chunks):
        edges = [self.size * i // chunks for i in range(chunks + 1)]
        return list(zip(edges, edges[1:]))

    def one_after_the_other(self, chunks):
        for begin, end in self.ranges(chunks):
            for part in range(3):
                self.step(part, begin, end)

    def a_thread_for_each_part(self, chunks):
        """The queue between two parts is the event that says a chunk has arrived."""
        arrived = [queue.Queue() for _ in range(3)]

        def worker(part):
            while (chunk := arrived[part].get()) is not None:
                self.step(part, *chunk)
                if part < 2:
                    arrived[part + 1].put(chunk)
            if part < 2:
                arrived[part + 1].put(None)

        threads = [threading.Thread(target=worker, args=(part,)) for part in range(3)]
        for thread in threads:
            thread.start()
        for chunk in self.ranges(chunks):
            arrived[0].put(chunk)
        arrived[0].put(None)
        for thread in threads:
            thread.join()


def timed(job, way, chunks):
    job.clear()
    start = time.perf_counter()
    way(chunks)
    return (time.perf_counter() - start) * 1e3, bytes(job.output)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part-ms", type=float, default=200, help="ms that each of the parts takes")
    parser.add_argument("--chunks", default="1,2,4,8,16", help="numbers of chunks, with commas")
    parser.add_argument("--bytes", type=int, default=4 << 20, help="bytes of the array")
    args = parser.parse_args()

    job = Job(args.bytes, args.part_ms / 1e3)
    base, expected = timed(job, job.one_after_the_other, 1)
    print(f"each part alone: {args.part_ms:.0f} ms, so nothing can be faster than that")
    print("chunks          ms   speed-up   of the limit  predicted")
    print(f"  none  {base:9.1f}       1.00   {args.part_ms / base:12.1%}   {1 / 3:8.1%}")
    for chunks in (int(n) for n in args.chunks.split(",")):
        ms, output = timed(job, job.a_thread_for_each_part, chunks)
        if output != expected:
            raise SystemExit(f"{chunks} chunks: another result than the synchronous one")
        print(f"{chunks:6d}  {ms:9.1f}  {base / ms:9.2f}   {args.part_ms / ms:12.1%}"
              f"   {chunks / (chunks + 2):8.1%}")


if __name__ == "__main__":
    main()
