#!/usr/bin/env python3
"""Make the tiny random models of this folder and record their logits with transformers.

    pip install torch transformers safetensors tokenizers numpy
    python3 tests/reference/make_reference.py [--out DIR] [--only NAME ...]

Each variant becomes DIR/<name>/ in the Hugging Face layout plus expected.safetensors
(input_ids i64 [S], logits f32 [S, vocab]) and, for those of TRAINED, train.safetensors: gradients
and losses of training it (see record_training). README.md says what each one is for.
`--train-only` writes the latter alone, for folders that are there.

Weights come from a seeded generator and lie on a grid of multiples of a power of two, at most 127
steps from zero, with a full step of +-127 in every block of 32. Such a number is exact in f32, f16,
bf16 *and* q8_0, so converting a fixture to any of these changes no weight and the same logits stay
the truth.

Logits are computed in f64 all the way: transformers casts norms, softmax and RoPE to f32 by hand,
and `Float64` below turns every such request into f64. The plain f32 forward is run too and must
agree to f32 accuracy.
"""

import argparse
import json
import pathlib
import shutil
import zlib

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch.overrides import TorchFunctionMode
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

BLOCK = 32  # q8_0 block length
VOCAB = 48  # for the variants without a tokenizer
SPM_VOCAB = 288
BYTE_BPE_VOCAB = 288


class Float64(TorchFunctionMode):
    """Inside this mode code that asks torch for float32 gets float64."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.float:
            return args[0].double()

        def widen(value):
            return torch.float64 if value is torch.float32 else value

        return func(*map(widen, args), **{k: widen(v) for k, v in (kwargs or {}).items()})


# ---- weights ------------------------------------------------------------------------------------


def on_grid(rng, shape, exponent, in_axis):
    """Random multiples of 2**exponent, normal with sigma 45 steps, a +-127 in each block of 32
    along `in_axis` (the axis that q8_0 quantises once the weight is stored row by row)."""
    steps = np.clip(np.rint(rng.standard_normal(shape) * 45), -127, 127)
    rows = np.moveaxis(steps, in_axis, -1).copy()
    blocks = rows.reshape(-1, BLOCK)
    peak = np.abs(blocks).argmax(axis=1)
    at = (np.arange(len(blocks)), peak)
    blocks[at] = np.where(blocks[at] < 0, -127, 127)
    steps = np.moveaxis(blocks.reshape(rows.shape), -1, in_axis)
    return np.ascontiguousarray(steps * 2.0**exponent).astype(np.float32)


def random_weight(rng, name, shape):
    """Scales are chosen so that attention is peaked (scores of a few units), biases and norm
    weights matter, and logits have a standard deviation of about 2."""
    if len(shape) == 1:
        if name.endswith("bias"):
            return (np.rint(rng.uniform(-100, 100, shape)) * 2.0**-8).astype(np.float32)
        return (1 + np.rint(rng.uniform(-60, 60, shape)) * 2.0**-7).astype(np.float32)
    conv1d = any(part in name for part in (".c_attn.", ".c_proj.", ".c_fc."))  # stored [in, out]
    double = any(part in name for part in ("q_proj", "c_attn", "query_key_value", "embed_tokens",
                                           "wte", "embed_in", "embed_out", "lm_head"))
    return on_grid(rng, shape, -7 if double else -8, 0 if conv1d else len(shape) - 1)


def fill(model, seed):
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            parameter.copy_(torch.from_numpy(random_weight(rng, name, tuple(parameter.shape))))
    return rng


# ---- logits -------------------------------------------------------------------------------------


def truth(model_class, config, weights, ids):
    """Logits [S, vocab] in f64 and in f32."""
    torch.set_default_dtype(torch.float64)
    try:
        with Float64(), torch.no_grad():
            model = model_class(config).eval()
            model.load_state_dict(weights, strict=False)
            assert all(b.dtype != torch.float32 for _, b in model.named_buffers())
            f64 = model(ids[None]).logits[0]
    finally:
        torch.set_default_dtype(torch.float32)
    assert f64.dtype == torch.float64
    model = model_class(config).eval()
    model.load_state_dict(weights, strict=False)
    with torch.no_grad():
        f32 = model(ids[None]).logits[0]
    return f64, f32


# ---- config.json dialects -----------------------------------------------------------------------


def old_dialect(config):
    """The format of files written before transformers 5: rope_theta and rope_scaling at the top
    level (rotary_pct and rotary_emb_base for GPT-NeoX), torch_dtype, no head_dim that can be
    derived."""
    rope = config.pop("rope_parameters", None)
    if rope is not None:
        rope = dict(rope)
        theta = rope.pop("rope_theta")
        rotary = rope.pop("partial_rotary_factor", None)
        kind = rope.pop("rope_type")
        if config["model_type"] == "gpt_neox":
            config["rotary_emb_base"] = int(theta)
            config["rotary_pct"] = rotary
        else:
            config["rope_theta"] = theta
            config["rope_scaling"] = None
        if kind == "llama3":
            config["rope_scaling"] = {**rope, "rope_type": kind}
        elif kind != "default":
            config["rope_scaling"] = {**rope, "type": kind}
    if config.get("head_dim") == config.get("hidden_size", 0) // config.get("num_attention_heads", 1):
        del config["head_dim"]
    config.pop("layer_types", None)
    config["torch_dtype"] = config.pop("dtype", "float32")
    config["transformers_version"] = "4.40.0"
    return dict(sorted(config.items()))


# ---- tokenizers ---------------------------------------------------------------------------------

TEXTS = ["the man", "Once upon a time, there was a little mill.", " two  spaces ", "one\ntwo",
         "na\u00efve caf\u00e9 \U0001f642", "", "<s>"]


def spm_tokenizer():
    """SentencePiece-style BPE like Llama 2's: pieces with U+2581 for a blank, byte fallback."""
    merges = [("\u2581", "t"), ("h", "e"), ("\u2581", "a"), ("i", "n"), ("\u2581t", "he"),
              ("l", "l"), ("o", "n"), ("e", "r"), ("\u2581", "m"), ("\u2581", "w")]
    letters = list("\u2581etaoinshrlwmd.,")
    vocab = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    vocab += [a + b for a, b in merges] + letters
    vocab += [f"<extra_{i}>" for i in range(SPM_VOCAB - len(vocab))]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(vocab)}, merges, unk_token="<unk>",
                                     fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in vocab[:3]])
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False,
                "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "legacy": False}
    return tokenizer, settings


