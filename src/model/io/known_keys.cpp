#include "model/io/known_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "core/error.h"
#include "formats/bytes.h"
#include "ops/attention/mask.h"

namespace mr::model {
namespace {

// Under "<arch>.": those that load_gguf.cpp reads, and those that say nothing of the result.
constexpr std::string_view kGgufKeys[] = {
    "vocab_size",
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "use_parallel_residual",
    "tensor_data_layout",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
};

// Those whose other values ask for what the engine has not.
struct NeutralKey {
    std::string_view name;
    double value;  // that changes nothing
};
constexpr NeutralKey kNeutralGgufKeys[] = {
    {"attention.causal", 1},
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.output_scale", 1},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"logit_scale", 1},
    {"embedding_scale", 1},
    {"residual_scale", 1},
    {"expert_count", 0},
    {"expert_used_count", 0},
    {"pooling_type", 0},
    {"rope.scaling.alpha", 0},
    {"rope.scaling.yarn_attn_factor", 1},
    {"rope.scaling.yarn_log_multiplier", 0},
};

// Keys of config.json that load_huggingface.cpp reads.
constexpr std::string_view kConfigKeys[] = {
    "architectures",
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "hidden_act",
    "rms_norm_eps",
    "layer_norm_eps",
    "attention_bias",
    "mlp_bias",
    "tie_word_embeddings",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "rotary_pct",
    "rotary_emb_base",
    "use_parallel_residual",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "quantization_config",
    "eos_token_id",
    // GPT-2's names
    "n_embd",
    "n_layer",
    "n_head",
    "n_inner",
    "n_positions",
    "activation_function",
    "layer_norm_epsilon",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
    "add_cross_attention",
};

// Keys that say nothing of what a causal language model computes at inference.
constexpr std::string_view kHarmlessConfigKeys[] = {
    // where the file comes from and how it is stored
    "_name_or_path",
    "name_or_path",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "auto_map",
    "language",
    "license",
    "tokenizer_class",
    "unsloth_fixed",
    "unsloth_version",
    "_commit_hash",
    "transformers.js_config",
    // tokens
    "bos_token_id",
    "pad_token_id",
    "unk_token_id",
    "sep_token_id",
    "cls_token_id",
    "mask_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "prefix",
    // training
    "initializer_range",
    "initializer_factor",
    "attention_dropout",
    "hidden_dropout",
    "classifier_dropout",
    "attn_pdrop",
    "embd_pdrop",
    "resid_pdrop",
    "gradient_checkpointing",
    "pretraining_tp",
    "router_aux_loss_coef",
    "attention_probs_dropout_prob",
    "hidden_dropout_prob",
    "fp16",
    "bf16",
    // other tasks of the same class
    "id2label",
    "label2id",
    "num_labels",
    "_num_labels",
    "problem_type",
    "finetuning_task",
    "task_specific_params",
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_proj_to_labels",
    "summary_first_dropout",
    // how transformers runs it
    "use_cache",
    "_attn_implementation",
    "_attn_implementation_internal",
    "_attn_implementation_autoset",
    "attn_implementation",
    "_flash_attn_2_enabled",
    "reorder_and_upcast_attn",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_scores",
    "return_dict",
    "return_dict_in_generate",
    "torchscript",
    "use_bfloat16",
    "tf_legacy_loss",
    "chunk_size_feed_forward",
    "is_decoder",
    "is_llama_config",
    "pruned_heads",
    "remove_invalid_values",
    "n_ctx",
    "n_special",
    "predict_special_tokens",
    "model_max_length",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "use_flash_attention_2",
    "base_model_tp_plan",
    "base_model_pp_plan",
    "keys_to_ignore_at_inference",
    "tokenizer_model_max_length",
    // generation, as configurations had it before generation_config.json
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "length_penalty",
    "diversity_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "bad_words_ids",
    "begin_suppress_tokens",
    "suppress_tokens",
    "early_stopping",
};

// Those that may be there as long as they ask for nothing.
constexpr NeutralKey kNeutralConfigKeys[] = {
    {"is_encoder_decoder", 0},   {"output_router_logits", 0}, {"use_mrope", 0},
    {"tie_encoder_decoder", 0},  {"use_qk_norm", 0},          {"rope_interleaved", 0},
    {"num_experts", 0},          {"num_local_experts", 0},    {"logits_scaling", 1},
    {"embedding_multiplier", 1}, {"residual_multiplier", 1},  {"logit_scale", 1},
};

constexpr std::string_view kRopeKeys[] = {
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "attention_factor",
    "truncate",
    "finetuned",
};

template <typename List>
bool has(const List& list, std::string_view key) {
    return std::find(std::begin(list), std::end(list), key) != std::end(list);
}

template <typename List>
std::optional<double> neutral(const List& list, std::string_view key) {
    const auto at = std::find_if(std::begin(list), std::end(list),
                                 [&](const NeutralKey& known) { return known.name == key; });
    if (at == std::end(list)) return std::nullopt;
    return at->value;
}

// Keys that are not known, or not in this way, and those of `ignored` that are there.
struct Found {
    std::vector<std::string> unknown, unable, ignored;

