#!/usr/bin/env python3
"""Trains the bundled model: a small Llama on stories of the storybook.

Reads a corpus (stories separated by <|endoftext|>), trains a byte-level BPE tokenizer and the
model, measures held-out nats per story against the corpus's exact entropy, and writes a Hugging
Face folder. `make.sh` beside this file runs it; docs/bundled-model.md tells the whole story.
"""
import argparse
import csv
import json
import math
import multiprocessing
import os
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # threads and forked workers do not mix

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

EOT = "<|endoftext|>"


def read_stories(path):
    with open(path, encoding="ascii") as f:
        stories = f.read().split("\n" + EOT + "\n")
    assert stories.pop() == "", f"{path}: does not end with {EOT}"
    return stories


# ---- tokenizer -----------------------------------------------------------------------------------


def train_tokenizer(stories, vocab):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[EOT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),  # all 256 bytes: any text encodes
        show_progress=False,
    )
    tokenizer.train_from_iterator(stories, trainer)
    eot = tokenizer.token_to_id(EOT)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{EOT} $A", pair=f"{EOT} $A {EOT} $B", special_tokens=[(EOT, eot)]
    )
    assert tokenizer.get_vocab_size() == vocab, tokenizer.get_vocab_size()
    return tokenizer


_job = None  # (tokenizer, stories), inherited by forked workers: nothing is copied


def _encode(span):
    tokenizer, stories = _job
    eot = tokenizer.token_to_id(EOT)
    ids, lengths = [], []
    for e in tokenizer.encode_batch(stories[span[0] : span[1]], add_special_tokens=False):
        ids.append(eot)
        ids.extend(e.ids)
        lengths.append(len(e.ids) + 1)
    return np.array(ids, np.int16), np.array(lengths, np.int64)


def encode(tokenizer, stories, processes):
    """All stories as one stream, each with EOT first; and where each begins.

    Forks, so it must come before the first use of the GPU.
    """
    global _job
    _job = (tokenizer, stories)
    spans = [(i, i + 4000) for i in range(0, len(stories), 4000)]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        done = pool.map(_encode, spans, chunksize=1)
    _job = None
    stream = np.concatenate([d[0] for d in done])
    starts = np.cumsum(np.concatenate([[0]] + [d[1] for d in done]))
    assert starts[-1] == len(stream)
    return stream, starts


# ---- model: Llama, with the tensor names of transformers -----------------------------------------


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = c.heads, c.kv_heads, c.dim // c.heads
        kv = self.kv_heads * self.head_dim
        self.q_proj = nn.Linear(c.dim, c.dim, bias=False)
        self.k_proj = nn.Linear(c.dim, kv, bias=False)
        self.v_proj = nn.Linear(c.dim, kv, bias=False)
        self.o_proj = nn.Linear(c.dim, c.dim, bias=False)

    def forward(self, x, cos, sin):  # x [batch, time, dim]; cos, sin [time, head_dim]
        b, t, d = x.shape

        def split(y, heads):  # -> [batch, heads, time, head_dim]
            return y.view(b, t, heads, self.head_dim).transpose(1, 2)

        def rotate(y):
            half = self.head_dim // 2
            turned = torch.cat((-y[..., half:], y[..., :half]), -1)
            return (y * cos + turned * sin).to(y.dtype)

        q = rotate(split(self.q_proj(x), self.heads))
        k = rotate(split(self.k_proj(x), self.kv_heads))
        v = split(self.v_proj(x), self.kv_heads)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, d))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.dim, c.hidden, bias=False)
        self.up_proj = nn.Linear(c.dim, c.hidden, bias=False)
        self.down_proj = nn.Linear(c.hidden, c.dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c.dim, c.eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = nn.RMSNorm(c.dim, c.eps)
        self.mlp = MLP(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab, c.dim)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm = nn.RMSNorm(c.dim, c.eps)
        head_dim = c.dim // c.heads
        inv = c.theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        angles = torch.outer(torch.arange(c.ctx).float(), inv)
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    std /= math.sqrt(2 * c.layers)  # the residual sum keeps its size with depth
                nn.init.normal_(p, std=std)

    def forward(self, tokens):  # [batch, time] -> logits [batch, time, vocab]
        x = self.embed_tokens(tokens)
        t = tokens.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:t], self.sin[:t])
        return F.linear(self.norm(x), self.embed_tokens.weight)  # tied


