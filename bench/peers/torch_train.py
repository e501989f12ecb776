#!/usr/bin/env python3
"""Training in PyTorch: bf16 autocast, torch.compile, fused AdamW, f32 weights.

    bench/peers/torch_train.py speed --shape gpt2 --batch 32 --seq 1024
    bench/peers/torch_train.py speed --shape llama-1.1b --batch 0 --seq 2048
    bench/peers/torch_train.py learn --data data/ --dim 256 --layers 6 --heads 8 --kv-heads 4 \\
                                     --steps 5000 --batch 64 --seq 512

speed: tokens per second and peak memory of steps over random tokens, the counterpart of
`millrace bench train`; --batch 0 looks for the largest batch that fits. learn: trains on the shards
of `millrace data pack` as `millrace train` does (the same windows in the same order, schedule,
initialisation's distribution, optimizer, weight-decay groups and clipping) and says what the
held-out text costs in bits per byte. JSON lines on standard output; the last one is the result.
Models are written out here, without dropout, as plain modules that torch.compile likes.
"""
import argparse
import contextlib
import json
import math
import pathlib
import statistics
import sys
import time

try:
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as error:  # one line: the caller explains the rest
    sys.exit(f"{sys.executable}: {error}")

# name: family, dim, layers, heads, kv heads, hidden, vocabulary, context, tied
SHAPES = {
    "gpt2": ("gpt2", 768, 12, 12, 12, 3072, 50257, 1024, 1),
    "llama-1.1b": ("llama", 2048, 22, 32, 4, 5632, 32000, 2048, 0),
    "tiny-gpt2": ("gpt2", 32, 2, 2, 2, 128, 97, 64, 1),
    "tiny-llama": ("llama", 32, 2, 4, 2, 96, 97, 64, 0),
}


class Attention(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.heads, self.kv_heads, self.size = o.heads, o.kv_heads, o.dim // o.heads
        bias = o.family == "gpt2"
        self.qkv = nn.Linear(o.dim, (o.heads + 2 * o.kv_heads) * self.size, bias=bias)
        self.out = nn.Linear(o.dim, o.dim, bias=bias)

    def forward(self, x, rotation):  # x [batch, seq, dim]
        batch, seq, _ = x.shape
        heads = self.qkv(x).view(batch, seq, -1, self.size).transpose(1, 2)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        if rotation is not None:
            q, k = rotated(q, *rotation), rotated(k, *rotation)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                           enable_gqa=self.kv_heads != self.heads)
        return self.out(y.transpose(1, 2).reshape(batch, seq, -1))


