#!/usr/bin/env python3
"""Make the tiny models of this folder that fill in tokens, and record their logits.

    pip install torch transformers safetensors tokenizers numpy
    python3 tests/reference/make_diffusion.py [--out DIR] [--only NAME ...]

transformers has none of these families, but it has their layers: SDAR's are Qwen3's, those of
Fast-dLLM v2 and Dream are Qwen2's, LLaDA's are Llama's under other names. So a model of those
layers is made as make_reference.py makes it, and given an attention mask of our own: block-causal
(a query sees its whole block and all blocks before it) or full. config.json is written in the words
of the published models.

About a third of the tokens are the mask, as in decoding. Logits are those of the row, whether the
family shifts them or not.
"""

import argparse
import pathlib
import zlib

import torch
from safetensors.torch import load_file, save_file
from transformers import (LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM)

from make_reference import (VOCAB, Float64, fill, llama_shape, rope, write_json, write_weights)

MASK = VOCAB - 1
TOKENS = 40  # not a multiple of the blocks of 16 and 32

LLADA_NAMES = [
    ("model.embed_tokens.", "model.transformer.wte."),
    ("model.layers.", "model.transformer.blocks."),
    ("model.norm.", "model.transformer.ln_f."),
    ("lm_head.", "model.transformer.ff_out."),
    (".self_attn.o_proj.", ".attn_out."),
    (".self_attn.", "."),
    (".mlp.gate_proj.", ".ff_proj."),  # the one with the activation
    (".mlp.up_proj.", ".up_proj."),
    (".mlp.down_proj.", ".ff_out."),
    (".input_layernorm.", ".attn_norm."),
    (".post_attention_layernorm.", ".ff_norm."),
]


def llada_name(name):
    for ours, theirs in LLADA_NAMES:
        name = name.replace(ours, theirs)
    return name


def described(config, architecture, model_type, **more):
    """config.json as the published models of Qwen's kind have it."""
    out = dict(architectures=[architecture], model_type=model_type, attention_dropout=0.0,
               bos_token_id=1, eos_token_id=2, hidden_act="silu", hidden_size=config.hidden_size,
               initializer_range=0.02, intermediate_size=config.intermediate_size,
               max_position_embeddings=config.max_position_embeddings,
               num_attention_heads=config.num_attention_heads,
               num_hidden_layers=config.num_hidden_layers,
               num_key_value_heads=config.num_key_value_heads, rms_norm_eps=config.rms_norm_eps,
               rope_scaling=None, rope_theta=config.rope_parameters["rope_theta"],
               tie_word_embeddings=config.tie_word_embeddings, torch_dtype="float32",
               transformers_version="4.52.4", use_cache=False, vocab_size=config.vocab_size)
    out.update(more)
    return out


def sdar_config(config, block, **more):
    return described(config, "SDARForCausalLM", "sdar", attention_bias=False,
                     attn_implementation="flex_attention", block_size=block, debug=False, ep_size=1,
                     fuse_cross_entropy=True, head_dim=config.head_dim, mask_token_id=MASK,
                     max_window_layers=config.num_hidden_layers, micro_forward=False,
                     skip_checkpoint=False, sliding_window=None, use_deepep=False,
                     use_sliding_window=False, **more)


def fast_config(config, block):
    return described(config, "Fast_dLLM_QwenForCausalLM", "Fast_dLLM_Qwen", bd_size=block,
                     layer_types=["full_attention"] * config.num_hidden_layers, mask_token_id=MASK,
                     max_window_layers=config.num_hidden_layers, sliding_window=None,
                     use_sliding_window=False)


def dream_config(config, _):
    return described(config, "DreamModel", "Dream", mask_token_id=MASK, max_window_layers=28,
                     pad_token_id=0, sliding_window=None, use_mrope=False, use_sliding_window=False)


def llada_config(config, _):
    return dict(
        activation_type="silu", alibi=False, alibi_bias_max=8.0, architectures=["LLaDAModelLM"],
        attention_dropout=0.0, attention_layer_norm=False, attention_layer_norm_with_affine=True,
        bias_for_layer_norm=False, block_group_size=1, block_type="llama",
        d_model=config.hidden_size, embedding_dropout=0.0, embedding_size=config.vocab_size,
        eos_token_id=2, flash_attention=False, include_bias=False, include_qkv_bias=False,
        init_cutoff_factor=None, init_device="meta", init_fn="mitchell", init_std=0.02,
        input_emb_norm=False, layer_norm_type="rms", layer_norm_with_affine=True,
        mask_token_id=MASK, max_sequence_length=config.max_position_embeddings,
        mlp_hidden_size=config.intermediate_size, mlp_ratio=4, model_type="llada",
        multi_query_attention=None, n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads, n_layers=config.num_hidden_layers, pad_token_id=2,
        precision="amp_bf16", residual_dropout=0.0, rms_norm_eps=config.rms_norm_eps, rope=True,
        rope_full_precision=True, rope_theta=config.rope_parameters["rope_theta"],
        scale_logits=False, transformers_version="4.46.3", use_cache=False,
        vocab_size=config.vocab_size - 2, weight_tying=config.tie_word_embeddings)