    void refuse(const std::string& file) const {
        if (unknown.empty() && unable.empty()) return;
        std::vector<std::string> all = unknown.empty() ? unable : unknown;
        for (std::string& key : all) key = formats::printable(key);
        const char* problem =
            unknown.empty() ? "ask for something that this engine has not"
                            : "this engine does not know them: they may change what the model says";
        throw Error::input({.file = file,
                            .field = fmt::format("keys {}", fmt::join(all, ", ")),
                            .problem = problem,
                            .remedy = fmt::format("--ignore-key {} runs the model without",
                                                  fmt::join(all, " --ignore-key "))});
    }
    void note_absent(std::span<const std::string> wanted, std::vector<std::string>& notes) const {
        for (const std::string& key : wanted) {
            if (has(ignored, key)) continue;
            notes.push_back(
                fmt::format("--ignore-key {}: the model has no such key", formats::printable(key)));
        }
    }
};

}  // namespace

void require_known_keys(const formats::GgufFile& file, const std::string& arch,
                        const ModelSpec& spec, std::span<const std::string> ignored,
                        std::vector<std::string>& notes) {
    Found found;
    if (const auto type = file.get_string("general.type");
        type && *type != "model" && !has(ignored, "general.type")) {
        throw Error::input({.file = file.path(),
                            .field = "general.type",
                            .value = formats::printable(*type),
                            .problem = "this file holds no whole model",
                            .remedy = "give the model that it belongs to"});
    }
    for (const std::string& key : file.keys()) {
        if (has(ignored, key)) found.ignored.push_back(key);
        if (!key.starts_with(arch + ".") || has(ignored, key)) continue;
        const std::string_view name = std::string_view(key).substr(arch.size() + 1);
        if (has(kGgufKeys, name)) continue;
        std::optional<double> harmless = neutral(kNeutralGgufKeys, name);
        if (name == "attention.scale") harmless = ops::default_scale(spec.head_dim);
        std::optional<double> value;
        using formats::GgufType;
        const GgufType type = *file.type_of(key);
        if (type == GgufType::boolean) {
            value = *file.get_bool(key) ? 1 : 0;
        } else if (type != GgufType::string && type != GgufType::array) {
            value = file.get_float(key);
        }
        // A writer may have rounded it to f32.
        if (harmless && value && std::fabs(*value - *harmless) <= 1e-6 * std::fabs(*harmless)) {
            continue;
        }
        (harmless ? found.unable : found.unknown).push_back(key);
    }
    found.refuse(file.path());
    found.note_absent(ignored, notes);
}

void require_known_keys(formats::JsonValue config, const std::string& file,
                        std::span<const std::string> ignored, std::vector<std::string>& notes) {
    Found found;
    for (const auto& [key, value] : config.items()) {
        if (has(ignored, key)) found.ignored.emplace_back(key);
        if (value.is_null() || has(ignored, key)) continue;
        if (key == "rope_scaling" || key == "rope_parameters") {
            for (const auto& [inner, part] : value.items()) {
                const std::string name = fmt::format("{}.{}", key, inner);
                if (has(ignored, name)) found.ignored.push_back(name);
                if (part.is_null() || part.is_object() || has(kRopeKeys, inner)) continue;
                if (!has(ignored, name)) found.unknown.push_back(name);
            }
            continue;
        }
        if (has(kConfigKeys, key) || has(kHarmlessConfigKeys, key)) continue;
        const std::optional<double> harmless = neutral(kNeutralConfigKeys, key);
        if (harmless) {
            const bool same = value.is_boolean()  ? value.get<bool>() == (*harmless != 0)
                              : value.is_number() ? value.get<double>() == *harmless
                                                  : false;
            if (same) continue;
        }
        (harmless ? found.unable : found.unknown).emplace_back(key);
    }
    found.refuse(file);
    found.note_absent(ignored, notes);
}

}  // namespace mr::model
