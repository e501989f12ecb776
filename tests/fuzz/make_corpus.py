#!/usr/bin/env python3
"""Makes the fuzz corpora of the three model formats and of whole models: small good files, and bad
ones of each kind.

Run: python3 make_corpus.py. Standard library only; the output is deterministic and is kept.
"""
import json
import pathlib
import random
import struct

HERE = pathlib.Path(__file__).parent / "corpus"


def u32(*v):
    return struct.pack(f"<{len(v)}I", *v)


def u64(*v):
    return struct.pack(f"<{len(v)}Q", *v)


def f32(*v):
    return struct.pack(f"<{len(v)}f", *v)


def pad(data, alignment):
    return data + bytes(-len(data) % alignment)


# --- GGUF ------------------------------------------------------------------------------------------
def text(s):
    raw = s.encode()
    return u64(len(raw)) + raw


def entry(key, kind, value):
    return text(key) + u32(kind) + value


def gguf(entries, infos, data=b"", version=3, alignment=32, tensors=None, values=None):
    head = b"GGUF" + u32(version)
    head += u64(len(infos) if tensors is None else tensors, len(entries) if values is None else values)
    head += b"".join(entries) + b"".join(infos)
    return pad(head, alignment) + data if infos else head + data


def info(name, dims, kind, offset):
    return text(name) + u32(len(dims)) + u64(*dims) + u32(kind) + u64(offset)


def make_gguf():
    values = [
        entry("general.architecture", 8, text("llama")),
        entry("llama.block_count", 4, u32(1)),
        entry("llama.rope.freq_base", 6, f32(10000.0)),
        entry("llama.i64", 11, struct.pack("<q", -3)),
        entry("llama.f64", 12, struct.pack("<d", 1e-5)),
        entry("tokenizer.ggml.add_bos_token", 7, b"\1"),
        entry("tokenizer.ggml.tokens", 9, u32(8) + u64(3) + text("<s>") + text("a") + text("")),
        entry("tokenizer.ggml.scores", 9, u32(6) + u64(3) + f32(0, -1, -2)),
        entry("tokenizer.ggml.token_type", 9, u32(5) + u64(3) + u32(3, 1, 1)),
        entry("nested", 9, u32(9) + u64(2) + u32(0) + u64(2) + b"\1\2" + u32(7) + u64(1) + b"\1"),
    ]
    # Every readable type, a row of 32 or 256.
    kinds = [(0, 32, 128), (1, 32, 64), (30, 32, 64), (8, 32, 34), (2, 32, 18), (3, 32, 20), (6, 32, 22),
             (7, 32, 24), (12, 256, 144), (13, 256, 176), (14, 256, 210)]
    infos, data = [], b""
    for i, (kind, row, size) in enumerate(kinds):
        infos.append(info(f"blk.0.w{i}.weight", [row], kind, len(data)))
        data = pad(data + bytes(range(size % 256)) + bytes(size - size % 256), 32)
    one = [info("w", [3, 2], 0, 0)]
    huge = 1 << 62
    return {
        "good_all_types": gguf(values, infos, data),
        "good_v2": gguf(values[:3], one, bytes(24), version=2),
        "good_vocab": gguf(values, []),
        "good_alignment": gguf([entry("general.alignment", 4, u32(64))], one, bytes(24), alignment=64),
        "bad_truncated_head": gguf(values, infos, data)[:20],
        "bad_truncated_values": gguf(values, infos, data)[:200],
        "bad_truncated_data": gguf(values, infos, data)[:-40],
        "bad_magic": b"GGML" + gguf(values, [])[4:],
        "bad_version": gguf(values, [], version=99),
        "bad_big_endian": gguf(values, [], version=0x03000000),
        "bad_value_count": gguf(values, [], values=huge),
        "bad_tensor_count": gguf(values, [], tensors=(1 << 64) - 1),
        "bad_key_length": gguf([u64(huge) + b"abc"], []),
        "bad_string_length": gguf([entry("k", 8, u64((1 << 64) - 8) + b"abc")], []),
        "bad_array_length": gguf([entry("k", 9, u32(12) + u64(1 << 61) + bytes(16))], []),
        "bad_array_nesting": gguf([entry("k", 9, (u32(9) + u64(1)) * 300)], []),
        "bad_array_type": gguf([entry("k", 9, u32(77) + u64(1))], []),
        "bad_duplicate_key": gguf([values[0], values[0]], []),
        "bad_duplicate_tensor": gguf([], one * 2, bytes(64)),
        "bad_alignment_zero": gguf([entry("general.alignment", 4, u32(0))], one, bytes(24)),
        "bad_alignment_huge": gguf([entry("general.alignment", 10, u64(1 << 63))], one, bytes(24)),
        "bad_dims_wrap": gguf([], [info("w", [1 << 32, 1 << 32], 0, 0)], bytes(64)),
        "bad_dims_zero": gguf([], [info("w", [0], 0, 0)], bytes(64)),
        "bad_dims_count": gguf([], [info("w", [1] * 9, 0, 0)], bytes(64)),
        "bad_offset_wrap": gguf([], [info("w", [4], 0, (1 << 64) - 32)], bytes(64)),
        "bad_overlap": gguf([], [info("a", [16], 0, 0), info("b", [16], 0, 32)], bytes(128)),
        "bad_type": gguf([], [info("w", [4], 1234, 0)], bytes(64)),
        "bad_block": gguf([], [info("w", [33], 8, 0)], bytes(64)),
    }


