#!/usr/bin/env python3
"""How much of an exchange of gradients PyTorch's DistributedDataParallel hides behind its backward.

    bench/peers/torch_overlap.py --family gpt2 --dim 768 ... --batch 32 --seq 1024 --links 50e9,400e9

The counterpart of `millrace-lab overlap`: one rank, whose communication hook copies as many bytes
as a rank of --ranks sends and receives in an all-reduce, 2 (R - 1) / R of every bucket, in both
directions at once: to pinned host memory and back up to 64 GB/s, on the device above. Copies run
as fast as they can, faster than the link where it is slower than they; nothing is added up. A JSON line for each link.
"""
import argparse
import json
import statistics
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
except ImportError as error:  # one line: the caller explains the rest
    sys.exit(f"{sys.executable}: {error}")

import torch_train

MOST_THROUGH_HOST = 64e9


class Link:
    """Copies both ways at the rate of a link, as far as copies are not slower by themselves."""

    def __init__(self, rate, ranks, most):
        self.rate, self.share, self.on = rate, 2 * (ranks - 1) / ranks, True
        host = rate <= MOST_THROUGH_HOST
        room = dict(dtype=torch.uint8, pin_memory=True) if host else dict(dtype=torch.uint8, device="cuda")
        size = int(self.share * most) + 1
        self.left, self.arriving = (torch.zeros(size, **room) for _ in range(2))
        self.device = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
        self.out, self.back = torch.cuda.Stream(), torch.cuda.Stream()

    def copy(self, count):
        for stream, to, source in ((self.out, self.left, self.device[0]),
                                   (self.back, self.device[1], self.arriving)):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                to[:count].copy_(source[:count], non_blocking=True)

    def hook(self, _, bucket):
        future = torch.futures.Future(devices=[torch.cuda.current_device()])
        buffer = bucket.buffer()
        if self.on:
            self.copy(int(self.share * buffer.nbytes))
            self.out.wait_stream(self.back)
            with torch.cuda.stream(self.out):
                future.set_result(buffer)
        else:
            future.set_result(buffer)
        return future

    def alone(self, buckets):
        """Seconds of copies for buckets of these bytes, and nothing else."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        for nbytes in buckets:
            self.copy(int(self.share * nbytes))
            self.out.wait_stream(self.back)
            self.back.wait_stream(self.out)
        torch.cuda.synchronize()
        return time.perf_counter() - start


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("dim", "layers", "heads", "kv-heads", "hidden", "vocab", "context", "tied", "batch", "seq"):
        p.add_argument(f"--{name}", type=int, required=True)
    p.add_argument("--family", choices=("gpt2", "llama"), required=True)
    p.add_argument("--links", required=True, help="bytes per second, separated by commas")
    p.add_argument("--ranks", type=int, default=8)
    p.add_argument("--bucket", type=int, default=25, help="MiB")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--warmup", type=int, default=3)
    o = p.parse_args()
    o.seed, o.device, o.type, o.no_compile, o.accumulate = 1, "cuda", "bf16", True, 1
    o.weight_decay, o.lr, o.beta1, o.beta2, o.clip = 0.1, 1e-4, 0.9, 0.95, 0
    model, _, optimizer = torch_train.make(o)
    store = tempfile.NamedTemporaryFile(prefix="millrace-store-")
    dist.init_process_group("nccl", init_method=f"file://{store.name}", rank=0, world_size=1)
    table = sum(p.nbytes for p in {model.embedding.weight} | set(
        [] if model.positions is None else [model.positions.weight]))
    every = sum(p.nbytes for p in model.parameters())
    for rate in map(float, o.links.split(",")):
        run = DistributedDataParallel(model, bucket_cap_mb=o.bucket, gradient_as_bucket_view=True)
        sizes = []
        link = Link(rate, o.ranks, every)

        def hook(state, bucket):
            if len(sizes) < 1000:
                sizes.append((bucket.index(), bucket.buffer().nbytes))
            return link.hook(state, bucket)

        run.register_comm_hook(None, hook)
        draw = lambda: torch.randint(0, o.vocab, (o.batch, o.seq), device="cuda")
        ids, targets = draw(), draw()

        def step(on):
            link.on = on
            torch.cuda.synchronize()
            start = time.perf_counter()
            torch_train.train_step(o, model, run, optimizer, [(ids, targets)])
            torch.cuda.synchronize()
            return time.perf_counter() - start

        compute, both = [], []
        for i in range(o.warmup + o.steps):
            pair = step(False), step(True)
            if i >= o.warmup:
                compute.append(pair[0]), both.append(pair[1])
        buckets = dict(sizes[-64:])  # by index: the last step's
        alone = statistics.median(link.alone(buckets.values()) for _ in range(o.steps))
        compute, both = statistics.median(compute), statistics.median(both)
        # A tied table's gradient is complete only when the backward ends; the last exchange cannot
        # be hidden.
        last = alone * table / every
        overlapped = compute + alone - both
        print(json.dumps({
            "peer": f"torch {torch.__version__}, DistributedDataParallel", "device": torch.cuda.get_device_name(),
            "link_gb_s": rate / 1e9, "buckets": len(buckets), "compute_ms": compute * 1e3,
            "communication_ms": alone * 1e3, "both_ms": both * 1e3, "hidden": overlapped / min(compute, alone),
            "communication_of_last_op_ms": last * 1e3, "hidden_of_ready": overlapped / (alone - last)}), flush=True)
        del run
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
