#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "model/io/convert_formats.h"
#include "model/io/load_diffusion.h"
#include "model/names.h"
#include "text/tokenizer_gguf.h"

namespace mr::model {
namespace {

using text::TokenizerData;
using text::TokenizerModel;
using text::TokenType;

std::uint32_t u32(std::int64_t value) { return static_cast<std::uint32_t>(value); }

void write_rope(formats::GgufWriter& writer, const std::string& arch, const ModelSpec& spec) {
    using Scaling = RopeSpec::Scaling;
    const RopeSpec& rope = spec.rope;
    if (rope.rotary == 0) return;
    writer.set_u32(arch + ".rope.dimension_count", u32(rope.rotary));
    writer.set_f32(arch + ".rope.freq_base", static_cast<float>(rope.theta));
    if (rope.scaling != Scaling::linear && rope.scaling != Scaling::yarn) return;
    const bool yarn = rope.scaling == Scaling::yarn;
    writer.set_string(arch + ".rope.scaling.type", yarn ? "yarn" : "linear");
    writer.set_f32(arch + ".rope.scaling.factor", static_cast<float>(rope.factor));
    if (!yarn) return;
    writer.set_u32(arch + ".rope.scaling.original_context_length",
                   u32(std::llround(rope.original_context)));
    writer.set_f32(arch + ".rope.scaling.yarn_beta_fast", static_cast<float>(rope.beta_fast));
    writer.set_f32(arch + ".rope.scaling.yarn_beta_slow", static_cast<float>(rope.beta_slow));
    if (rope.attention_factor > 0) {
        // The key multiplies YaRN's own magnitude.
        RopeSpec plain = rope;
        plain.attention_factor = 0;
        writer.set_f32(
            arch + ".rope.scaling.attn_factor",
            static_cast<float>(rope.attention_factor / rope_frequencies(plain).magnitude));
    }
}

// The vocabulary padded for GGUF: as many tokens as the embedding has rows.
TokenizerData padded_vocabulary(TokenizerData data, int vocab) {
    if (data.model == TokenizerModel::bytes) {
        // GGUF lacks this kind: write it as a SentencePiece vocabulary of bytes only.
        data.model = TokenizerModel::sentencepiece_bpe;
        for (std::size_t i = 0; i < data.tokens.size() && i < 256; ++i) {
            data.tokens[i] = fmt::format("<0x{:02X}>", i);
            data.types[i] = TokenType::byte;
        }
        data.scores.assign(data.tokens.size(), 0.0f);
    }
    for (std::size_t i = data.tokens.size(); i < static_cast<std::size_t>(vocab); ++i) {
        data.tokens.push_back(fmt::format("[PAD{}]", i));
        data.types.push_back(TokenType::unused);
        if (!data.scores.empty()) data.scores.push_back(-static_cast<float>(vocab));
    }
    return data;
}

}  // namespace

std::string formats_take(const LayerSpec& layer, const LayerSpec& common) {
    // A structured binding of every member: a new member must be handled before this compiles. The
    // common values are written, and which layers have a window.
    const auto& [mask, rope, scale, softcap, norm, norm_eps, qk_norm, activation, gated] = layer;
    if (mask.kind != common.mask.kind || mask.block != common.mask.block) {
        return "masks that differ by layer";
    }
    if (mask.origin != 0) return "blocks that are counted from another position than 0";
    if (mask.sinks != 0) return "attention sinks";
    if (softcap != 0) return "a softcap of scores";
    if (scale != common.scale) return "scales of scores that differ by layer";
    if (rope != common.rope) return "rotary positions that differ by layer";
    if (norm != common.norm || norm_eps != common.norm_eps || qk_norm != common.qk_norm) {
        return "norms that differ by layer";
    }
    if (activation != common.activation || gated != common.gated) {
        return "MLPs that differ by layer";
    }
    return {};
}

namespace {

constexpr const char* kPath = "the output format";
constexpr const char* kRemedy = "keep the model as it is";

}  // namespace

void require_diffusion_can_be_held(const ModelSpec& spec, const std::string& file) {
    const DiffusionFamily* family = diffusion_family(spec.family);
    const auto reject = [&](const char* field, std::string value, std::string problem) {
        throw Error::input({.file = file,
                            .field = field,
                            .value = std::move(value),
                            .problem = std::move(problem),
                            .remedy = kRemedy});
    };
    const bool causal = spec.mask.kind == ops::AttentionMask::Kind::causal;
    if ((family != nullptr) != spec.diffusion.has_value() || (family != nullptr) == causal) {
        reject("attention", causal ? "causal" : "not causal",
               fmt::format("{} has models of the family {} {} a mask token alone", kPath,
                           spec.family, family ? "with" : "without"));
    }
    if (!family) return;
    if ((spec.diffusion->block > 0) != family->blocks) {
        reject("block", fmt::format("{}", spec.diffusion->block),
               fmt::format("models of the family {} have {}", spec.family,
                           family->blocks ? "blocks" : "full attention"));
    }
    if (spec.diffusion->sub_block > 0 && spec.family != "fast-dllm") {
        reject("sub-block", fmt::format("{}", spec.diffusion->sub_block),
               fmt::format("the family {} has no sub-blocks", spec.family));
    }
    const bool llama_layers = spec.norm == NormKind::rms && spec.gated && !spec.mlp_bias &&
                              spec.residual == Residual::sequential && !spec.learned_positions;
    if (!llama_layers) {
        reject("layers", {},
               fmt::format("{} supports diffusion models only with the layers of Llama and Qwen",
                           kPath));
    }
}

Windows windows_of(const ModelSpec& spec, const std::string& file) {
    require_layers(spec, formats_take, file, kPath, kRemedy);
    if (spec.scale != 0 && spec.scale != ops::default_scale(spec.head_dim)) {
        throw Error::input({.file = file,
                            .field = "scale of scores",
                            .value = fmt::format("{}", spec.scale),
                            .problem = fmt::format("{} supports only the default", kPath),
                            .remedy = kRemedy});
    }
    Windows out;
    for (const LayerSpec& layer : spec.layer_specs()) {
        const int window = layer.mask.window;
        out.slides.push_back(window > 0);
        if (window > 0 && out.window > 0 && window != out.window) {
            throw Error::input({.file = file,
                                .field = "sliding window",
                                .value = fmt::format("{} and {}", out.window, window),
                                .problem = fmt::format("{} has one for all layers", kPath),
                                .remedy = kRemedy});
        }
        if (window > 0) out.window = window;
    }
    return out;
}

std::string gguf_architecture(const ModelSpec& spec) { return names_of_family(spec.family).gguf; }

void require_gguf_can_hold(const ModelSpec& spec, const std::string& file) {
    require_diffusion_can_be_held(spec, file);
    if (windows_of(spec, file).window > 0 && spec.family == "gpt2") {
        throw Error::input({.file = file,
                            .field = "sliding window",
                            .problem = "GGUF holds gpt2 models without windows only"});
    }
    const ops::Activation expected = spec.family == "gpt2"       ? ops::Activation::gelu_tanh
                                     : spec.family == "gpt-neox" ? ops::Activation::gelu
                                                                 : ops::Activation::silu;
    if (spec.activation != expected) {
        throw Error::input({.file = file,
                            .field = "activation",
                            .value = ops::activation_name(spec.activation),
                            .problem = fmt::format("GGUF holds {} models with {} only", spec.family,
                                                   ops::activation_name(expected)),
                            .remedy = "convert to safetensors instead"});
    }
}

// As of llama.cpp's sources of August 2026.
std::vector<std::string> llama_cpp_differences(const ModelSpec& spec) {
    const std::string arch = gguf_architecture(spec);
    const bool neox = spec.family == "gpt-neox";
    std::vector<std::string> out;
    if (const int window = windows_of(spec, {}).window; window > 0) {
        out.push_back(
            fmt::format("llama.cpp has no sliding window for {}: it says something else "
                        "once a text is longer than {} tokens",
                        arch, window));
    }
    if (const DiffusionFamily* fills = diffusion_family(spec.family); fills && fills->blocks) {
        out.push_back(
            fmt::format("llama.cpp has no architecture {}: it does not load the file", arch));
        return out;
    }
    const RopeSpec& rope = spec.rope;
    if (rope.scaling == RopeSpec::Scaling::yarn && (rope.beta_fast != 32 || rope.beta_slow != 1)) {
        out.push_back(
            fmt::format("llama.cpp takes YaRN's beta_fast 32 and beta_slow 1 for {}, "
                        "where the model has {} and {}",
                        arch, rope.beta_fast, rope.beta_slow));
    }
    if (spec.family == "qwen3" && (spec.qkv_bias || spec.out_bias)) {
        out.push_back("llama.cpp does not load qwen3 models with biases in attention");
    }
    if (neox && (!spec.qkv_bias || !spec.out_bias)) {
        out.push_back("llama.cpp does not load gptneox models without biases in attention");
    }
    if (neox && spec.activation == ops::Activation::gelu) {
        out.push_back("llama.cpp takes gelu's tanh approximation for gptneox");
    }
    if (arch != "llama" && arch != "llada" && !gguf_frequency_factors(rope).empty()) {
        out.push_back(fmt::format(
            "llama.cpp does not load {} models with factors of rotary frequencies", arch));
    }
    if (layers_like(spec.family) == "qwen2" && spec.head_dim * spec.heads != spec.dim) {
        out.push_back(fmt::format(
            "llama.cpp does not load {} models whose heads are not hidden / heads", arch));
    }
    if (spec.family == "llada" && spec.qkv_bias) {
        out.push_back("llama.cpp does not load llada models with biases in attention");
    }
    return out;
}

std::vector<float> gguf_frequency_factors(const RopeSpec& rope) {
    if (rope.scaling != RopeSpec::Scaling::llama3) return rope.freq_factors;
    RopeSpec plain = rope;
    plain.scaling = RopeSpec::Scaling::none;
    plain.freq_factors.clear();
    const auto from = rope_frequencies(plain).inv_freq;
    const auto to = rope_frequencies(rope).inv_freq;
    std::vector<float> out(from.size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(from[i] / to[i]);
    return out;
}

namespace {

// llama.cpp's keys, and ours where it has none.
void write_diffusion(formats::GgufWriter& writer, const std::string& arch, const ModelSpec& spec) {
    if (!spec.diffusion) return;
    const DiffusionSpec& diffusion = *spec.diffusion;
    writer.set_bool(arch + ".attention.causal", false);
    writer.set_bool("diffusion.shift_logits", diffusion.shifted);
    writer.set_u32("tokenizer.ggml.mask_token_id", u32(diffusion.mask));
    if (diffusion.block > 0) writer.set_u32(arch + ".diffusion.block_size", u32(diffusion.block));
    if (spec.family == "fast-dllm") {  // a block that is filled in as a whole has one part
        const int part = diffusion.sub_block > 0 ? diffusion.sub_block : diffusion.block;
        writer.set_u32(arch + ".diffusion.sub_block_size", u32(part));
    }
    if (spec.family == "sdar") writer.set_bool(arch + ".attention.qk_norm", spec.qk_norm);
}

}  // namespace

void write_gguf_metadata(formats::GgufWriter& writer, const ModelSpec& spec,
                         const text::Tokenizer* tokenizer, DType type) {
    const std::string arch = gguf_architecture(spec);
    writer.set_string("general.architecture", arch);
    writer.set_string("general.type", "model");
    if (!spec.name.empty()) writer.set_string("general.name", spec.name);
    writer.set_u32("general.file_type", formats::ggml_type(type).file_type);
    writer.set_u32("general.quantization_version", 2);
    writer.set_u32(arch + ".context_length", u32(spec.context));
    writer.set_u32(arch + ".embedding_length", u32(spec.dim));
    writer.set_u32(arch + ".block_count", u32(spec.layers));
    writer.set_u32(arch + ".feed_forward_length", u32(spec.hidden));
    writer.set_u32(arch + ".attention.head_count", u32(spec.heads));
    writer.set_u32(arch + ".attention.head_count_kv", u32(spec.kv_heads));
    if (spec.head_dim * spec.heads != spec.dim) {
        writer.set_u32(arch + ".attention.key_length", u32(spec.head_dim));
        writer.set_u32(arch + ".attention.value_length", u32(spec.head_dim));
    }
    writer.set_f32(arch + (spec.norm == NormKind::rms ? ".attention.layer_norm_rms_epsilon"
                                                      : ".attention.layer_norm_epsilon"),
                   spec.norm_eps);
    if (const Windows windows = windows_of(spec, {}); windows.window > 0) {
        writer.set_u32(arch + ".attention.sliding_window", u32(windows.window));
        // llama.cpp's key, one flag per layer. If all layers slide, the key above is enough.
        if (!windows.all()) {
            writer.set_bools(arch + ".attention.sliding_window_pattern", windows.slides);
        }
    }
    if (spec.family == "gpt-neox") {
        writer.set_bool(arch + ".use_parallel_residual", spec.residual == Residual::parallel);
    }
    writer.set_u32(arch + ".vocab_size", u32(spec.vocab));
    write_rope(writer, arch, spec);
    write_diffusion(writer, arch, spec);
    if (tokenizer) {
        text::write_tokenizer(writer, padded_vocabulary(tokenizer->data(), spec.vocab));
    } else {
        writer.set_string("tokenizer.ggml.model", "no_vocab");
    }
}

}  // namespace mr::model