def qwen_shape(**more):
    return llama_shape(intermediate_size=32, rms_norm_eps=1e-6,
                       rope_parameters=rope("default", 1000000.0), **more)


# name: (class of the layers, its config, block (0: full attention), config.json, tensor names)
VARIANTS = {
    "sdar": (Qwen3ForCausalLM, Qwen3Config(**qwen_shape(head_dim=16)), 16, sdar_config, str),
    "sdar-llama": (LlamaForCausalLM,
                   LlamaConfig(**llama_shape(intermediate_size=32, tie_word_embeddings=True,
                                             rope_parameters=rope("default", 10000.0))),
                   4, lambda config, block: sdar_config(config, block, qk_norm=False), str),
    "fast-dllm": (Qwen2ForCausalLM, Qwen2Config(**qwen_shape(tie_word_embeddings=True)), 32,
                  fast_config, str),
    "llada": (LlamaForCausalLM,
              LlamaConfig(**llama_shape(intermediate_size=32,
                                        rope_parameters=rope("default", 500000.0))),
              0, llada_config, llada_name),
    "dream": (Qwen2ForCausalLM, Qwen2Config(**qwen_shape()), 0, dream_config, str),
}


def visible(block):
    """[S, S], True if a query (row) sees a key (column)."""
    at = torch.arange(TOKENS)
    if block == 0:
        return torch.ones(TOKENS, TOKENS, dtype=torch.bool)
    return at[None, :] // block <= at[:, None] // block


def logits(model, ids, seen, dtype):
    mask = torch.zeros(1, 1, TOKENS, TOKENS, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    with torch.no_grad():
        return model(ids[None], attention_mask=mask).logits[0]


def truth(model_class, config, weights, ids, seen):
    """Logits [S, vocab] in f64 and in f32."""
    torch.set_default_dtype(torch.float64)
    try:
        with Float64():
            model = model_class(config).eval()
            model.load_state_dict(weights, strict=False)
            assert all(b.dtype != torch.float32 for _, b in model.named_buffers())
            f64 = logits(model, ids, seen, torch.float64)
    finally:
        torch.set_default_dtype(torch.float32)
    assert f64.dtype == torch.float64
    model = model_class(config).eval()
    model.load_state_dict(weights, strict=False)
    return f64, logits(model, ids, seen, torch.float32)


def make(name, out):
    model_class, config, block, describe, rename = VARIANTS[name]
    config._attn_implementation = "eager"
    folder = out / name
    # Gradients recorded by other programs stay.
    for file in ("config.json", "model.safetensors", "expected.safetensors"):
        (folder / file).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)

    model = model_class(config).eval()
    rng = fill(model, zlib.crc32(name.encode()))
    weights = {k: v.detach().clone() for k, v in model.state_dict().items()}
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight")
    ids = torch.from_numpy(rng.integers(0, MASK, TOKENS))
    ids[torch.from_numpy(rng.random(TOKENS) < 0.33)] = MASK
    f64, f32 = truth(model_class, config, weights, ids, visible(block))
    scale = f64.abs().max().item()
    error = (f64 - f32).abs().max().item()
    assert error < 1e-4 * scale, (name, error, scale)
    # The mask matters: another one gives entirely different results.
    for other in {0, 1, 8, 16, 32} - {block}:
        moved = (truth(model_class, config, weights, ids, visible(other))[0] - f64).abs().max()
        assert moved > 1, (name, other, moved)

    write_weights(folder, {rename(k): v for k, v in weights.items()}, 1)
    write_json(folder / "config.json", describe(config, block))
    save_file({"input_ids": ids.to(torch.int64), "logits": f64.to(torch.float32).contiguous()},
              folder / "expected.safetensors")
    again = load_file(folder / "model.safetensors")
    assert len(again) == len(weights) and len(set(map(rename, weights))) == len(weights)
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{name:14} {size / 1024:7.1f} KiB  logits std {f64.std().item():5.2f} max {scale:5.2f}"
          f"  |f32-f64| {error:.1e}")
    return size


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    parser.add_argument("--only", nargs="+", choices=sorted(VARIANTS), default=sorted(VARIANTS))
    arguments = parser.parse_args()
    total = sum(make(name, arguments.out) for name in arguments.only)
    print(f"{'sum':14} {total / 1024:7.1f} KiB")


if __name__ == "__main__":
    main()