def byte_bpe_tokenizer():
    """Byte-level BPE like GPT-2's."""
    # The visible characters for the 256 bytes in id order, as defined by every byte-level BPE.
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    letters = [chr(b) for b in plain] + [chr(256 + i) for i in range(len(rest))]
    blank = chr(256 + rest.index(0x20))
    merges = [(blank, "t"), ("h", "e"), (blank, "a"), ("i", "n"), (blank + "t", "he"), ("r", "e"),
              ("o", "n"), ("e", "r"), (blank, "m"), (blank, "w"), ("l", "l"), ("n", "d"),
              (blank + "a", "nd"), ("in", "g"), (blank, "o"), (blank + "o", "n")]
    vocab = letters + [a + b for a, b in merges]
    vocab += [f"<extra_{i}>" for i in range(BYTE_BPE_VOCAB - 1 - len(vocab))] + ["<|endoftext|>"]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(vocab)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    settings = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False,
                "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
                "unk_token": "<|endoftext|>"}
    return tokenizer, settings


def write_tokenizer(folder, make):
    tokenizer, settings = make()
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", settings)
    vectors = [{"text": t, "ids": tokenizer.encode(t).ids,
                "ids_without_special": tokenizer.encode(t, add_special_tokens=False).ids}
               for t in TEXTS]
    write_json(folder / "tokenizer_vectors.json", vectors)


# ---- the variants -------------------------------------------------------------------------------


def llama_shape(**more):
    shape = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, vocab_size=VOCAB, max_position_embeddings=64,
                 rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
    shape.update(more)
    return shape