def hf_config(c):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": c.vocab,
        "hidden_size": c.dim,
        "intermediate_size": c.hidden,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.dim // c.heads,
        "max_position_embeddings": c.ctx,
        "rms_norm_eps": c.eps,
        "rope_theta": c.theta,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": "float16",
    }


def q8_bytes(model):
    """Size of the weights as q8_0 (34 bytes for 32 values); norms stay f32."""
    return sum(p.numel() * 34 // 32 if p.dim() == 2 else p.numel() * 4 for p in model.parameters())


# ---- training ------------------------------------------------------------------------------------


def learning_rate(done, step, peak, warmup):
    """Linear warm-up by steps, then a cosine over the share of the time that is spent."""
    cosine = 0.5 * (1 + math.cos(math.pi * done))
    return peak * min(1.0, (step + 1) / warmup) * (0.01 + 0.99 * cosine)


def train(model, stream, starts, c, device, seconds):
    """Trains for `seconds` of wall-clock time (or c.steps steps); a row begins with a story."""
    stream = torch.from_numpy(stream).to(device)
    last = int(np.searchsorted(starts, len(stream) - c.ctx - 1)) - 1
    starts = torch.from_numpy(starts[:last]).to(device)
    window = torch.arange(c.ctx + 1, device=device)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": c.decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=c.lr,
        betas=(0.9, 0.95),
        fused=device.type == "cuda",
    )

    def loss_of(rows):
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(rows[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())

    compiled = torch.compile(loss_of) if c.compile else loss_of
    generator = torch.Generator(device=device).manual_seed(c.seed)

    def batch():
        pick = torch.randint(len(starts), (c.batch,), device=device, generator=generator)
        return stream[starts[pick][:, None] + window].long()

    began = time.time()
    compiled(batch()).backward()  # compile outside of the measured time
    optimizer.zero_grad(set_to_none=True)
    if device.type == "cuda":
        torch.cuda.synchronize()
    print(f"compiled in {time.time() - began:.1f} s", flush=True)

    curve, began, step, done = [], time.time(), 0, 0.0
    recent = torch.zeros((), device=device)
    while done < 1.0:
        done = max((time.time() - began) / seconds, step / c.steps if c.steps else 0.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(min(done, 1.0), step, c.lr, c.warmup)
        loss = compiled(batch())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent += loss.detach()
        step += 1
        if step % c.log_every == 0 or done >= 1.0:
            # Reading the loss waits for the device, so the clock above cannot run far ahead of it.
            mean = recent.item() / (step % c.log_every or c.log_every)
            recent.zero_()
            if not math.isfinite(mean):
                raise SystemExit(f"step {step}: the loss is {mean}; lower --lr")
            spent = time.time() - began
            tokens = step * c.batch * c.ctx
            curve.append((step, tokens, round(spent, 2), mean))
            print(
                f"step {step}  loss {mean:.4f}  {tokens / spent / 1e3:.0f}k tok/s  "
                f"{spent:.0f}/{seconds:.0f} s",
                flush=True,
            )
    return curve, step, time.time() - began


# ---- what came out -------------------------------------------------------------------------------


@torch.no_grad()
def nats_per_story(forward, stream, starts, c, device):
    """-ln p of each story (its tokens and the closing EOT, after the opening one)."""
    nats, longest = [], int(np.diff(starts).max()) + 1
    assert longest - 1 <= c.ctx, f"a story has {longest} tokens"
    for i in range(0, len(starts) - 1, 64):
        rows = [stream[a:b] for a, b in zip(starts[i : i + 64], starts[i + 1 : i + 65])]
        tokens = np.zeros((len(rows), longest), np.int64)  # EOT is 0: also the closing one
        mask = np.zeros((len(rows), longest - 1), np.float32)
        for r, row in enumerate(rows):
            tokens[r, : len(row)] = row
            mask[r, : len(row)] = 1
        tokens = torch.from_numpy(tokens).to(device)
        logits = forward(tokens[:, :-1]).float()
        loss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
        nats.extend((loss * torch.from_numpy(mask).to(device)).sum(1).tolist())
    return np.array(nats)


@torch.no_grad()
def sample(model, tokenizer, count, c, device, temperature, seed):
    torch.manual_seed(seed)
    rows = torch.zeros((count, 1), dtype=torch.long, device=device)
    ended = torch.zeros(count, dtype=torch.bool, device=device)
    for _ in range(c.ctx - 1):
        logits = model(rows)[:, -1].float() / temperature
        pick = torch.multinomial(logits.softmax(-1), 1)
        pick[ended] = 0
        rows = torch.cat((rows, pick), 1)
        ended |= pick[:, 0] == 0
        if ended.all():
            break
    texts = []
    for row in rows.tolist():
        row = row[1:]
        texts.append(tokenizer.decode(row[: row.index(0)] if 0 in row else row))
    return texts


def write_folder(model, tokenizer, c, out):
    from safetensors.torch import save_file

    tensors = {f"model.{k}": v.half().contiguous().cpu() for k, v in model.state_dict().items()}
    save_file(tensors, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    os.chmod(os.path.join(out, "model.safetensors"), 0o644)
    tokenizer.save(os.path.join(out, "tokenizer.json"))

    def dump(name, value):
        with open(os.path.join(out, name), "w") as f:
            json.dump(value, f, indent=2)
            f.write("\n")

    dump("config.json", hf_config(c))
    dump(
        "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": EOT,
            "eos_token": EOT,
            "add_bos_token": True,
            "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": c.ctx,
        },
    )
    dump(
        "generation_config.json",
        {"bos_token_id": 0, "eos_token_id": 0, "do_sample": True, "temperature": 0.8, "top_k": 40},
    )


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--corpus", required=True)
    p.add_argument("--held-out", required=True)
    p.add_argument("--held-out-nats", help="exact -ln P of each held-out story, one a line")
    p.add_argument("--entropy", type=float, required=True, help="exact nats per story")
    p.add_argument("--out", required=True)
    p.add_argument("--seconds", type=float, default=240, help="training time, without compiling")
    p.add_argument("--deadline", type=float, default=0, help="Unix time by which all must be done")
    p.add_argument("--steps", type=int, default=0, help="stop after so many steps, if earlier")
    p.add_argument("--vocab", type=int, default=2048)
    p.add_argument("--dim", type=int, default=256)
    p.add_argument("--hidden", type=int, default=704)
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--heads", type=int, default=8)
    p.add_argument("--kv-heads", type=int, default=4)
    p.add_argument("--ctx", type=int, default=512)
    p.add_argument("--batch", type=int, default=256, help="rows of --ctx tokens a step")
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--decay", type=float, default=0.05)
    p.add_argument("--warmup", type=int, default=200)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--log-every", type=int, default=50)
    p.add_argument("--samples", type=int, default=200, help="stories to sample for the checker")
    p.add_argument("--no-compile", dest="compile", action="store_false")
    c = p.parse_args()
    c.eps, c.theta = 1e-5, 10000.0
    for what in ("dim", "hidden"):
        if getattr(c, what) % 32:
            p.error(f"--{what} must be a multiple of 32, the block of q8_0")
    began = time.time()
    clock = {}

    def lap(name):
        clock[name] = round(time.time() - began - sum(clock.values()), 1)
        print(f"[{name}: {clock[name]} s]", flush=True)

    os.makedirs(c.out, exist_ok=True)
    stories = read_stories(c.corpus)
    held_out = read_stories(c.held_out)
    lap("read")
    tokenizer = train_tokenizer(stories[:20000], c.vocab)
    lap("tokenizer")
    workers = os.cpu_count() or 1
    stream, starts = encode(tokenizer, stories, workers)
    held_stream, held_starts = encode(tokenizer, held_out, min(workers, 4))
    for i in range(min(50, len(held_out))):
        ids = held_stream[held_starts[i] + 1 : held_starts[i + 1]].tolist()
        assert tokenizer.decode(ids) == held_out[i], "the tokenizer does not round-trip"
    del stories
    lap("encode")
    print(f"{len(starts) - 1} stories, {len(stream)} tokens", flush=True)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(c.seed)
    torch.set_float32_matmul_precision("high")
    model = Llama(c).to(device)
    parameters = sum(x.numel() for x in model.parameters())
    print(f"{parameters} parameters, {q8_bytes(model)} bytes as q8_0", flush=True)
    seconds = c.seconds
    if c.deadline:
        seconds = max(30.0, min(seconds, c.deadline - time.time() - 120))  # compile, measure, write
    curve, steps, spent = train(model, stream, starts, c, device, seconds)
    lap("train")

    model.eval()
    write_folder(model, tokenizer, c, c.out)
    with open(os.path.join(c.out, "loss.csv"), "w", newline="") as f:
        writer = csv.writer(f, lineterminator="\n")
        writer.writerow(["step", "tokens", "seconds", "loss_nats_per_token"])
        writer.writerows(curve)

    # Measured with the weights as they are in the file.
    for x in model.parameters():
        x.data = x.data.half().float()
    nats = nats_per_story(model, held_stream, held_starts, c, device)
    tokens = len(held_stream)  # every story's words and its closing EOT
    metrics = {
        "parameters": parameters,
        "q8_0_weight_bytes": q8_bytes(model),
        "train_stories": len(starts) - 1,
        "train_stream_tokens": int(len(stream)),
        "steps": steps,
        "tokens_seen": steps * c.batch * c.ctx,
        "train_seconds": round(spent, 1),
        "final_train_loss": curve[-1][3],
        "held_out_stories": len(nats),
        "held_out_tokens": tokens,
        "exact_entropy_nats_per_story": c.entropy,
        "held_out_nats_per_story": float(nats.mean()),
        "held_out_standard_error": float(nats.std(ddof=1) / math.sqrt(len(nats))),
        "held_out_nats_per_token": float(nats.sum() / tokens),
    }
    if c.held_out_nats:
        exact = np.loadtxt(c.held_out_nats)
        assert len(exact) == len(nats)
        excess = nats - exact
        metrics["held_out_exact_nats_per_story"] = float(exact.mean())
        metrics["excess_nats_per_story"] = float(excess.mean())
        metrics["excess_standard_error"] = float(excess.std(ddof=1) / math.sqrt(len(excess)))
    lap("measure")

    # The same file through transformers: guards names, rotation and configuration.
    try:
        from transformers import AutoModelForCausalLM

        reference = AutoModelForCausalLM.from_pretrained(c.out, dtype=torch.float32)
        reference = reference.to(device).eval()
        n = min(64, len(nats))
        theirs = nats_per_story(
            lambda t: reference(input_ids=t).logits, held_stream, held_starts[: n + 1], c, device
        )
        metrics["transformers_max_difference_nats"] = float(np.abs(theirs - nats[:n]).max())
        print("against transformers:", metrics["transformers_max_difference_nats"], flush=True)
        # TF32 products (10-bit mantissa) may differ by a few thousandths per token at most.
        assert metrics["transformers_max_difference_nats"] < 0.5, "transformers reads another model"
    except ImportError:
        print("transformers is not installed: not compared")
    lap("transformers")

    metrics["samples_temperature"] = 1.0
    texts = sample(model, tokenizer, c.samples, c, device, 1.0, c.seed)
    with open(os.path.join(c.out, "samples.txt"), "w") as f:
        for text in texts:
            f.write(text + "\n" + EOT + "\n")
    lap("sample")
    metrics["seconds"] = clock
    metrics["settings"] = {k: v for k, v in vars(c).items() if isinstance(v, (int, float, bool))}
    metrics["device"] = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    metrics["torch"] = torch.__version__
    with open(os.path.join(c.out, "metrics.json"), "w") as f:
        json.dump(metrics, f, indent=2)
        f.write("\n")
    print(json.dumps({k: v for k, v in metrics.items() if k != "settings"}, indent=2))
    print("\n\n".join(texts[:3]))


if __name__ == "__main__":
    main()