def rotated(x, cos, sin):
    """Pairs (i, i + half) of every head, rotated; cos and sin [seq, half]."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.gated = o.family == "llama"
        self.up = nn.Linear(o.dim, o.hidden * (2 if self.gated else 1), bias=not self.gated)
        self.out = nn.Linear(o.hidden, o.dim, bias=not self.gated)

    def forward(self, x):
        y = self.up(x)
        if not self.gated:
            return self.out(F.gelu(y, approximate="tanh"))
        gate, up = y.chunk(2, dim=-1)
        return self.out(F.silu(gate) * up)


def norm(o):
    return nn.LayerNorm(o.dim, eps=1e-5) if o.family == "gpt2" else nn.RMSNorm(o.dim, eps=1e-5)


class Layer(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = norm(o), Attention(o), norm(o), Mlp(o)

    def forward(self, x, rotation):
        x = x + self.attention(self.norm1(x), rotation)
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.embedding = nn.Embedding(o.vocab, o.dim)
        self.positions = nn.Embedding(o.context, o.dim) if o.family == "gpt2" else None
        self.layers = nn.ModuleList(Layer(o) for _ in range(o.layers))
        self.norm = norm(o)
        self.head = nn.Linear(o.dim, o.vocab, bias=False)
        if o.tied:
            self.head.weight = self.embedding.weight
        if self.positions is None:
            half = o.dim // o.heads // 2
            angle = torch.outer(torch.arange(o.context, dtype=torch.float64),
                                10000.0 ** (-torch.arange(half, dtype=torch.float64) / half))
            self.register_buffer("cos", angle.cos().float(), persistent=False)
            self.register_buffer("sin", angle.sin().float(), persistent=False)
        # Matrices and tables N(0, 0.02), those that write to the residual stream smaller.
        for name, p in self.named_parameters():
            if p.dim() == 2:
                last = name.endswith("out.weight")
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * o.layers) if last else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids, targets):
        """Loss of every token, [batch * seq]; a target below 0 counts 0."""
        seq = ids.shape[1]
        x = self.embedding(ids)
        rotation = None
        if self.positions is not None:
            x = x + self.positions(torch.arange(seq, device=ids.device))
        else:
            rotation = self.cos[:seq], self.sin[:seq]
        for layer in self.layers:
            x = layer(x, rotation)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1),
                               ignore_index=-1, reduction="none")


def make(o):
    torch.manual_seed(o.seed)
    torch.set_float32_matmul_precision("high")
    model = Model(o).to(o.device)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": o.weight_decay},
         {"params": others, "weight_decay": 0.0}],
        lr=o.lr, betas=(o.beta1, o.beta2), eps=1e-8, fused=o.device == "cuda")
    run = model if o.no_compile else torch.compile(model)
    return model, run, optimizer


def autocast(o):
    if o.type == "f32":
        return contextlib.nullcontext()
    return torch.autocast(o.device, dtype=torch.bfloat16)


def train_step(o, model, run, optimizer, batches, lr=None):
    """Forward and backward of all passes, clipping and the update; the loss stays on the device."""
    loss = None
    for ids, targets in batches:
        with autocast(o):
            part = run(ids, targets).sum() / (ids.numel() * len(batches))
        part.backward()
        loss = part.detach() if loss is None else loss + part.detach()
    if o.clip > 0:
        nn.utils.clip_grad_norm_(model.parameters(), o.clip)
    if lr is not None:
        for group in optimizer.param_groups:
            group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


def synchronize(o):
    if o.device == "cuda":
        torch.cuda.synchronize()


def about(o):
    name = torch.cuda.get_device_name() if o.device == "cuda" else "cpu"
    return {"peer": f"torch {torch.__version__}" + ("" if o.no_compile else ", compiled"),
            "device": name, "family": o.family, "dim": o.dim, "layers": o.layers,
            "heads": o.heads, "kv_heads": o.kv_heads, "hidden": o.hidden, "vocab": o.vocab,
            "type": o.type, "batch": o.batch, "seq": o.seq, "accumulate": o.accumulate}


# ---- speed --------------------------------------------------------------------------------------
def measure(o):
    if o.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model, run, optimizer = make(o)
    parameters = sum(p.numel() for p in model.parameters())
    # Ids of the real vocabulary; the table may be padded.
    draw = lambda: torch.randint(0, o.real_vocab, (o.batch, o.seq), device=o.device)
    batches = [(draw(), draw()) for _ in range(o.accumulate)]
    for _ in range(o.warmup):
        loss = train_step(o, model, run, optimizer, batches)
    synchronize(o)
    # No wait between steps, so that the host runs ahead as in training.
    marks = []

    def mark():
        if o.device == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return time.perf_counter()

    marks.append(mark())
    for _ in range(o.steps):
        loss = train_step(o, model, run, optimizer, batches)
        marks.append(mark())
    synchronize(o)
    between = (lambda a, b: a.elapsed_time(b) * 1e-3) if o.device == "cuda" else (lambda a, b: b - a)
    seconds = [between(a, b) for a, b in zip(marks, marks[1:])]
    median = statistics.median(seconds)
    tokens = o.batch * o.seq * o.accumulate
    out = {**about(o), "parameters": parameters, "tok_s": tokens / median,
           "ms_per_step": median * 1e3, "tok_s_best": tokens / min(seconds), "loss": loss.item()}
    if o.device == "cuda":
        out["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
        out["reserved_memory_bytes"] = torch.cuda.max_memory_reserved()
    return out


def speed(o):
    if o.pad_vocab:  # unused rows, for GEMMs of a rounder size
        o.vocab = -(-o.vocab // o.pad_vocab) * o.pad_vocab
    if o.batch:
        return measure(o)
    # The largest that fits, of 2^n and 3 * 2^n: compiling takes too long to try them all.
    sizes = sorted({s << n for s in (2, 3) for n in range(12) if s << n <= o.most_batch} | {1},
                   reverse=True)
    for batch in sizes:
        o.batch = batch
        try:
            return measure(o)
        except torch.cuda.OutOfMemoryError:
            print(f"batch {batch} does not fit", file=sys.stderr)
        torch._dynamo.reset()
    return {**about(o), "error": "not even one sequence fits"}


# ---- learn --------------------------------------------------------------------------------------
def philox(seed, index, stream):
    """Philox4x32-10: words of the draws at `index` (an array), uint64 arrays of 32 bits."""
    low = np.uint64(0xFFFFFFFF)
    index = np.atleast_1d(np.asarray(index, dtype=np.uint64))
    parts = lambda v: (np.uint64(v & 0xFFFFFFFF), np.uint64(v >> 32))
    c = [index & low, index >> np.uint64(32),
         *(np.full_like(index, part) for part in parts(stream))]
    k0, k1 = (int(part) for part in parts(seed))
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), p1 & low,
             (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def permuted(index, size, key):
    """The order of windows of src/train/batches.cpp: a Feistel network, walked until inside."""
    half = np.uint64((max(size - 1, 1).bit_length() + 1) // 2)
    mask = (np.uint64(1) << half) - np.uint64(1)
    index = np.asarray(index, dtype=np.uint64).copy()
    outside = np.ones(index.shape, dtype=bool)
    while outside.any():
        left, right = index[outside] >> half, index[outside] & mask
        for number in range(6):
            left, right = right, left ^ (philox(key, right, number)[0] & mask)
        index[outside] = (left << half) | right
        outside = index >= size
    return index


class Split:
    """One split of a data folder as one row of ids."""

    def __init__(self, folder, index):
        self.tokens, self.bytes, self.parts = index["tokens"], index["bytes"], []
        for entry in index["shards"]:
            path = pathlib.Path(folder) / entry["file"]
            header = path.open("rb").read(64)
            if header[:8] != b"MRTOKENS":
                raise SystemExit(f"torch_train.py: {path} is not a shard")
            width, count = (int.from_bytes(header[a:b], "little") for a, b in ((12, 16), (16, 24)))
            kind = {2: "<u2", 4: "<u4"}[width]
            self.parts.append(np.memmap(path, dtype=kind, mode="r", offset=64, shape=(count,)))
        self.starts = np.cumsum([0] + [len(part) for part in self.parts])

    def windows(self, seq):
        return max(self.tokens - 1, 0) // seq

    def read(self, first, count):
        pieces = []
        while count > 0:
            part = int(np.searchsorted(self.starts, first, side="right")) - 1
            at = first - int(self.starts[part])
            piece = self.parts[part][at:at + count]
            pieces.append(np.asarray(piece, dtype=np.int64))
            first, count = first + len(piece), count - len(piece)
        return np.concatenate(pieces)

    def rows(self, windows, seq, device):
        ids = np.stack([self.read(int(w) * seq, seq + 1) for w in windows])
        both = torch.from_numpy(ids)
        if device == "cuda":
            both = both.pin_memory().to(device, non_blocking=True)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()


def shuffled(split, o, number):
    """Pass `number`: rows number * batch and on, each epoch in an order of its own."""
    windows = split.windows(o.seq)
    rows = [number * o.batch + r for r in range(o.batch)]
    out = np.empty(len(rows), dtype=np.uint64)
    for epoch in sorted({r // windows for r in rows}):
        words = philox(o.seed, epoch, 0xBA7C4)
        key = int(words[1][0]) << 32 | int(words[0][0])
        here = [i for i, r in enumerate(rows) if r // windows == epoch]
        out[here] = permuted([rows[i] % windows for i in here], windows, key)
    return out


def learning_rate(o, step):
    warmup = o.warmup if o.warmup >= 0 else min(o.steps // 20, 1000)
    low = o.lr / 10 if o.min_lr < 0 else o.min_lr
    if step < warmup:
        return o.lr * step / warmup
    if o.schedule == "constant":
        return o.lr
    if o.schedule == "wsd":
        length = max(1.0, round(o.decay * o.steps))
        return low + (o.lr - low) * min(max(o.steps - step, 0) / length, 1.0)
    if step >= o.steps or o.steps <= warmup:
        return low
    return low + (o.lr - low) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (o.steps - warmup)))


@torch.no_grad()
def validate(o, run, split):
    total, count = 0.0, 0
    windows = split.windows(o.seq)
    for first in range(0, windows, o.batch):
        chosen = range(first, min(first + o.batch, windows))
        ids, targets = split.rows(chosen, o.seq, o.device)
        rows = len(chosen)
        if rows < o.batch:  # the compiled shape
            ids, targets = (F.pad(t, (0, 0, 0, o.batch - rows)) for t in (ids, targets))
        with autocast(o):
            losses = run(ids, targets)
        total += losses[:rows * o.seq].double().sum().item()
        count += rows * o.seq
    return total / max(count, 1)


def learn(o):
    index = json.loads((pathlib.Path(o.data) / "data.json").read_text())
    o.vocab, o.context = index["vocab"], max(o.context, o.seq)
    train, val = (Split(o.data, index[name]) for name in ("train", "val"))
    if train.windows(o.seq) == 0:
        raise SystemExit("torch_train.py: the data is shorter than one window")
    model, run, optimizer = make(o)
    result = {**about(o), "parameters": sum(p.numel() for p in model.parameters()),
              "steps": o.steps}
    seconds, start = 0.0, time.perf_counter()
    for step in range(1, o.steps + 1):
        first = (step - 1) * o.accumulate
        batches = [train.rows(shuffled(train, o, first + i), o.seq, o.device)
                   for i in range(o.accumulate)]
        loss = train_step(o, model, run, optimizer, batches, learning_rate(o, step))
        if step % o.eval_every and step != o.steps:
            continue
        synchronize(o)
        seconds += time.perf_counter() - start
        line = {"step": step, "loss": loss.item(), "seconds": seconds}
        if val.windows(o.seq):
            line["val_loss"] = validate(o, run, val)
            line["bits_per_byte"] = line["val_loss"] / math.log(2) * val.tokens / val.bytes
        print(json.dumps(line), flush=True)
        result.update(line)
        start = time.perf_counter()
    result["tok_s"] = o.steps * o.batch * o.seq * o.accumulate / seconds
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", choices=["speed", "learn"])
    parser.add_argument("--shape", choices=SHAPES, help="a known one; the others below override it")
    parser.add_argument("--family", choices=["gpt2", "llama"])
    for name in ("dim", "layers", "heads", "kv-heads", "hidden", "vocab", "context"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--tied", type=int, choices=[0, 1])
    parser.add_argument("--batch", type=int, default=32, help="0: the largest that fits (speed)")
    parser.add_argument("--most-batch", type=int, default=64, help="where that search begins")
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int,
                        help="speed: steps that do not count; learn: of the learning rate")
    parser.add_argument("--pad-vocab", type=int, default=64,
                        help="speed: the vocabulary is rounded up to a multiple; 0: as it is")
    parser.add_argument("--data", help="learn: a folder of `millrace data pack`")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--min-lr", type=float, default=-1)
    parser.add_argument("--schedule", choices=["cosine", "wsd", "constant"], default="cosine")
    parser.add_argument("--decay", type=float, default=0.2)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--beta1", type=float, default=0.9)
    parser.add_argument("--beta2", type=float, default=0.95)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--eval-every", type=int, default=500)
    parser.add_argument("--type", choices=["bf16", "f32"], default="bf16")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--json", action="store_true", help="it is JSON anyway")
    o = parser.parse_args()
    if o.device == "cuda" and not torch.cuda.is_available():
        print("torch_train.py: PyTorch sees no GPU", file=sys.stderr)
        return 3
    if o.mode == "learn" and not o.data:
        parser.error("learn needs --data")
    names = ("family", "dim", "layers", "heads", "kv_heads", "hidden", "vocab", "context", "tied")
    known = SHAPES[o.shape] if o.shape else ("llama", 256, 6, 8, None, None, 50304, 0, 1)
    for name, value in zip(names, known):
        if getattr(o, name) is None:
            setattr(o, name, value)
    o.kv_heads = o.kv_heads or o.heads
    gated = (8 * o.dim // 3 + 31) // 32 * 32
    o.hidden = o.hidden or (4 * o.dim if o.family == "gpt2" else gated)
    o.context, o.real_vocab = max(o.context, o.seq), o.vocab
    if o.warmup is None:
        o.warmup = 5 if o.mode == "speed" else -1
    print(json.dumps(speed(o) if o.mode == "speed" else learn(o)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