def neox_shape(**more):
    shape = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                 vocab_size=VOCAB, max_position_embeddings=64, hidden_act="gelu",
                 tie_word_embeddings=False, bos_token_id=0, eos_token_id=0, hidden_dropout=0.0,
                 rope_parameters={"rope_type": "default", "rope_theta": 10000.0,
                                  "partial_rotary_factor": 0.25})
    shape.update(more)
    return shape


def gpt2_shape(**more):
    shape = dict(n_embd=32, n_inner=64, n_layer=2, n_head=4, n_positions=64, vocab_size=VOCAB,
                 activation_function="gelu_new", bos_token_id=VOCAB - 1, eos_token_id=VOCAB - 1)
    shape.update(more)
    return shape


def rope(kind, theta, **more):
    return {"rope_type": kind, "rope_theta": theta, **more}


# name: (model class, config, options). Options: old = the older config.json format, dtype = type in
# model.safetensors (default f32), shards, tokens (S), tokenizer, hub = tensors in files on the hub
# that a loader must ignore.
VARIANTS = {
    "llama2": (LlamaForCausalLM,
               LlamaConfig(**llama_shape(vocab_size=SPM_VOCAB, tie_word_embeddings=True)),
               dict(tokens=24, tokenizer=spm_tokenizer)),
    "llama3": (LlamaForCausalLM,
               LlamaConfig(**llama_shape(
                   num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512,
                   rope_parameters=rope("llama3", 500000.0, factor=8.0, low_freq_factor=1.0,
                                        high_freq_factor=4.0,
                                        original_max_position_embeddings=64))),
               dict(old=True, shards=2)),
    "llama-linear": (LlamaForCausalLM,
                     LlamaConfig(**llama_shape(
                         num_hidden_layers=1, max_position_embeddings=256, rms_norm_eps=1e-2,
                         rope_parameters=rope("linear", 10000.0, factor=4.0))),
                     dict(old=True, hub="inv_freq")),
    "llama-yarn": (LlamaForCausalLM,
                   LlamaConfig(**llama_shape(
                       num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
                       max_position_embeddings=256,
                       rope_parameters=rope("yarn", 10000.0, factor=4.0, attention_factor=1.25,
                                            beta_fast=2.0, beta_slow=0.25,
                                            original_max_position_embeddings=64))),
                   dict()),
    "mistral": (MistralForCausalLM,
                MistralConfig(**llama_shape(sliding_window=12)),
                dict(old=True, dtype="bfloat16")),
    "qwen2": (Qwen2ForCausalLM,
              Qwen2Config(**llama_shape(tie_word_embeddings=True, rms_norm_eps=1e-6,
                                        rope_parameters=rope("default", 1000000.0))),
              dict(old=True)),
    "qwen2-yarn": (Qwen2ForCausalLM,
                   Qwen2Config(**llama_shape(
                       num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
                       max_position_embeddings=256, tie_word_embeddings=True,
                       rope_parameters=rope("yarn", 10000.0, factor=4.0,
                                            original_max_position_embeddings=64))),
                   dict(old=True)),
    "qwen2-window": (Qwen2ForCausalLM,
                     Qwen2Config(**llama_shape(
                         num_hidden_layers=4, intermediate_size=32, rms_norm_eps=1e-6,
                         use_sliding_window=True, sliding_window=12,
                         layer_types=["full_attention", "sliding_attention"] * 2)),
                     dict()),
    "qwen3": (Qwen3ForCausalLM,
              Qwen3Config(**llama_shape(num_hidden_layers=1, head_dim=16, rms_norm_eps=1e-6,
                                        rope_parameters=rope("default", 1000000.0))),
              dict()),
    "gpt2": (GPT2LMHeadModel,
             GPT2Config(**gpt2_shape(vocab_size=BYTE_BPE_VOCAB, bos_token_id=BYTE_BPE_VOCAB - 1,
                                     eos_token_id=BYTE_BPE_VOCAB - 1)),
             dict(tokens=24, tokenizer=byte_bpe_tokenizer)),
    "gpt2-hub": (GPT2LMHeadModel,
                 GPT2Config(**gpt2_shape(n_layer=1, n_positions=40)),
                 dict(old=True, hub="mask")),
    "gpt-neox": (GPTNeoXForCausalLM,
                 GPTNeoXConfig(**neox_shape(use_parallel_residual=True)),
                 dict(old=True)),
    "gpt-neox-seq": (GPTNeoXForCausalLM,
                     GPTNeoXConfig(**neox_shape(num_hidden_layers=1, use_parallel_residual=False)),
                     dict(dtype="float16", hub="mask")),
}