# --- safetensors -------------------------------------------------------------------------------------
def safetensors(header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return u64(len(raw) if length is None else length) + raw + data


def make_safetensors():
    def t(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    good = {"__metadata__": {"format": "pt"}, "a": t("F32", [2, 3], 0, 24), "b": t("BF16", [4], 24, 32),
            "c": t("F16", [], 32, 34), "d": t("I64", [0, 5], 34, 34), "e": t("BOOL", [2], 34, 36)}
    w = t("F32", [2], 0, 8)
    return {
        "good_types": safetensors(good, bytes(range(36))),
        "good_empty": safetensors({}),
        "bad_truncated": safetensors(good, bytes(30)),
        "bad_trailing": safetensors(good, bytes(40)),
        "bad_short": b"\x10\0\0",
        "bad_length": safetensors(good, bytes(36), length=(1 << 64) - 8),
        "bad_length_file": safetensors(good, bytes(36), length=5000),
        "bad_json": safetensors(b'{"a": '),
        "bad_json_depth": safetensors(b'{"a":' + b"[" * 3000 + b"]" * 3000 + b"}"),
        "bad_json_array": safetensors(b"[1, 2]"),
        "bad_json_utf8": safetensors(b'{"\xff\xfe": 1}'),
        "bad_json_twice": safetensors(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
                                      b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
        "bad_entry": safetensors({"w": 3}),
        "bad_no_dtype": safetensors({"w": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
        "bad_dtype": safetensors({"w": t("F8_E4M3", [8], 0, 8)}, bytes(8)),
        "bad_shape_text": safetensors({"w": t("F32", ["2"], 0, 8)}, bytes(8)),
        "bad_shape_negative": safetensors({"w": t("F32", [-2], 0, 8)}, bytes(8)),
        "bad_shape_float": safetensors({"w": t("F32", [2.0], 0, 8)}, bytes(8)),
        "bad_shape_wrap": safetensors({"w": t("F32", [1 << 32, 1 << 32], 0, 8)}, bytes(8)),
        "bad_shape_rank": safetensors({"w": t("F32", [1] * 7 + [2], 0, 8)}, bytes(8)),
        "bad_shape_bytes": safetensors({"w": t("F32", [3], 0, 8)}, bytes(8)),
        "bad_offsets_order": safetensors({"w": t("F32", [2], 8, 0)}, bytes(8)),
        "bad_offsets_end": safetensors({"w": t("F32", [2], 1 << 63, (1 << 63) + 8)}, bytes(8)),
        "bad_offsets_one": safetensors({"w": {"dtype": "F32", "shape": [2], "data_offsets": [8]}}, bytes(8)),
        "bad_overlap": safetensors({"w": w, "v": t("F32", [2], 4, 12)}, bytes(12)),
        "bad_gap": safetensors({"w": w, "v": t("F32", [2], 12, 20)}, bytes(20)),
        "bad_metadata": safetensors({"__metadata__": {"a": 1}, "w": w}, bytes(8)),
    }


# --- llama2.c ----------------------------------------------------------------------------------------
DIM, HIDDEN, LAYERS, HEADS, KV, VOCAB, SEQ = 8, 16, 2, 2, 1, 10, 4


def sizes(dim=DIM, hidden=HIDDEN, layers=LAYERS, heads=HEADS, kv=KV, vocab=VOCAB, seq=SEQ):
    return struct.pack("<7i", dim, hidden, layers, heads, kv, vocab, seq)


def make_llama2c():
    rng = random.Random(3)
    kv_dim = DIM // HEADS * KV
    norms = (2 * LAYERS + 1) * DIM
    counts = [VOCAB * DIM] + [DIM * DIM] * 2 * LAYERS + [DIM * kv_dim] * 2 * LAYERS + [DIM * HIDDEN] * 3 * LAYERS
    floats = f32(*(rng.uniform(-1, 1) for _ in range(norms + sum(counts))))
    rotary = bytes(4 * SEQ * DIM // HEADS)
    output = bytes(4 * VOCAB * DIM)

    def v1(version=1, shared=1, group=None, head=None):
        raw = u32(0x616B3432, version) + (head or sizes()) + bytes([shared])
        return (raw + (struct.pack("<i", group) if group is not None else b"")).ljust(256, b"\0")

    group = 8
    int8 = bytes(4 * norms)
    for count in counts:
        int8 += bytes(rng.randrange(256) for _ in range(count)) + f32(*([0.01] * (count // group)))
    v0 = sizes() + floats + rotary
    return {
        "good_v0": v0,
        "good_v0_untied": sizes(vocab=-VOCAB) + floats + rotary + output,
        "good_v1": v1() + floats,
        "good_v1_untied": v1(shared=0) + floats + output,
        "good_v2": v1(2, 1, group) + int8,
        "bad_short": v0[:11],
        "bad_truncated": v0[:-8],
        "bad_trailing": v0 + bytes(4),
        "bad_untied_length": sizes(vocab=-VOCAB) + floats + rotary,
        "bad_zero_dim": sizes(dim=0) + floats,
        "bad_negative_layers": sizes(layers=-1) + floats,
        "bad_zero_heads": sizes(heads=0) + floats,
        "bad_heads": sizes(heads=3) + floats,
        "bad_kv_heads": sizes(kv=3) + floats,
        "bad_huge": struct.pack("<7i", *[2**31 - 1] * 7) + bytes(64),
        "bad_wrap": sizes(dim=2**30, heads=1, kv=1, hidden=2**30, layers=2**30) + bytes(64),
        "bad_vocab_min": sizes(vocab=-(2**31)) + floats,
        "bad_version": v1(3) + floats,
        "bad_shared": v1(1, 7) + floats,
        "bad_head_only": v1()[:100],
        "bad_group_zero": v1(2, 1, 0) + int8,
        "bad_group_negative": v1(2, 1, -8) + int8,
        "bad_group_division": v1(2, 1, 7) + int8,
        "bad_v2_truncated": v1(2, 1, group) + int8[:-1],
    }


# --- whole models --------------------------------------------------------------------------------------
# A folder is one input: its files one after another, each after a line of "\x1e" and its name
# (tests/model_input.h). Weights are zeros: only names, shapes and types matter.
BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def folder(files):
    return b"".join(b"\x1e" + name.encode() + b"\n" +
                    (data if isinstance(data, bytes) else json.dumps(data).encode())
                    for name, data in files.items())


def zeros(shapes, dtype="F32"):
    header, at = {}, 0
    for name, shape in shapes.items():
        size = BYTES[dtype]
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return safetensors(header, bytes(at))


def llama_shapes(dim=8, q=8, kv=4, hidden=6, vocab=5, layers=1, tied=False, bias=(), head_norm=0):
    out = {"model.embed_tokens.weight": [vocab, dim]}
    for i in range(layers):
        at = f"model.layers.{i}."
        out |= {at + "input_layernorm.weight": [dim], at + "self_attn.q_proj.weight": [q, dim],
                at + "self_attn.k_proj.weight": [kv, dim], at + "self_attn.v_proj.weight": [kv, dim],
                at + "self_attn.o_proj.weight": [dim, q],
                at + "post_attention_layernorm.weight": [dim], at + "mlp.gate_proj.weight": [hidden, dim],
                at + "mlp.up_proj.weight": [hidden, dim], at + "mlp.down_proj.weight": [dim, hidden]}
        out |= {f"{at}self_attn.{n}_proj.bias": [q if n == "q" else kv] for n in bias}
        if head_norm:
            out |= {at + "self_attn.q_norm.weight": [head_norm], at + "self_attn.k_norm.weight": [head_norm]}
    out["model.norm.weight"] = [dim]
    return out if tied else out | {"lm_head.weight": [vocab, dim]}


def llama_config(**more):
    return {"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 8,
            "intermediate_size": 6, "max_position_embeddings": 16, "num_attention_heads": 2,
            "num_hidden_layers": 1, "num_key_value_heads": 1, "rms_norm_eps": 1e-05, "vocab_size": 5,
            "rope_theta": 10000.0, "tie_word_embeddings": False, **more}


def gpt2_folder():
    config = {"architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new", "n_embd": 4,
              "n_head": 2, "n_inner": None, "n_layer": 1, "n_positions": 3, "vocab_size": 5}
    at = "h.0."  # as saved from a bare model; matrices are [in, out]
    return {"config.json": config, "model.safetensors": zeros({
        "wte.weight": [5, 4], "wpe.weight": [3, 4], at + "ln_1.weight": [4], at + "ln_1.bias": [4],
        at + "attn.c_attn.weight": [4, 12], at + "attn.c_attn.bias": [12],
        at + "attn.c_proj.weight": [4, 4], at + "attn.c_proj.bias": [4], at + "ln_2.weight": [4],
        at + "ln_2.bias": [4], at + "mlp.c_fc.weight": [4, 16], at + "mlp.c_fc.bias": [16],
        at + "mlp.c_proj.weight": [16, 4], at + "mlp.c_proj.bias": [4], "ln_f.weight": [4],
        "ln_f.bias": [4], at + "attn.bias": [1, 1, 3, 3]})}


def neox_folder():
    config = {"architectures": ["GPTNeoXForCausalLM"], "hidden_act": "gelu", "hidden_size": 8,
              "intermediate_size": 6, "layer_norm_eps": 1e-05, "max_position_embeddings": 16,
              "num_attention_heads": 2, "num_hidden_layers": 1, "rotary_emb_base": 10000,
              "rotary_pct": 0.5, "use_parallel_residual": True, "vocab_size": 5}
    at = "gpt_neox.layers.0."
    shapes = {"gpt_neox.embed_in.weight": [5, 8], "embed_out.weight": [5, 8]}
    for norm in (at + "input_layernorm", at + "post_attention_layernorm", "gpt_neox.final_layer_norm"):
        shapes |= {norm + ".weight": [8], norm + ".bias": [8]}
    for name, rows, cols in (("attention.query_key_value", 24, 8), ("attention.dense", 8, 8),
                             ("mlp.dense_h_to_4h", 6, 8), ("mlp.dense_4h_to_h", 8, 6)):
        shapes |= {f"{at}{name}.weight": [rows, cols], f"{at}{name}.bias": [rows]}
    return {"config.json": config, "model.safetensors": zeros(shapes, "F16")}


def gguf_model(arch="llama", dim=8, head=4, kinds=None, more=(), drop=(), **numbers):
    """One layer. `kinds` sets ggml types by tensor, with bytes per row; the rest is f32."""
    values = {"embedding_length": dim, "block_count": 1, "attention.head_count": 2,
              "attention.head_count_kv": 1, "attention.key_length": head, "feed_forward_length": 6,
              "context_length": 16, "rope.dimension_count": head, **numbers}
    entries = [entry("general.architecture", 8, text(arch))]
    entries += [entry(f"{arch}.{k}", 4, u32(v)) for k, v in values.items() if k not in drop]
    entries += [entry(f"{arch}.attention.layer_norm_rms_epsilon", 6, f32(1e-5)),
                entry(f"{arch}.rope.freq_base", 6, f32(10000.0)), *more]
    shapes = {"token_embd": [dim, 5], "output_norm": [dim], "blk.0.attn_norm": [dim], "blk.0.ffn_norm": [dim],
              "blk.0.attn_q": [dim, 2 * head], "blk.0.attn_k": [dim, head], "blk.0.attn_v": [dim, head],
              "blk.0.attn_output": [2 * head, dim], "blk.0.ffn_gate": [dim, 6], "blk.0.ffn_up": [dim, 6],
              "blk.0.ffn_down": [6, dim]}
    if arch in ("qwen3", "sdar"):
        shapes |= {"blk.0.attn_q_norm": [head], "blk.0.attn_k_norm": [head]}
    infos, data = [], b""
    for name, dims in shapes.items():
        kind, row = (kinds or {}).get(name, (0, 4 * dims[0]))
        infos.append(info(name + ".weight", dims, kind, len(data)))
        data = pad(data + bytes(row * (dims[1] if len(dims) > 1 else 1)), 32)
    return gguf(entries, infos, data)


def llada_folder(**fields):
    config = {"architectures": ["LLaDAModelLM"], "model_type": "llada", "activation_type": "silu",
              "block_type": "llama", "d_model": 8, "embedding_size": 6, "include_qkv_bias": True,
              "layer_norm_type": "rms", "mask_token_id": 4, "max_sequence_length": 16,
              "mlp_hidden_size": 6, "n_heads": 2, "n_kv_heads": 1, "n_layers": 1, "rope": True,
              "vocab_size": 5, "weight_tying": False, **fields}
    at = "model.transformer.blocks.0."
    shapes = {"model.transformer.wte.weight": [6, 8], at + "attn_norm.weight": [8],
              at + "q_proj.weight": [8, 8], at + "q_proj.bias": [8], at + "k_proj.weight": [4, 8],
              at + "k_proj.bias": [4], at + "v_proj.weight": [4, 8], at + "v_proj.bias": [4],
              at + "attn_out.weight": [8, 8], at + "ff_norm.weight": [8], at + "ff_proj.weight": [6, 8],
              at + "up_proj.weight": [6, 8], at + "ff_out.weight": [8, 6],
              "model.transformer.ln_f.weight": [8], "model.transformer.ff_out.weight": [6, 8]}
    return {"config.json": config, "model.safetensors": zeros(shapes)}


def make_model():
    config, weights = llama_config(), zeros(llama_shapes())
    plain = {"config.json": config, "model.safetensors": weights}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 2.0,
            "beta_slow": 0.25, "mscale": 1.0, "mscale_all_dim": 0.5, "rope_theta": 10000.0}
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8}
    qwen3 = {k: v for k, v in llama_config(architectures=["Qwen3ForCausalLM"], head_dim=2, layer_types=[
        "sliding_attention"], use_sliding_window=True, sliding_window=4).items() if k != "rope_theta"}
    tokens = ["<unk>", "a", "b", "ab"]
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "ByteLevel", "use_regex": True},
                 "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": ["a b"]}}
    a = {k: v for k, v in llama_shapes().items() if "mlp" not in k}
    b = {k: v for k, v in llama_shapes().items() if "mlp" in k}
    index = {"metadata": {}, "weight_map": {**dict.fromkeys(a, "a.safetensors"),
                                            **dict.fromkeys(b, "b.safetensors")}}
    sharded = {"config.json": config, "model.safetensors.index.json": index,
               "a.safetensors": zeros(a), "b.safetensors": zeros(b)}
    vocab = [entry("tokenizer.ggml.model", 8, text("llama")),
             entry("tokenizer.ggml.tokens", 9, u32(8) + u64(4) + b"".join(map(text, ["<unk>", "<s>", "a", "b"]))),
             entry("tokenizer.ggml.scores", 9, u32(6) + u64(4) + f32(0, 0, -1, -2)),
             entry("tokenizer.ggml.token_type", 9, u32(5) + u64(4) + u32(2, 3, 1, 1)),
             entry("tokenizer.ggml.bos_token_id", 4, u32(1))]
    scaling = [entry("llama.rope.scaling.type", 8, text("yarn")), entry("llama.rope.scaling.factor", 6, f32(4)),
               entry("llama.rope.scaling.attn_factor", 6, f32(1.5)),
               entry("llama.rope.scaling.original_context_length", 4, u32(8))]
    quants = {"token_embd": (14, 210), "blk.0.attn_q": (12, 144), "blk.0.attn_k": (8, 272),
              "blk.0.attn_v": (13, 176), "blk.0.ffn_gate": (2, 144), "blk.0.ffn_up": (7, 192),
              "blk.0.ffn_down": (1, 12)}

    sliding = entry("llama.attention.sliding_window", 4, u32(4))

    def flags(*values):
        return entry("llama.attention.sliding_window_pattern", 9, u32(7) + u64(len(values)) + bytes(values))

    def spoiled(**fields):
        return folder(plain | {"config.json": {**config, **fields}})

    def fills(architecture, bias="", **fields):  # a diffusion model
        return folder({"config.json": llama_config(architectures=[architecture], **{
            "mask_token_id": 4, "head_dim": 4, **fields}),
            "model.safetensors": zeros(llama_shapes(bias=bias))})

    mask = [entry("tokenizer.ggml.mask_token_id", 4, u32(4)),
            entry("diffusion.shift_logits", 7, b"\0")]
    block = entry("sdar.diffusion.block_size", 4, u32(4))
    return {
        "good_llama": folder(plain),
        "good_llama3_tied": folder({
            "config.json": llama_config(tie_word_embeddings=True, rope_scaling=llama3, num_hidden_layers=2),
            "model.safetensors": zeros(llama_shapes(tied=True, layers=2), "BF16")}),
        "good_yarn": folder(plain | {"config.json": {**config, "rope_parameters": yarn}}),
        "good_mistral": folder({
            "config.json": llama_config(architectures=["MistralForCausalLM"], sliding_window=4),
            "model.safetensors": weights}),
        "good_qwen2": folder({"config.json": llama_config(architectures=None, model_type="qwen2"),
                              "model.safetensors": zeros(llama_shapes(bias="qkv"))}),
        "good_qwen3": folder({"config.json": {**qwen3, "rope_parameters": {"rope_theta": 1e6}},
                              "model.safetensors": zeros(llama_shapes(q=4, kv=2, head_norm=2))}),
        "good_window_layers": folder({
            "config.json": {**qwen3, "num_hidden_layers": 2,
                            "layer_types": ["full_attention", "sliding_attention"]},
            "model.safetensors": zeros(llama_shapes(q=4, kv=2, head_norm=2, layers=2))}),
        "good_gpt2": folder(gpt2_folder()),
        "good_neox": folder(neox_folder()),
        "good_sharded": folder(sharded),
        "good_tokenizer": folder(plain | {"tokenizer.json": tokenizer}),
        "good_gguf": gguf_model(more=vocab),
        "good_gguf_qwen3": gguf_model("qwen3"),
        "good_gguf_yarn": gguf_model(more=scaling),
        "good_gguf_windows": gguf_model(more=[sliding, flags(0)]),
        "good_gguf_quants": gguf_model(dim=256, head=2, kinds=quants),
        "good_sdar": fills("SDARForCausalLM", block_size=4, qk_norm=False),
        "good_fast_dllm": fills("Fast_dLLM_QwenForCausalLM", "qkv", bd_size=8, sub_block_size=4),
        "good_dream": fills("DreamModel", "qkv"),
        "good_llada": folder(llada_folder()),
        "good_gguf_sdar": gguf_model("sdar", more=[*mask, block]),
        "good_gguf_dream": gguf_model("dream", more=[mask[0], entry("dream.attention.causal", 7, b"\0")]),
        "good_gguf_llada": gguf_model("llada", more=mask),
        "bad_sdar_block": fills("SDARForCausalLM", block_size=0, qk_norm=False),
        "bad_sdar_block_context": fills("SDARForCausalLM", block_size=17, qk_norm=False),
        "bad_sdar_mask": fills("SDARForCausalLM", block_size=4, qk_norm=False, mask_token_id=5),
        "bad_fast_dllm_parts": fills("Fast_dLLM_QwenForCausalLM", "qkv", bd_size=8, sub_block_size=3),
        "bad_llada_hidden": folder(llada_folder(mlp_hidden_size=None, mlp_ratio=1 << 27)),
        "bad_llada_heads": folder(llada_folder(n_heads=0)),
        "bad_gguf_sdar_block": gguf_model("sdar", more=[*mask, entry(
            "sdar.diffusion.block_size", 10, u64(1 << 63))]),
        "bad_gguf_llada_mask": gguf_model("llada", more=[mask[1]]),
        "bad_no_config": folder({"model.safetensors": weights}),
        "bad_no_weights": folder({"config.json": config}),
        "bad_config_text": folder(plain | {"config.json": b'{"model_type": "llama", '}),
        "bad_config_list": folder(plain | {"config.json": b"[]"}),
        "bad_architecture": spoiled(architectures=["BertModel"]),
        "bad_architectures": spoiled(architectures=[["LlamaForCausalLM"]]),
        "bad_vocab_negative": spoiled(vocab_size=-5),
        "bad_vocab_infinite": folder(plain | {"config.json": json.dumps(config).replace(
            '"vocab_size": 5', '"vocab_size": 1e999').encode()}),
        "bad_layers_huge": spoiled(num_hidden_layers=1 << 28),
        "bad_layers_more": spoiled(num_hidden_layers=4096),
        "bad_heads_zero": spoiled(num_attention_heads=0),
        "bad_heads_huge": spoiled(num_attention_heads=1 << 14, head_dim=1 << 12),
        "bad_kv_heads_zero": spoiled(num_key_value_heads=0),
        "bad_head_dim_odd": spoiled(head_dim=3),
        "bad_shape": spoiled(intermediate_size=7),
        "bad_tied_text": spoiled(tie_word_embeddings="yes"),
        "bad_theta": spoiled(rope_theta=0),
        "bad_rope_by_layer": spoiled(rope_parameters={"full_attention": {"rope_theta": 1e4}}),
        "bad_yarn_context": spoiled(rope_scaling={**yarn, "original_max_position_embeddings": 0}),
        "bad_window_layers": folder({"config.json": {**qwen3, "layer_types": ["a", "b"]},
                                     "model.safetensors": zeros(llama_shapes(q=4, kv=2, head_norm=2))}),
        "bad_window_kind": folder({"config.json": {**qwen3, "layer_types": ["chunked_attention"]},
                                   "model.safetensors": zeros(llama_shapes(q=4, kv=2, head_norm=2))}),
        "bad_gguf_window_layers": gguf_model(more=[sliding, flags(0, 1)]),
        "bad_tensor_extra": folder(plain | {"model.safetensors": zeros(llama_shapes(layers=2))}),
        "bad_tensor_type": folder(plain | {"model.safetensors": weights.replace(b'"F32"', b'"I32"')}),
        "bad_shard_missing": folder({k: v for k, v in sharded.items() if k != "b.safetensors"}),
        "bad_index_outside": folder(sharded | {"model.safetensors.index.json": {
            "weight_map": dict.fromkeys(llama_shapes(), "../a.safetensors")}}),
        "bad_tokenizer_larger": folder(plain | {"tokenizer.json": {**tokenizer, "model": {
            **tokenizer["model"], "vocab": {chr(97 + i): i for i in range(9)}}}}),
        "bad_gguf_arch": gguf_model("bert"),
        "bad_gguf_no_heads": gguf_model(drop=["attention.head_count"]),
        "bad_gguf_zero_heads": gguf_model(**{"attention.head_count": 0}),
        "bad_gguf_rotary": gguf_model(**{"rope.dimension_count": 400}),
        "bad_gguf_value_length": gguf_model(**{"attention.value_length": 2}),
        "bad_gguf_split": gguf_model(more=[entry("split.count", 2, struct.pack("<H", 3))]),
        "bad_gguf_vocab": gguf_model(more=vocab[:2]),
        "bad_gguf_layers": gguf_model(block_count=0xffffffff),
    }


def shard(ids=(0, 1, 2, 299), width=2, vocab=300, count=None, version=1, magic=b"MRTOKENS", zero=0, checksum=None):
    data = b"".join(i.to_bytes(width, "little") for i in ids)
    total = 0xcbf29ce484222325  # FNV-1a
    for byte in data:
        total = (total ^ byte) * 0x100000001b3 % (1 << 64)
    return (magic + u32(version, width) + u64(len(ids) if count is None else count) + u32(vocab, zero) +
            u64(42) + u64(total if checksum is None else checksum) + u64(0) + u64(0) + data)


def make_shards():
    return {
        "good_two_bytes": shard(),
        "good_four_bytes": shard((0, 70000, 5), 4, 70001),
        "good_long": shard(range(300)),
        "good_empty": shard(()),
        "bad_magic": shard(magic=b"MRTOKENZ"),
        "bad_version": shard(version=2),
        "bad_width": shard(width=3),
        "bad_zero": shard(zero=1),
        "bad_vocab_zero": shard(vocab=0),
        "bad_vocab_wide": shard(vocab=70000),
        "bad_vocab_huge": shard(width=4, vocab=0xffffffff),
        "bad_count": shard(count=5),
        "bad_count_wraps": shard(count=(1 << 63) + 4),
        "bad_id": shard((0, 300, 1)),
        "bad_id_negative": shard((0, 0xffffffff), 4),
        "bad_checksum": shard(checksum=1),
        "bad_header_only": shard()[:63],
        "bad_truncated": shard()[:-1],
    }


def main():
    for name, files in {"gguf": make_gguf(), "safetensors": make_safetensors(), "llama2c": make_llama2c(),
                        "model": make_model(), "shards": make_shards()}.items():
        out = HERE / name
        out.mkdir(parents=True, exist_ok=True)
        for stem, data in files.items():
            (out / f"{stem}.bin").write_bytes(data)
        print(f"{out}: {len(files)} files, {sum(map(len, files.values()))} bytes")


if __name__ == "__main__":
    main()
