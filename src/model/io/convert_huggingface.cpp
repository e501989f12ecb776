#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "core/read_double.h"
#include "model/io/convert_formats.h"
#include "model/io/load_diffusion.h"
#include "model/names.h"

namespace mr::model {
namespace {

using nlohmann::ordered_json;
using Scaling = RopeSpec::Scaling;

const char* activation_in_config(ops::Activation activation) {
    switch (activation) {
        case ops::Activation::silu:
            return "silu";
        case ops::Activation::gelu:
            return "gelu";
        case ops::Activation::gelu_tanh:
            return "gelu_new";
        case ops::Activation::relu:
            return "relu";
    }
    return "";
}

[[noreturn]] void cannot_say(const std::string& file, const char* field, std::string value) {
    throw Error::input({.file = file,
                        .field = field,
                        .value = std::move(value),
                        .problem = "config.json of this family has no key for this",
                        .remedy = "convert to GGUF instead"});
}

// GGUF stores Llama-3's scaling only as divisors; config.json needs the parameters they came from.
// Llama-3 models have low and high factors of 1 and 4, and contexts that are powers of two.
RopeSpec recover_llama3(RopeSpec rope, const std::string& file) {
    if (rope.freq_factors.empty()) return rope;
    const std::vector<float> wanted = std::move(rope.freq_factors);
    rope.freq_factors.clear();
    if (rope.scaling == Scaling::none) {
        rope.scaling = Scaling::llama3;
        rope.factor = static_cast<double>(*std::max_element(wanted.begin(), wanted.end()));
        rope.low_freq_factor = 1;
        rope.high_freq_factor = 4;
        for (double context = 16; context <= 1 << 24; context *= 2) {
            rope.original_context = context;
            const std::vector<float> made = gguf_frequency_factors(rope);
            bool same = true;
            for (std::size_t i = 0; i < made.size() && same; ++i) {
                same = std::abs(made[i] - wanted[i]) <= 1e-5f * wanted[i];
            }
            if (same) return rope;
        }
    }
    cannot_say(file, "rope_freqs.weight", fmt::format("{} divisors", wanted.size()));
}

void add_rope(ordered_json& config, const ModelSpec& spec, const std::string& file) {
    const RopeSpec rope = recover_llama3(spec.rope, file);
    if (spec.family == "gpt-neox") {
        // Loaders multiply and truncate: half a step more keeps the number of elements.
        double part = static_cast<double>(rope.rotary) / spec.head_dim;
        if (static_cast<int>(spec.head_dim * part) != rope.rotary) part += 0.5 / spec.head_dim;
        config["rotary_pct"] = part;
        config["rotary_emb_base"] = rope.theta;
    } else {
        if (rope.rotary != spec.head_dim) {
            cannot_say(file, "rotary dimensions", fmt::format("{}", rope.rotary));
        }
        config["rope_theta"] = rope.theta;
    }
    config["rope_scaling"] = nullptr;
    if (rope.scaling == Scaling::none) return;
    ordered_json scaling;
    scaling["rope_type"] = rope.scaling == Scaling::linear   ? "linear"
                           : rope.scaling == Scaling::llama3 ? "llama3"
                                                             : "yarn";
    scaling["factor"] = rope.factor;
    if (rope.scaling != Scaling::linear) {
        scaling["original_max_position_embeddings"] = std::llround(rope.original_context);
    }
    if (rope.scaling == Scaling::llama3) {
        scaling["low_freq_factor"] = rope.low_freq_factor;
        scaling["high_freq_factor"] = rope.high_freq_factor;
    }
    if (rope.scaling == Scaling::yarn) {
        scaling["beta_fast"] = rope.beta_fast;
        scaling["beta_slow"] = rope.beta_slow;
        if (rope.attention_factor > 0) scaling["attention_factor"] = rope.attention_factor;
    }
    config["rope_scaling"] = std::move(scaling);
}

void add_gpt2(ordered_json& config, const ModelSpec& spec) {
    config["n_embd"] = spec.dim;
    config["n_layer"] = spec.layers;
    config["n_head"] = spec.heads;
    config["n_inner"] = spec.hidden;
    config["n_positions"] = spec.context;
    config["activation_function"] = activation_in_config(spec.activation);
    config["layer_norm_epsilon"] = shortest_double(spec.norm_eps);
}

void add_common(ordered_json& config, const ModelSpec& spec) {
    config["hidden_size"] = spec.dim;
    config["num_hidden_layers"] = spec.layers;
    config["num_attention_heads"] = spec.heads;
    config["intermediate_size"] = spec.hidden;
    config["max_position_embeddings"] = spec.context;
    config["hidden_act"] = activation_in_config(spec.activation);
}

void add_neox(ordered_json& config, const ModelSpec& spec, const std::string& file) {
    if (spec.qkv_bias != spec.out_bias || !spec.mlp_bias) cannot_say(file, "biases", "some");
    config["layer_norm_eps"] = shortest_double(spec.norm_eps);
    config["use_parallel_residual"] = spec.residual == Residual::parallel;
    config["attention_bias"] = spec.qkv_bias;
}

void add_llama(ordered_json& config, const ModelSpec& spec, const std::string& file) {
    config["num_key_value_heads"] = spec.kv_heads;
    config["head_dim"] = spec.head_dim;
    config["rms_norm_eps"] = shortest_double(spec.norm_eps);
    const bool qwen2 = layers_like(spec.family) == "qwen2";
    const bool can_have_bias = !qwen2 && spec.family != "mistral";
    const bool same = spec.qkv_bias == spec.out_bias && (can_have_bias || !spec.qkv_bias);
    if (qwen2 ? !spec.qkv_bias || spec.out_bias : !same) cannot_say(file, "biases", "some");
    if (can_have_bias) config["attention_bias"] = spec.qkv_bias;
    if (spec.family == "sdar" && !spec.qk_norm) config["qk_norm"] = false;
}

// LLaDA's own keys. Its code has other defaults, so every key that matters is written.
void add_llada(ordered_json& config, const ModelSpec& spec, const std::string& file) {
    if (spec.out_bias) cannot_say(file, "biases", "some");
    if (spec.rope.scaling != Scaling::none || !spec.rope.freq_factors.empty()) {
        cannot_say(file, "rotary scaling", "some");
    }
    if (spec.rope.rotary != spec.head_dim || spec.head_dim * spec.heads != spec.dim) {
        cannot_say(file, "head size", fmt::format("{}", spec.head_dim));
    }
    if (spec.activation != ops::Activation::silu) {
        cannot_say(file, "activation", ops::activation_name(spec.activation));
    }
    config["embedding_size"] = spec.vocab;
    config["d_model"] = spec.dim;
    config["n_layers"] = spec.layers;
    config["n_heads"] = spec.heads;
    config["n_kv_heads"] = spec.kv_heads;
    config["mlp_hidden_size"] = spec.hidden;
    config["max_sequence_length"] = spec.context;
    config["block_type"] = "llama";
    config["block_group_size"] = 1;
    config["activation_type"] = "silu";
    config["layer_norm_type"] = "rms";
    config["layer_norm_with_affine"] = true;
    config["rms_norm_eps"] = shortest_double(spec.norm_eps);
    config["rope"] = true;
    config["rope_full_precision"] = true;
    config["rope_theta"] = spec.rope.theta;
    config["alibi"] = false;
    config["attention_layer_norm"] = false;
    config["bias_for_layer_norm"] = false;
    config["include_bias"] = false;
    config["include_qkv_bias"] = spec.qkv_bias;
    config["input_emb_norm"] = false;
    config["scale_logits"] = false;
    config["weight_tying"] = spec.tied_embeddings;
}

void add_diffusion(ordered_json& config, const ModelSpec& spec, const std::string& file) {
    if (!spec.diffusion) return;
    const DiffusionSpec& diffusion = *spec.diffusion;
    const DiffusionFamily& family = *diffusion_family(spec.family);
    if (diffusion.shifted != family.shifted) {
        cannot_say(file, "shifted logits", diffusion.shifted ? "true" : "false");
    }
    const bool fast = spec.family == "fast-dllm";
    config["mask_token_id"] = diffusion.mask;
    if (family.blocks) config[fast ? "bd_size" : "block_size"] = diffusion.block;
    // Our own key: Fast-dLLM v2 has it as an argument of its decoder.
    if (fast) {
        config["sub_block_size"] = diffusion.sub_block > 0 ? diffusion.sub_block : diffusion.block;
    }
}

void add_windows(ordered_json& config, const ModelSpec& spec, const std::string& file) {
    const Windows windows = windows_of(spec, file);
    const bool some = windows.window > 0;
    const bool qwen = layers_like(spec.family).starts_with("qwen");
    const bool mistral = spec.family == "mistral";
    // In Mistral all layers slide or none; the other families have no window at all.
    if (some && !qwen && (!mistral || !windows.all())) {
        cannot_say(file, "sliding window", fmt::format("{}", windows.window));
    }
    if (!qwen && !mistral) return;
    config["sliding_window"] = nullptr;
    if (some) config["sliding_window"] = windows.window;
    if (!qwen) return;
    config["use_sliding_window"] = some;
    // The first sliding layer, if all later ones slide: older versions of transformers do not know
    // layer_types.
    const auto first = std::find(windows.slides.begin(), windows.slides.end(), true);
    const bool suffix = std::find(first, windows.slides.end(), false) == windows.slides.end();
    config["max_window_layers"] = suffix ? first - windows.slides.begin() : spec.layers;
    if (!some || windows.all()) return;
    ordered_json types = ordered_json::array();
    for (const bool slides : windows.slides) {
        types.push_back(slides ? "sliding_attention" : "full_attention");
    }
    config["layer_types"] = std::move(types);
}

}  // namespace

std::string huggingface_config(const ModelSpec& spec, const text::Tokenizer* tokenizer, DType type,
                               const std::string& file) {
    const FamilyNames& names = names_of_family(spec.family);
    require_diffusion_can_be_held(spec, file);
    ordered_json config;
    config["architectures"] = {names.architecture};
    config["model_type"] = names.model_type;
    config["vocab_size"] = spec.vocab;
    if (spec.family == "gpt2") {
        add_gpt2(config, spec);
    } else if (spec.family == "llada") {
        add_llada(config, spec, file);
    } else {
        add_common(config, spec);
        add_rope(config, spec, file);
        if (spec.family == "gpt-neox") {
            add_neox(config, spec, file);
        } else {
            add_llama(config, spec, file);
        }
    }
    add_windows(config, spec, file);
    add_diffusion(config, spec, file);
    if (spec.family != "llada") config["tie_word_embeddings"] = spec.tied_embeddings;
    config["torch_dtype"] = type == DType::f16    ? "float16"
                            : type == DType::bf16 ? "bfloat16"
                                                  : "float32";
    // Without a tokenizer these are unknown, and the family's defaults would be guesses.
    config["bos_token_id"] = nullptr;
    config["eos_token_id"] = nullptr;
    if (tokenizer && tokenizer->bos()) config["bos_token_id"] = *tokenizer->bos();
    if (tokenizer && tokenizer->eos()) config["eos_token_id"] = *tokenizer->eos();
    return config.dump(2) + "\n";
}

}  // namespace mr::model