# Variants whose training is recorded: every family, tied and untied, both residuals, windows,
# scaling.
TRAINED = ["llama2", "llama3", "mistral", "qwen2", "qwen2-window", "qwen3", "gpt2", "gpt-neox",
           "gpt-neox-seq"]
TRAIN_STEPS = 10
SAMPLED = 192  # kept elements of a gradient


def record_training(name, folder):
    """train.safetensors, all computed in f64:
    ids     i64 [2, 17]: two sequences; inputs are the first 16 of each, targets the last 16
    losses  f32 [11]: mean loss before each of 10 steps of AdamW on that batch, and after the last.
            lr 0.002, betas 0.9 and 0.95, eps 1e-8, weight decay 0.1 for tensors of rank 2, gradients
            clipped to a norm of 1 (scaled by 1 / norm)
    grad_norm f32 [1]: of all gradients before the first step
    NAME    f32 [1 + n]: of the gradient of the tensor NAME before the first step, its norm, then
            the elements 0, k, 2k, ... with k = ceil(size / 192)"""
    model_class, config, _ = VARIANTS[name]
    config._attn_implementation = "eager"
    rng = np.random.default_rng(zlib.crc32(name.encode()) + 1)
    ids = torch.from_numpy(rng.integers(0, config.vocab_size, (2, 17)))
    out = {"ids": ids.to(torch.int64)}
    weights = {k: v.detach().double() for k, v in AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32).state_dict().items()}
    torch.set_default_dtype(torch.float64)
    try:
        with Float64():
            model = model_class(config)
            model.eval()  # no dropout
            model.load_state_dict(weights, strict=False)
            parameters = dict(model.named_parameters())
            groups = [{"params": [p for p in parameters.values() if p.dim() == 2],
                       "weight_decay": 0.1},
                      {"params": [p for p in parameters.values() if p.dim() != 2],
                       "weight_decay": 0.0}]
            adamw = torch.optim.AdamW(groups, lr=0.002, betas=(0.9, 0.95), eps=1e-8)
            losses = []
            for step in range(TRAIN_STEPS + 1):
                logits = model(ids[:, :-1]).logits
                loss = torch.nn.functional.cross_entropy(
                    logits.reshape(-1, config.vocab_size), ids[:, 1:].reshape(-1))
                losses.append(loss.item())
                if step == TRAIN_STEPS:
                    break
                adamw.zero_grad()
                loss.backward()
                norm = torch.sqrt(sum((p.grad ** 2).sum() for p in parameters.values()))
                if step == 0:
                    out["grad_norm"] = norm.detach().reshape(1)
                    for key, p in parameters.items():
                        assert p.grad.dtype == torch.float64
                        flat = p.grad.reshape(-1)
                        sampled = flat[::-(-len(flat) // SAMPLED)]
                        out[key] = torch.cat([flat.norm().reshape(1), sampled])
                for p in parameters.values():
                    p.grad *= min(1.0, 1.0 / norm.item())
                adamw.step()
    finally:
        torch.set_default_dtype(torch.float32)
    out["losses"] = torch.tensor(losses, dtype=torch.float64)
    out = {k: v if k == "ids" else v.to(torch.float32) for k, v in out.items()}
    save_file(out, folder / "train.safetensors")
    print(f"{name}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, |gradient| {out['grad_norm'].item():.3f}")


def hub_extras(kind, weights, config):
    """Buffers that older transformers versions saved with the weights."""
    out = dict(weights)
    if kind == "inv_freq":
        dim = config.hidden_size // config.num_attention_heads
        for layer in range(config.num_hidden_layers):
            out[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = torch.tensor(
                [10000.0 ** (-2 * i / dim) for i in range(dim // 2)], dtype=torch.float32)
    elif kind == "mask" and config.model_type == "gpt2":
        # The oldest GPT-2 files also lack the "transformer." prefix.
        out = {k.removeprefix("transformer."): v for k, v in out.items()}
        n = config.n_positions
        for layer in range(config.n_layer):
            out[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(n, n)).reshape(1, 1, n, n)
    elif kind == "mask":
        n = config.max_position_embeddings
        for layer in range(config.num_hidden_layers):
            prefix = f"gpt_neox.layers.{layer}.attention."
            out[prefix + "bias"] = torch.tril(torch.ones(n, n, dtype=torch.bool)).reshape(1, 1, n, n)
            out[prefix + "masked_bias"] = torch.tensor(-1e9)
            out[prefix + "rotary_emb.inv_freq"] = torch.tensor([1.0, 0.01])
    return out


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=True) + "\n")


def write_weights(folder, weights, shards):
    weights = {k: v.contiguous() for k, v in weights.items()}
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    index = {"metadata": {"total_size": sum(v.numel() * v.element_size() for v in weights.values())},
             "weight_map": {}}
    per_shard = -(-len(names) // shards)
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = names[shard * per_shard:(shard + 1) * per_shard]
        save_file({n: weights[n] for n in part}, folder / file, metadata={"format": "pt"})
        index["weight_map"].update({n: file for n in part})
    write_json(folder / "model.safetensors.index.json", index)


def make(name, out):
    model_class, config, options = VARIANTS[name]
    config._attn_implementation = "eager"
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)

    model = model_class(config).eval()
    rng = fill(model, zlib.crc32(name.encode()))
    weights = {k: v.detach().clone() for k, v in model.state_dict().items()}
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight")
    tokens = options.get("tokens", 40)
    ids = torch.from_numpy(rng.integers(0, config.vocab_size, tokens))
    f64, f32 = truth(model_class, config, weights, ids)

    # f32 against f64: rounding of about a hundred dependent sums of up to 64 terms; a wrong f64
    # path (or a misread config) is off by orders of magnitude more.
    scale = f64.abs().max().item()
    error = (f64 - f32).abs().max().item()
    assert error < 1e-4 * scale, (name, error, scale)

    dtype = options.get("dtype", "float32")
    stored = {k: v.to(getattr(torch, dtype)) for k, v in weights.items()}
    assert all(torch.equal(stored[k].float(), weights[k]) for k in weights), "grid is not exact"
    if "hub" in options:
        stored = hub_extras(options["hub"], stored, config)
    write_weights(folder, stored, options.get("shards", 1))

    described = json.loads(config.to_json_string())
    described["architectures"] = [model_class.__name__]
    described["dtype"] = dtype
    described = dict(sorted(described.items()))
    write_json(folder / "config.json", old_dialect(described) if options.get("old") else described)
    save_file({"input_ids": ids.to(torch.int64), "logits": f64.to(torch.float32).contiguous()},
              folder / "expected.safetensors")
    if "tokenizer" in options:
        write_tokenizer(folder, options["tokenizer"])

    # The written folder must give transformers the same model.
    again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                 attn_implementation="eager").eval()
    with torch.no_grad():
        reread = again(ids[None]).logits[0]
    difference = (reread - f32).abs().max().item()
    assert difference < 1e-5 * scale, (name, "folder does not reproduce the model", difference)

    size = sum(p.stat().st_size for p in folder.iterdir())
    top = torch.softmax(f64, -1).max(-1).values.mean().item()
    print(f"{name:14} {size / 1024:7.1f} KiB  logits std {f64.std().item():5.2f} max {scale:5.2f}"
          f"  mean top p {top:.2f}  |f32-f64| {error:.1e}")
    return size


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    parser.add_argument("--only", nargs="+", choices=sorted(VARIANTS), default=sorted(VARIANTS))
    parser.add_argument("--train-only", action="store_true")
    arguments = parser.parse_args()
    if not arguments.train_only:
        total = sum(make(name, arguments.out) for name in arguments.only)
        print(f"{'sum':14} {total / 1024:7.1f} KiB")
    for name in arguments.only:
        if name in TRAINED:
            record_training(name, arguments.out / name)


if __name__ == "__main__":
    main()
