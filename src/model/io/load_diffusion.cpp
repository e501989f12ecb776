#include "model/io/load_diffusion.h"

#include <fmt/format.h>

#include <limits>

#include "core/error.h"

namespace mr::model {
namespace {

constexpr DiffusionFamily kFamilies[] = {
    {.family = "sdar", .like = "qwen3", .mask = 151669, .blocks = true, .shifted = false},
    {.family = "fast-dllm", .like = "qwen2", .mask = 151665, .blocks = true, .shifted = true},
    {.family = "llada", .like = "llama", .mask = -1, .blocks = false, .shifted = false},
    {.family = "dream", .like = "qwen2", .mask = 151666, .blocks = false, .shifted = true},
};

// SDAR's first models have blocks of 4 and do not say so; later ones have the block length in their
// names.
constexpr int kSdarBlock = 4;
// The defaults of Fast-dLLM v2's configuration and of its decoder.
constexpr int kFastBlock = 32;
constexpr int kFastSubBlock = 8;

constexpr const char* kNoMask = "the field is missing: the id of the mask token";

int read_block(const Config& config, const char* key, std::optional<int> fallback) {
    const auto value = config.find_int(key);
    if (!value && !fallback) {
        config.fail(key, "the field is missing: the block size", "add it to config.json");
    }
    const int block = value.value_or(fallback.value_or(0));
    if (block < 1) config.fail(key, "must be at least 1");
    return block;
}

// Requires a field of LLaDA's configuration to have one value; it may be missing if that value is
// the default of LLaDA's code.
void need_word(const Config& config, const char* key, const char* word) {
    const std::string given = config.get_string(key, "");
    if (given != word) config.fail(key, fmt::format("only \"{}\" is supported", word));
}
void need_flag(const Config& config, const char* key, bool fallback, bool wanted) {
    if (config.get_bool(key, fallback) == wanted) return;
    config.fail(key, fmt::format("only {} is supported", wanted));
}

int read_gguf_block(const formats::GgufFile& file, const std::string& key) {
    const auto value = file.get_uint(key);
    if (!value || *value < 1 || *value > std::numeric_limits<std::int32_t>::max()) {
        throw Error::input({.file = file.path(),
                            .field = key,
                            .value = value ? fmt::format("{}", *value) : "",
                            .problem = value ? "must be at least 1 and no more than the context"
                                             : "the key is missing: the block size"});
    }
    return static_cast<int>(*value);
}

}  // namespace

const DiffusionFamily* diffusion_family(const std::string& family) {
    for (const DiffusionFamily& known : kFamilies) {
        if (family == known.family) return &known;
    }
    return nullptr;
}

std::string layers_like(const std::string& family) {
    const DiffusionFamily* known = diffusion_family(family);
    return known ? known->like : family;
}

void read_diffusion(const Config& config, ModelSpec& spec, std::vector<std::string>& notes) {
    const DiffusionFamily* family = diffusion_family(spec.family);
    if (!family) return;
    DiffusionSpec out;
    out.shifted = family->shifted;
    const auto mask = config.find_int("mask_token_id");
    const bool published = family->mask >= 0 && family->mask < spec.vocab;
    if (!mask && !published) config.fail("mask_token_id", kNoMask);
    out.mask = mask.value_or(family->mask);
    if (spec.family == "sdar") {
        std::optional<int> fallback;
        if (published) fallback = kSdarBlock;
        out.block = read_block(config, "block_size", fallback);
        if (!config.find("block_size")) {
            notes.push_back(
                fmt::format("config.json has no block_size: assuming {}, the block size of SDAR "
                            "models without one in their names",
                            kSdarBlock));
        }
    } else if (spec.family == "fast-dllm") {
        out.block = read_block(config, "bd_size", kFastBlock);
        out.sub_block =
            read_block(config, "sub_block_size", std::min<int>(kFastSubBlock, out.block));
    }
    set_diffusion(spec, out);
}

ModelSpec read_llada(const Config& config, ModelSpec spec, std::vector<std::string>& notes) {
    // The table is padded to a round number with rows that belong to no token.
    const int rows = config.find_int("embedding_size").value_or(spec.vocab);
    if (rows < spec.vocab) {
        config.fail("embedding_size", fmt::format("is less than the vocab_size, {}", spec.vocab));
    }
    spec.vocab = rows;
    spec.dim = config.need_int("d_model");
    spec.layers = config.need_int("n_layers");
    spec.heads = config.need_int("n_heads");
    const bool one = config.get_bool("multi_query_attention", false);
    spec.kv_heads = config.find_int("n_kv_heads").value_or(one ? 1 : spec.heads);
    if (spec.heads < 1 || spec.dim % spec.heads != 0) {
        config.fail("n_heads", fmt::format("d_model = {} is not a multiple of it", spec.dim));
    }
    spec.head_dim = spec.dim / spec.heads;
    if (const auto hidden = config.find_int("mlp_hidden_size")) {
        spec.hidden = *hidden;
    } else {
        const int ratio = config.find_int("mlp_ratio").value_or(4);
        if (ratio < 1 || ratio > 64) config.fail("mlp_ratio", "must be between 1 and 64");
        spec.hidden = std::min(spec.dim, 1 << 22) * ratio;
    }
    spec.context = config.find_int("max_sequence_length").value_or(1024);
    spec.norm_eps = static_cast<float>(config.find_float("rms_norm_eps").value_or(1e-5));
    spec.rope.theta = config.find_float("rope_theta").value_or(10000.0);
    spec.rope.rotary = spec.head_dim;
    spec.qkv_bias = config.get_bool("include_qkv_bias", false);
    spec.tied_embeddings = config.get_bool("weight_tying", true);
    need_word(config, "block_type", "llama");
    need_word(config, "layer_norm_type", "rms");
    need_word(config, "activation_type", "silu");
    need_flag(config, "rope", false, true);
    need_flag(config, "alibi", false, false);
    need_flag(config, "include_bias", false, false);
    need_flag(config, "bias_for_layer_norm", false, false);
    need_flag(config, "layer_norm_with_affine", true, true);
    need_flag(config, "attention_layer_norm", false, false);
    need_flag(config, "input_emb_norm", false, false);
    need_flag(config, "scale_logits", false, false);
    if (config.find_int("block_group_size").value_or(1) != 1) {
        config.fail("block_group_size", "only 1 is supported");
    }
    read_diffusion(config, spec, notes);
    return spec;
}

void read_diffusion(const formats::GgufFile& file, const std::string& arch, ModelSpec& spec) {
    const DiffusionFamily* family = diffusion_family(spec.family);
    if (!family) return;
    constexpr const char* kMask = "tokenizer.ggml.mask_token_id";
    const auto mask = file.get_uint(kMask);
    if (!mask || *mask >= static_cast<std::uint64_t>(spec.vocab)) {
        throw Error::input(
            {.file = file.path(),
             .field = kMask,
             .value = mask ? fmt::format("{}", *mask) : "",
             .problem =
                 mask ? fmt::format("must be a token of the vocabulary, 0 to {}", spec.vocab - 1)
                      : "the key is missing: the id of the token that stands for an unknown "
                        "one"});
    }
    DiffusionSpec out;
    out.mask = static_cast<std::int32_t>(*mask);
    out.shifted = file.get_bool("diffusion.shift_logits").value_or(true);
    const std::string prefix = arch + ".diffusion.";
    if (family->blocks) out.block = read_gguf_block(file, prefix + "block_size");
    if (spec.family == "fast-dllm") {
        out.sub_block = read_gguf_block(file, prefix + "sub_block_size");
    }
    set_diffusion(spec, out);
}

}  // namespace mr::model
