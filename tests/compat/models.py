"""Tiny models in unusual configurations. Everything follows from a case's description by integer
arithmetic: record.py writes the files for transformers, tests/cli/compat_test.py writes the same
ones for millrace, without any package."""
import json
import math
import pathlib
import struct

VOCAB = 272  # 256 bytes, special tokens, a few ids without a token
TEXT = ("The mill turns, and the water runs: 12 stones, one wheel.\n"
        "It grinds the miller's corn all day and all of the night.")


def tokenizer():
    """Byte-level, without merges: one token per byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, extra = {}, 0
    for byte in range(256):
        if byte in printable:
            names[byte] = chr(byte)
        else:
            names[byte] = chr(256 + extra)
            extra += 1
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": 256, "content": "<|end|>", "single_word": False,
                              "lstrip": False, "rstrip": False, "normalized": False,
                              "special": True}],
            "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
            "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {names[b]: b for b in range(256)}, "merges": []}}


# --- Cases ---------------------------------------------------------------------------------------

def llama(**more):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB,
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
            "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "tie_word_embeddings": False, "bos_token_id": 256, "eos_token_id": 256, **more}


def mistral(**more):
    return llama(architectures=["MistralForCausalLM"], model_type="mistral", **more)


def qwen2(**more):
    return llama(architectures=["Qwen2ForCausalLM"], model_type="qwen2", **more)


def qwen3(**more):
    return llama(**{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16,
                    **more})


def gpt2(**more):
    return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": VOCAB,
            "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256,
            "bos_token_id": 256, "eos_token_id": 256, **more}


def neox(**more):
    return {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox",
            "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 256,
            "hidden_act": "gelu", "layer_norm_eps": 1e-5, "rotary_pct": 0.25,
            "rotary_emb_base": 10000, "use_parallel_residual": True,
            "tie_word_embeddings": False, "bos_token_id": 256, "eos_token_id": 256, **more}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


# name: (config, {option: value}). Options: dtype of the weights, tie (write a head although the
# configuration ties it: "same" or "other"), shards, generation (generation_config.json).
CASES = {
    # heads
    "llama": (llama(), {}),
    "llama-mha": (llama(num_key_value_heads=4), {}),
    "llama-mqa": (llama(num_key_value_heads=1), {}),
    "llama-kv-null": (llama(num_key_value_heads=None), {}),
    "llama-kv-missing": (without(llama(), "num_key_value_heads"), {}),
    "llama-wide-heads": (llama(head_dim=16), {}),
    "llama-narrow-heads": (llama(head_dim=4), {}),
    "llama-head-dim-null": (llama(head_dim=None), {}),
    "llama-one-head": (llama(num_attention_heads=1, num_key_value_heads=1), {}),
    "llama-three-heads": (llama(hidden_size=24, num_attention_heads=3, num_key_value_heads=3), {}),
    "llama-six-of-three": (llama(hidden_size=48, num_attention_heads=6, num_key_value_heads=3), {}),
    "llama-head-10": (llama(hidden_size=40, head_dim=10), {}),
    # sizes
    "llama-one-layer": (llama(num_hidden_layers=1), {}),
    "llama-five-layers": (llama(num_hidden_layers=5), {}),
    "llama-odd-hidden": (llama(intermediate_size=37), {}),
    "llama-narrow-mlp": (llama(intermediate_size=8), {}),
    "llama-dim-20": (llama(hidden_size=20, num_attention_heads=5, num_key_value_heads=5), {}),
    "llama-odd-vocab": (llama(vocab_size=259), {}),
    "llama-large-vocab": (llama(vocab_size=1031), {}),
    # biases, norms, activations
    "llama-attention-bias": (llama(attention_bias=True), {}),
    "llama-eps-large": (llama(rms_norm_eps=0.3), {}),
    "llama-eps-small": (llama(rms_norm_eps=1e-12), {}),
    "llama-eps-missing": (without(llama(), "rms_norm_eps"), {}),
    "llama-gelu": (llama(hidden_act="gelu"), {}),
    "llama-gelu-new": (llama(hidden_act="gelu_new"), {}),
    "llama-gelu-tanh": (llama(hidden_act="gelu_pytorch_tanh"), {}),
    "llama-relu": (llama(hidden_act="relu"), {}),
    "llama-swish": (llama(hidden_act="swish"), {}),
    # embeddings
    "llama-tied": (llama(tie_word_embeddings=True), {}),
    "llama-tied-head-same": (llama(tie_word_embeddings=True), {"tie": "same"}),
    "llama-tied-head-other": (llama(tie_word_embeddings=True), {"tie": "other"}),
    "llama-tie-missing": (without(llama(), "tie_word_embeddings"), {}),
    # rotary positions
    "llama-theta-500000": (llama(rope_theta=500000), {}),
    "llama-theta-100": (llama(rope_theta=100.0), {}),
    "llama-theta-missing": (without(llama(), "rope_theta"), {}),
    "llama-rope-parameters": (without(llama(rope_parameters={
        "rope_type": "default", "rope_theta": 5000.0}), "rope_theta"), {}),
    "llama-linear": (llama(rope_scaling={"rope_type": "linear", "factor": 2.5}), {}),
    "llama-linear-old": (llama(rope_scaling={"type": "linear", "factor": 4.0}), {}),
    "llama-llama3": (llama(rope_scaling=LLAMA3), {}),
    "llama-llama3-theta": (llama(rope_theta=500000.0, rope_scaling={**LLAMA3, "factor": 32.0}), {}),
    "llama-llama3-new": (without(llama(rope_parameters={**LLAMA3, "rope_theta": 20000.0}),
                                 "rope_theta"), {}),
    "llama-yarn": (llama(rope_scaling=YARN), {}),
    "llama-yarn-old": (llama(rope_scaling={**without(YARN, "rope_type"), "type": "yarn"}), {}),
    "llama-yarn-betas": (llama(rope_scaling={**YARN, "beta_fast": 3.0, "beta_slow": 0.2}), {}),
    "llama-yarn-factor": (llama(rope_scaling={**YARN, "attention_factor": 1.5}), {}),
    "llama-yarn-mscale": (llama(rope_scaling={**YARN, "mscale": 1.2, "mscale_all_dim": 0.7}), {}),
    "llama-yarn-mscale-one": (llama(rope_scaling={**YARN, "mscale": 1.0}), {}),
    "llama-rope-null": (llama(rope_scaling=None), {}),
    "llama-rope-default": (llama(rope_scaling={"rope_type": "default"}), {}),
    "llama-partial-rotary": (llama(partial_rotary_factor=0.5), {}),
    # ignored by transformers
    "llama-sliding-window": (llama(sliding_window=8), {}),
    "llama-pretraining-tp": (llama(pretraining_tp=2), {}),
    "llama-dropout": (llama(attention_dropout=0.5), {}),
    "llama-generation-in-config": (llama(temperature=0.1, top_p=0.5, do_sample=True), {}),
    # names
    "llama-architecture-missing": (without(llama(), "architectures"), {}),
    "llama-architecture-other": (llama(architectures=["MistralForCausalLM"]), {}),
    "llama-architecture-own": (llama(architectures=["MyOwnForCausalLM"]), {}),
    # weights
    "llama-f16": (llama(torch_dtype="float16"), {"dtype": "F16"}),
    "llama-bf16": (llama(dtype="bfloat16"), {"dtype": "BF16"}),
    "llama-shards": (llama(), {"shards": 3}),
    # ends and advice
    "llama-eos-list": (llama(eos_token_id=[256, 23]), {}),
    "llama-eos-generation": (llama(), {"generation": {"eos_token_id": [256, 74]}}),
    "llama-eos-null": (llama(eos_token_id=None), {}),
    # Mistral
    "mistral": (mistral(sliding_window=None), {}),
    "mistral-window-4": (mistral(sliding_window=4), {}),
    "mistral-window-33": (mistral(sliding_window=33), {}),
    "mistral-window-missing": (mistral(), {}),
    "mistral-window-1": (mistral(sliding_window=1), {}),
    "mistral-wide-heads": (mistral(head_dim=12, sliding_window=16), {}),
    "mistral-yarn": (mistral(rope_scaling=YARN, sliding_window=None), {}),
    # Qwen2
    "qwen2": (qwen2(), {}),
    "qwen2-tied": (qwen2(tie_word_embeddings=True), {}),
    "qwen2-window-unused": (qwen2(sliding_window=8, use_sliding_window=False), {}),
    "qwen2-window-last": (qwen2(sliding_window=8, use_sliding_window=True, num_hidden_layers=4,
                                max_window_layers=2), {}),
    "qwen2-window-none": (qwen2(sliding_window=8, use_sliding_window=True,
                                max_window_layers=2), {}),
    "qwen2-window-types": (qwen2(sliding_window=8, use_sliding_window=True, num_hidden_layers=3,
                                 layer_types=["sliding_attention", "full_attention",
                                              "sliding_attention"]), {}),
    "qwen2-yarn": (qwen2(rope_scaling={**without(YARN, "rope_type"), "type": "yarn"}), {}),
    "qwen2-mrope-flag": (qwen2(use_mrope=False), {}),
    # Qwen3
    "qwen3": (qwen3(), {}),
    "qwen3-head-8": (qwen3(head_dim=8), {}),
    "qwen3-head-missing": (without(qwen3(), "head_dim"), {}),  # 128
    "qwen3-bias": (qwen3(attention_bias=True), {}),
    "qwen3-tied": (qwen3(tie_word_embeddings=True), {}),
    "qwen3-window": (qwen3(sliding_window=8, use_sliding_window=True, max_window_layers=1), {}),
    "qwen3-yarn": (qwen3(rope_scaling=YARN), {}),
    # GPT-2
    "gpt2": (gpt2(), {}),
    "gpt2-inner": (gpt2(n_inner=50), {}),
    "gpt2-inner-null": (gpt2(n_inner=None), {}),
    "gpt2-gelu": (gpt2(activation_function="gelu"), {}),
    "gpt2-relu": (gpt2(activation_function="relu"), {}),
    "gpt2-eps": (gpt2(layer_norm_epsilon=0.2), {}),
    "gpt2-untied": (gpt2(tie_word_embeddings=False), {}),
    "gpt2-upcast": (gpt2(reorder_and_upcast_attn=True), {}),
    "gpt2-one-head": (gpt2(n_head=1), {}),
    # GPT-NeoX
    "neox": (neox(), {}),
    "neox-sequential": (neox(use_parallel_residual=False), {}),
    "neox-rotary-half": (neox(rotary_pct=0.5), {}),
    "neox-rotary-all": (neox(rotary_pct=1.0), {}),
    "neox-base": (neox(rotary_emb_base=500, rotary_pct=1.0), {}),
    "neox-no-bias": (neox(attention_bias=False), {}),
    "neox-tied": (neox(tie_word_embeddings=True), {}),
    "neox-gelu-new": (neox(hidden_act="gelu_new"), {}),
    "neox-gelu-fast": (neox(hidden_act="gelu_fast"), {}),
    "neox-relu": (neox(hidden_act="relu"), {}),
    "neox-eps": (neox(layer_norm_eps=0.1), {}),
    "neox-linear": (neox(rope_scaling={"rope_type": "linear", "factor": 2.0}), {}),
    "neox-rope-parameters": (without(neox(rope_parameters={
        "rope_type": "default", "rope_theta": 3000.0, "partial_rotary_factor": 0.5}),
        "rotary_pct", "rotary_emb_base"), {}),
}

# Configurations that say the same as a case in other words, as transformers reads them.
SAME = {
    "gpt2-common-names": (without(gpt2(hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                       max_position_embeddings=256),
                                  "n_embd", "n_layer", "n_head", "n_positions"), "gpt2"),
    # The common names win.
    "gpt2-both-names": (gpt2(n_layer=1, n_head=2, num_hidden_layers=2, num_attention_heads=4), "gpt2"),
    "gpt2-one-head-common": (gpt2(num_attention_heads=1), "gpt2-one-head"),
    # A quarter of 16 is half of the 8 that a head has.
    "neox-head-dim": (neox(head_dim=16), "neox-rotary-half"),
    "neox-head-dim-same": (neox(head_dim=8), "neox"),
    "qwen2-window-0-unused": (qwen2(sliding_window=0), "qwen2"),
}

# Cases that millrace refuses, and a word of its error. Never a wrong answer.
REFUSED = {
    "llama-dynamic": (llama(rope_scaling={"rope_type": "dynamic", "factor": 2.0}), "rope_type"),
    "llama-longrope": (llama(rope_scaling={
        "rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4}), "rope_type"),
    "llama-yarn-untruncated": (llama(rope_scaling={**YARN, "truncate": False}), "truncate"),
    "llama-yarn-truncate-null": (llama(rope_scaling={**YARN, "truncate": None}), "truncate"),
    "mistral-window-0": (mistral(sliding_window=0), "sliding_window"),
    "qwen2-window-0": (qwen2(sliding_window=0, use_sliding_window=True, max_window_layers=1),
                       "sliding_window"),
    "neox-head-dim-64": (neox(head_dim=64), "head_dim"),
    "llama-experts": (llama(num_local_experts=4), "--ignore-key num_local_experts"),
    "llama-logits-scaling": (llama(logits_scaling=4.0), "--ignore-key logits_scaling"),
    "llama-unknown-key": (llama(a_key_of_tomorrow=1), "--ignore-key a_key_of_tomorrow"),
    "llama-unknown-activation": (llama(hidden_act="mish"), "hidden_act"),
    "llama-mlp-bias": (llama(mlp_bias=True), "mlp_bias"),
    "llama-quantised": (llama(quantization_config={"quant_method": "gptq"}),
                        "quantization_config"),
    "mixtral": (llama(architectures=["MixtralForCausalLM"], model_type="mixtral"),
                "architectures"),
    "gpt2-unscaled": (gpt2(scale_attn_weights=False), "scale_attn_weights"),
    "gpt2-by-layer": (gpt2(scale_attn_by_inverse_layer_idx=True),
                      "scale_attn_by_inverse_layer_idx"),
    "gpt2-cross": (gpt2(add_cross_attention=True), "add_cross_attention"),
}


# --- Files ---------------------------------------------------------------------------------------

class Numbers:
    """A linear congruential generator: the same numbers on every machine."""

    def __init__(self, name):
        self.state = 1
        for byte in name.encode():
            self.state = (self.state * 257 + byte) % (1 << 32)

    def draw(self):
        """An integer from -127 to 127."""
        self.state = (self.state * 1664525 + 1013904223) % (1 << 32)
        return (self.state >> 16) % 255 - 127


def shapes(config, head):
    """Names and shapes of the tensors; `head`: the file has its own head."""
    if config["model_type"] == "gpt2":
        return gpt2_shapes(config, head)
    dim, vocab = int(config["hidden_size"]), config["vocab_size"]
    layers, heads = int(config["num_hidden_layers"]), config["num_attention_heads"]
    hidden = config["intermediate_size"]
    if config["model_type"] == "gpt_neox":
        return neox_shapes(config, head, dim, vocab, layers, hidden)
    kv_heads = config.get("num_key_value_heads") or heads
    missing = 128 if config["model_type"] == "qwen3" else None  # Qwen3's own default
    size = config.get("head_dim", missing) or dim // heads
    out = {"model.embed_tokens.weight": (vocab, dim), "model.norm.weight": (dim,)}
    for i in range(layers):
        at = f"model.layers.{i}."
        out[at + "input_layernorm.weight"] = out[at + "post_attention_layernorm.weight"] = (dim,)
        for name, rows in (("q", heads * size), ("k", kv_heads * size), ("v", kv_heads * size)):
            out[at + f"self_attn.{name}_proj.weight"] = (rows, dim)
            if config.get("attention_bias") or config["model_type"] == "qwen2":
                out[at + f"self_attn.{name}_proj.bias"] = (rows,)
        out[at + "self_attn.o_proj.weight"] = (dim, heads * size)
        if config.get("attention_bias"):
            out[at + "self_attn.o_proj.bias"] = (dim,)
        if config["model_type"] == "qwen3":
            out[at + "self_attn.q_norm.weight"] = out[at + "self_attn.k_norm.weight"] = (size,)
        for name, shape in (("gate", (hidden, dim)), ("up", (hidden, dim)), ("down", (dim, hidden))):
            out[at + f"mlp.{name}_proj.weight"] = shape
            if config.get("mlp_bias"):
                out[at + f"mlp.{name}_proj.bias"] = shape[:1]
    if head:
        out["lm_head.weight"] = (vocab, dim)
    return out


def gpt2_shapes(config, head):
    dim, inner = config["n_embd"], config.get("n_inner") or 4 * config["n_embd"]
    out = {"transformer.wte.weight": (config["vocab_size"], dim),
           "transformer.wpe.weight": (config["n_positions"], dim),
           "transformer.ln_f.weight": (dim,), "transformer.ln_f.bias": (dim,)}
    for i in range(config["n_layer"]):
        at = f"transformer.h.{i}."
        for name in ("ln_1", "ln_2"):
            out[at + name + ".weight"] = out[at + name + ".bias"] = (dim,)
        for name, rows, cols in (("attn.c_attn", dim, 3 * dim), ("attn.c_proj", dim, dim),
                                 ("mlp.c_fc", dim, inner), ("mlp.c_proj", inner, dim)):
            out[at + name + ".weight"] = (rows, cols)
            out[at + name + ".bias"] = (cols,)
    if head:
        out["lm_head.weight"] = (config["vocab_size"], dim)
    return out


def neox_shapes(config, head, dim, vocab, layers, hidden):
    out = {"gpt_neox.embed_in.weight": (vocab, dim),
           "gpt_neox.final_layer_norm.weight": (dim,), "gpt_neox.final_layer_norm.bias": (dim,)}
    for i in range(layers):
        at = f"gpt_neox.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            out[at + name + ".weight"] = out[at + name + ".bias"] = (dim,)
        for name, rows, cols in (("attention.query_key_value", 3 * dim, dim),
                                 ("attention.dense", dim, dim), ("mlp.dense_h_to_4h", hidden, dim),
                                 ("mlp.dense_4h_to_h", dim, hidden)):
            out[at + name + ".weight"] = (rows, cols)
            if name.startswith("mlp") or config.get("attention_bias", True):
                out[at + name + ".bias"] = (rows,)
    if head:
        out["embed_out.weight"] = (vocab, dim)
    return out


def values(name, shape):
    """Multiples of a power of two: f16 and bf16 hold them exactly."""
    numbers = Numbers(name)
    count = math.prod(shape)
    if len(shape) == 1:
        if "bias" in name:
            return [numbers.draw() / 256 for _ in range(count)]
        return [1 + numbers.draw() // 4 / 64 for _ in range(count)]
    step = 1 / 32 if "embed" in name or "wte" in name else 1 / 256
    return [numbers.draw() * step for _ in range(count)]


def packed(data, dtype):
    raw = struct.pack(f"<{len(data)}f", *data)
    if dtype == "F32":
        return raw
    if dtype == "F16":
        return struct.pack(f"<{len(data)}e", *data)
    words = struct.unpack(f"<{len(data)}I", raw)
    assert all(word % 65536 == 0 for word in words), "exact in bf16"
    return struct.pack(f"<{len(data)}H", *(word >> 16 for word in words))


def write_safetensors(path, tensors, dtype):
    header, body = {"__metadata__": {"format": "pt"}}, b""
    for name, (shape, data) in tensors.items():
        raw = packed(data, dtype)
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def write_same(folder, config, case):
    """The folder of the case with this configuration."""
    folder = write(folder, case, *CASES[case])
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def write(folder, name, config, options):
    """Writes a Hugging Face folder for the case."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tied = config.get("tie_word_embeddings", config["model_type"] == "gpt2")
    head = not tied or "tie" in options
    tensors = {key: (shape, values(key, shape)) for key, shape in shapes(config, head).items()}
    if options.get("tie") == "same":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    if options.get("tie") == "other":
        shape = tensors["lm_head.weight"][0]
        tensors["lm_head.weight"] = (shape, values("another embed", shape))
    dtype = options.get("dtype", "F32")
    shards = options.get("shards", 1)
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype)
    else:
        names, places = sorted(tensors), {}
        for i in range(shards):
            file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
            part = names[i::shards]
            write_safetensors(folder / file, {key: tensors[key] for key in part}, dtype)
            places.update({key: file for key in part})
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": 0}, "weight_map": places}))
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}))
    if "generation" in options:
        (folder / "generation_config.json").write_text(json.dumps(options["generation"]))
    return folder
