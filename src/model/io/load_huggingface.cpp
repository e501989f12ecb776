#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/mapped_file.h"
#include "formats/bytes.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "hub/cache.h"
#include "model/io/config_json.h"
#include "model/io/generation.h"
#include "model/io/known_keys.h"
#include "model/io/load_diffusion.h"
#include "model/io/source.h"

namespace mr::model {
namespace {

namespace fs = std::filesystem;
using formats::JsonValue;

// By model_type, as transformers does; by the architecture if that is missing. An architecture that
// is not a language model has other tensors.
std::string read_family(const Config& config, std::vector<std::string>& notes) {
    const std::string remedy = listed_families(&FamilyNames::architecture) + " are";
    std::string named;
    if (const auto list = config.find("architectures")) {
        if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
            config.fail("architectures", "must be a list of one name");
        }
        named = list->front().get<std::string>();
    }
    const std::string type = config.get_string("model_type", "");
    const FamilyNames *by_name = nullptr, *by_type = nullptr;
    for (const FamilyNames& known : family_names()) {
        if (named == known.architecture) by_name = &known;
        if (type == known.model_type) by_type = &known;
    }
    const bool language = named.ends_with("ForCausalLM") || named.ends_with("LMHeadModel");
    if (!named.empty() && !by_name && (!by_type || !language)) {
        config.fail("architectures", "this architecture is not supported", remedy);
    }
    if (!by_type && !type.empty()) {
        config.fail("model_type", "names no architecture that is supported", remedy);
    }
    if (!by_type && !by_name) {
        config.fail("architectures", "the field is missing, and so is model_type", remedy);
    }
    if (by_type && !named.empty() && by_name != by_type) {
        notes.push_back(fmt::format(
            "config.json names the architecture {} and the model_type {}: the model_type is taken",
            formats::printable(named), type));
    }
    return (by_type ? by_type : by_name)->family;
}

ops::Activation read_activation(const Config& config, const char* key, const char* fallback) {
    const std::string name = config.get_string(key, fallback);
    if (name == "silu" || name == "swish") return ops::Activation::silu;
    if (name == "gelu") return ops::Activation::gelu;
    if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh") {
        return ops::Activation::gelu_tanh;
    }
    if (name == "relu") return ops::Activation::relu;
    config.fail(key, "this activation is not supported",
                "silu, gelu, gelu_new, gelu_fast, gelu_pytorch_tanh and relu are");
}

// YaRN's own magnitude; `mscale` weights its logarithm.
double yarn_mscale(double factor, double mscale) {
    return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void read_yarn(const Config& scaling, ModelSpec& spec) {
    RopeSpec& rope = spec.rope;
    rope.scaling = RopeSpec::Scaling::yarn;
    rope.factor = scaling.find_float("factor").value_or(spec.context / rope.original_context);
    // Here zero counts as absent.
    if (const auto beta = scaling.find_float("beta_fast"); beta && *beta != 0) {
        rope.beta_fast = *beta;
    }
    if (const auto beta = scaling.find_float("beta_slow"); beta && *beta != 0) {
        rope.beta_slow = *beta;
    }
    const double mscale = scaling.find_float("mscale").value_or(0);
    const double mscale_all = scaling.find_float("mscale_all_dim").value_or(0);
    if (const auto given = scaling.find_float("attention_factor")) {
        if (!(*given > 0)) scaling.fail("attention_factor", "must be a positive number");
        rope.attention_factor = *given;
    } else if (mscale != 0 && mscale_all != 0) {
        rope.attention_factor =
            yarn_mscale(rope.factor, mscale) / yarn_mscale(rope.factor, mscale_all);
    }
    // Here null is no.
    const bool truncates = scaling.find("truncate") ? scaling.get_bool("truncate", true)
                                                    : !scaling.object().contains("truncate");
    if (!truncates) {
        scaling.fail("truncate", "YaRN with a range that is not truncated is not supported");
    }
}

void read_rope_scaling(const Config& config, const Config& scaling, ModelSpec& spec) {
    RopeSpec& rope = spec.rope;
    for (const auto& [key, value] : scaling.object().items()) {
        if (value.is_object()) {
            scaling.fail(std::string(key).c_str(),
                         "rotary positions that differ by layer are not supported");
        }
    }
    const char* kind_key = scaling.find("rope_type") ? "rope_type" : "type";
    const std::string kind = scaling.get_string(kind_key, "default");
    rope.original_context = config.find_float("original_max_position_embeddings")
                                .value_or(scaling.find_float("original_max_position_embeddings")
                                              .value_or(static_cast<double>(spec.context)));
    if (kind == "default") {
        rope.original_context = 0;
    } else if (kind == "linear") {
        rope.original_context = 0;
        rope.scaling = RopeSpec::Scaling::linear;
        rope.factor = scaling.need_float("factor");
    } else if (kind == "llama3") {
        rope.scaling = RopeSpec::Scaling::llama3;
        rope.factor = scaling.need_float("factor");
        rope.low_freq_factor = scaling.need_float("low_freq_factor");
        rope.high_freq_factor = scaling.need_float("high_freq_factor");
    } else if (kind == "yarn") {
        if (!(rope.original_context > 0)) {
            scaling.fail("original_max_position_embeddings", "must be a positive number");
        }
        read_yarn(scaling, spec);
    } else {
        scaling.fail(kind_key, "this kind of rotary scaling is not supported",
                     "default, linear, llama3 and yarn are");
    }
}

// The head whose share is rotated. GPT-NeoX's `head_dim` changes only that one, as in transformers;
// its heads themselves are hidden_size / num_attention_heads.
int rotated_head(const Config& config, const ModelSpec& spec) {
    const int given = spec.family == "gpt-neox" ? config.find_int("head_dim").value_or(0) : 0;
    return given > 0 ? given : spec.head_dim;
}

// Both dialects: transformers 5 has everything in `rope_parameters`; before, it was `rope_theta`
// and `rope_scaling`, and GPT-NeoX had its own names.
void read_rope(const Config& config, ModelSpec& spec, std::vector<std::string>& notes) {
    const bool neox = spec.family == "gpt-neox";
    auto scaling = config.find_object("rope_scaling");
    if (!scaling || scaling->object().empty()) scaling = config.find_object("rope_parameters");
    const char* theta_key = neox ? "rotary_emb_base" : "rope_theta";
    const char* part_key = neox ? "rotary_pct" : "partial_rotary_factor";
    double theta = config.find_float(theta_key).value_or(10000.0);
    double part = config.find_float(part_key).value_or(neox ? 0.25 : 1.0);
    if (scaling) {
        theta = scaling->find_float("rope_theta").value_or(theta);
        part = scaling->find_float("partial_rotary_factor").value_or(part);
    }
    if (!(part > 0 && part <= 1)) {
        const char* problem = "the share of a head that turns must be in (0, 1]";
        if (scaling && scaling->find("partial_rotary_factor")) {
            scaling->fail("partial_rotary_factor", problem);
        }
        config.fail(part_key, problem);
    }
    const auto kind =
        scaling ? scaling->get_string(scaling->find("rope_type") ? "rope_type" : "type", "default")
                : "default";
    if (!neox && part != 1 && kind == "default") {
        notes.push_back(fmt::format(
            "config.json has partial_rotary_factor {}, which transformers does not use for {}: "
            "whole heads are rotated",
            part, spec.family));
        part = 1;
    }
    spec.rope.theta = theta;
    spec.rope.rotary = static_cast<int>(rotated_head(config, spec) * part);
    if (spec.rope.rotary > spec.head_dim) {
        config.fail("head_dim", fmt::format("turns {} elements of a head of {}", spec.rope.rotary,
                                            spec.head_dim));
    }
    spec.rope.style = ops::RopeStyle::half;
    if (spec.rope.rotary % 2 != 0 && part < 1) {
        config.fail(part_key, fmt::format("turns {} of the {} elements of a head (head_dim, or "
                                          "hidden_size / num_attention_heads): an odd number",
                                          spec.rope.rotary, spec.head_dim));
    }
    if (scaling) read_rope_scaling(config, *scaling, spec);
}

// Which layers slide according to `layer_types`; all false without such a list.
std::vector<bool> read_layer_types(const Config& config, int layers) {
    std::vector<bool> slides(static_cast<std::size_t>(layers), false);
    const auto types = config.find("layer_types");
    if (!types) return slides;
    if (!types->is_array() || types->size() != slides.size()) {
        config.fail("layer_types", fmt::format("must name the {} layers", layers));
    }
    for (std::size_t i = 0; i < slides.size(); ++i) {
        slides[i] = (*types)[i] == "sliding_attention";
        if (!slides[i] && (*types)[i] != "full_attention") {
            config.fail("layer_types", "has an unsupported attention type",
                        "supported are full_attention and sliding_attention");
        }
    }
    return slides;
}

// The sliding layers, as in transformers. A window as long as the context changes nothing and is
// dropped.
void read_windows(const Config& config, ModelSpec& spec) {
    const bool qwen = layers_like(spec.family).starts_with("qwen");
    if (!qwen && spec.family != "mistral") return;
    // transformers' default, where the field is missing rather than null.
    int window = config.object().contains("sliding_window")
                     ? config.find_int("sliding_window").value_or(0)
                     : 4096;
    const bool switched_on = !qwen || config.get_bool("use_sliding_window", false);
    if (!switched_on) window = 0;
    std::vector<bool> slides = read_layer_types(config, spec.layers);
    const auto sliding = std::count(slides.begin(), slides.end(), true);
    if (sliding > 0 && window == 0) {
        config.fail("layer_types", "has sliding layers, but there is no sliding window",
                    qwen ? "set use_sliding_window and sliding_window" : "set sliding_window");
    }
    if (!qwen) {
        if (config.find("layer_types") && window > 0 && sliding != spec.layers) {
            config.fail("layer_types", "in this architecture, all layers must slide, or none");
        }
        slides.assign(slides.size(), true);
    } else if (!config.find("layer_types")) {
        const int first = config.find_int("max_window_layers").value_or(28);
        for (int i = first; i < spec.layers; ++i) slides[static_cast<std::size_t>(i)] = true;
    }
    const bool some = std::find(slides.begin(), slides.end(), true) != slides.end();
    if (some && window == 0 && switched_on && config.find("sliding_window")) {
        config.fail("sliding_window", "must be at least 1: in a window of 0 no token sees any",
                    "null is no window");
    }
    if (window < spec.context) set_windows(spec, window, slides);
}

// A number of GPT-2's under its own name or under the one that other families have (the
// attribute_map of transformers). If both are there, the other families' wins, as in transformers.
struct Gpt2Number {
    const char* key;  // the one that was read
    std::optional<int> value;
};
Gpt2Number read_gpt2_number(const Config& config, const char* own, const char* common,
                            std::vector<std::string>& notes) {
    const auto value = config.find_int(own), other = config.find_int(common);
    if (!other) return {own, value};
    if (value && *value != *other) {
        notes.push_back(fmt::format("config.json has {} {} and {} {}: the latter is taken", own,
                                    *value, common, *other));
    }
    return {common, other};
}

ModelSpec read_gpt2(const Config& config, ModelSpec spec, std::vector<std::string>& notes) {
    const auto number = [&](const char* own, const char* common) {
        const Gpt2Number read = read_gpt2_number(config, own, common, notes);
        if (!read.value) config.fail(own, "the field is missing");
        return *read.value;
    };
    spec.dim = number("n_embd", "hidden_size");
    spec.layers = number("n_layer", "num_hidden_layers");
    const Gpt2Number heads = read_gpt2_number(config, "n_head", "num_attention_heads", notes);
    if (!heads.value) config.fail("n_head", "the field is missing");
    spec.heads = spec.kv_heads = *heads.value;
    spec.hidden = config.find_int("n_inner").value_or(4 * spec.dim);
    spec.context = read_gpt2_number(config, "n_positions", "max_position_embeddings", notes)
                       .value.value_or(1024);
    if (spec.heads < 1 || spec.dim % spec.heads != 0) {
        config.fail(heads.key, fmt::format("the width of {} is not a multiple of it", spec.dim));
    }
    spec.head_dim = spec.dim / spec.heads;
    spec.norm = NormKind::layer;
    spec.norm_eps = static_cast<float>(config.find_float("layer_norm_epsilon").value_or(1e-5));
    spec.activation = read_activation(config, "activation_function", "gelu_new");
    spec.gated = false;
    spec.qkv_bias = spec.out_bias = spec.mlp_bias = true;
    spec.learned_positions = true;
    spec.tied_embeddings = config.get_bool("tie_word_embeddings", true);
    for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
        if (config.get_bool(key, false)) config.fail(key, "is not supported");
    }
    if (!config.get_bool("scale_attn_weights", true)) {
        config.fail("scale_attn_weights", "is not supported");
    }
    return spec;
}

ModelSpec read_neox(const Config& config, ModelSpec spec) {
    spec.norm = NormKind::layer;
    spec.norm_eps = static_cast<float>(config.find_float("layer_norm_eps").value_or(1e-5));
    spec.activation = read_activation(config, "hidden_act", "gelu");
    spec.gated = false;
    spec.qkv_bias = spec.out_bias = config.get_bool("attention_bias", true);
    spec.mlp_bias = true;
    spec.residual =
        config.get_bool("use_parallel_residual", true) ? Residual::parallel : Residual::sequential;
    return spec;
}

ModelSpec read_llama(const Config& config, ModelSpec spec) {
    spec.norm_eps = static_cast<float>(config.find_float("rms_norm_eps").value_or(1e-6));
    spec.activation = read_activation(config, "hidden_act", "silu");
    const std::string like = layers_like(spec.family);
    const bool bias =
        like != "mistral" && like != "qwen2" && config.get_bool("attention_bias", false);
    spec.qkv_bias = bias || like == "qwen2";
    spec.out_bias = bias;
    spec.qk_norm = like == "qwen3";
    // Our own key, for models with Llama's layers that were trained by diffusion.
    if (spec.family == "sdar") spec.qk_norm = config.get_bool("qk_norm", true);
    if (spec.family == "llama" && config.get_bool("mlp_bias", false)) {
        config.fail("mlp_bias", "biases in a gated MLP are not supported");
    }
    return spec;
}

// 0: hidden_size / num_attention_heads; transformers treats a 0 the same way.
int read_head_dim(const Config& config, const std::string& family) {
    if (family == "gpt-neox") return 0;
    // transformers' default for Qwen3, where the field is missing rather than null; SDAR's, too.
    if (layers_like(family) == "qwen3" && !config.object().contains("head_dim")) return 128;
    return config.find_int("head_dim").value_or(0);
}

// The folder's name; for a checkpoint the run's; in a cache of downloads, where the folder is named
// after a commit, the model's.
std::string name_of(const std::string& folder) {
    const std::string downloaded = hub::name_in_cache(folder);
    if (!downloaded.empty()) return downloaded.substr(downloaded.find('/') + 1);
    const std::string run = run_of_checkpoint(folder);
    return fs::path(run.empty() ? folder : run).filename().string();
}

// Without the key, the number of the configuration's class; null is one for each head.
int read_kv_heads(const Config& config, const ModelSpec& spec) {
    constexpr const char* kKey = "num_key_value_heads";
    if (spec.family == "gpt-neox") return spec.heads;
    if (const auto given = config.find_int(kKey)) return *given;
    if (config.object().contains(kKey)) return spec.heads;
    if (spec.family == "mistral") return 8;
    const std::string like = layers_like(spec.family);
    return like == "qwen2" || like == "qwen3" ? 32 : spec.heads;
}

ModelSpec read_spec(const Config& config, const std::string& folder,
                    std::vector<std::string>& notes) {
    ModelSpec spec;
    spec.family = read_family(config, notes);
    spec.name = name_of(folder);
    if (config.find("quantization_config")) {
        config.fail("quantization_config", "weights quantised this way are not supported",
                    "use the original model, or a GGUF of it");
    }
    spec.vocab = config.need_int("vocab_size");
    if (spec.family == "gpt2") return read_gpt2(config, std::move(spec), notes);
    if (spec.family == "llada") return read_llada(config, std::move(spec), notes);
    spec.dim = config.need_int("hidden_size");
    spec.layers = config.need_int("num_hidden_layers");
    if (spec.layers < 1 || spec.layers > kMaxLayers) {
        config.fail("num_hidden_layers", fmt::format("must be between 1 and {}", kMaxLayers));
    }
    spec.heads = config.need_int("num_attention_heads");
    spec.kv_heads = read_kv_heads(config, spec);
    spec.hidden = config.need_int("intermediate_size");
    spec.context = config.need_int("max_position_embeddings");
    if (spec.heads < 1) config.fail("num_attention_heads", "must be at least 1");
    const int head_dim = read_head_dim(config, spec.family);
    if (head_dim == 0 && spec.dim % spec.heads != 0) {
        config.fail("num_attention_heads",
                    fmt::format("hidden_size = {} is not a multiple of it", spec.dim));
    }
    spec.head_dim = head_dim > 0 ? head_dim : spec.dim / spec.heads;
    if (spec.kv_heads > 0 && spec.heads % spec.kv_heads != 0) {
        config.fail("num_key_value_heads",
                    fmt::format("num_attention_heads = {} is not a multiple of it", spec.heads));
    }
    spec.tied_embeddings = config.get_bool("tie_word_embeddings", false);
    read_rope(config, spec, notes);
    spec = spec.family == "gpt-neox" ? read_neox(config, std::move(spec))
                                     : read_llama(config, std::move(spec));
    read_diffusion(config, spec, notes);
    // Last: per-layer specs are copies of the common one with their differences.
    read_windows(config, spec);
    return spec;
}

}  // namespace

Source open_huggingface(const std::string& path, const LoadOptions& options) {
    std::error_code code;
    const bool is_folder = fs::is_directory(path, code);
    fs::path folder = is_folder ? fs::path(path) : fs::path(path).parent_path();
    if (folder.empty()) folder = ".";
    // The name of "models/x/" is x.
    if (folder.filename().empty() && folder.has_parent_path()) folder = folder.parent_path();
    const std::string config_file = (folder / "config.json").string();
    if (!fs::exists(config_file, code)) {
        throw Error::input(
            {.file = path,
             .problem = "there is no config.json here: not a Hugging Face model",
             .remedy = fs::exists(folder / "model.safetensors", code)
                           ? "if a conversion into this folder was stopped, convert "
                             "again with --force"
                           : "give a GGUF file, a Hugging Face folder, a llama2.c .bin or "
                             "the folder of a training run"});
    }
    const auto document =
        formats::JsonDocument::parse(read_text_file(config_file, 1u << 24), config_file);
    const JsonValue object = document.root();
    if (!object.is_object()) {
        throw Error::input({.file = config_file, .problem = "must hold one JSON object"});
    }

    Source out;
    std::vector<std::string> notes;
    out.spec = read_spec(Config(object, config_file), fs::absolute(folder).string(), notes);
    require_known_keys(object, config_file, out.spec.family, options.ignore_keys, notes);
    out.spec.validate(config_file);
    out.dialect = huggingface_dialect(out.spec.family);
    out.path = path;
    out.format = "safetensors";
    const bool is_weights = !is_folder && fs::path(path).extension() == ".safetensors";
    auto file = std::make_shared<formats::SafetensorsFile>(
        formats::SafetensorsFile::open(is_weights ? path : folder.string()));
    out.tensors = file->tensors();
    out.maps = file->maps();
    out.find = [raw = file.get()](std::string_view name) { return raw->find_tensor(name); };
    out.file = file;
    out.notes = std::move(notes);
    out.untie_other_head();
    if (!options.tokenizer.empty()) {
        out.tokenizer = open_tokenizer(options.tokenizer, out.spec.vocab);
    } else if (fs::exists(folder / "tokenizer.json", code)) {
        out.tokenizer = text::Tokenizer::from_json_file((folder / "tokenizer.json").string());
    }
    require_vocab(out.spec, out.tokenizer.get(), config_file);
    out.generation =
        huggingface_generation(folder.string(), object, config_file, out.spec.vocab, out.notes);
    return out;
}

}  // namespace mr::model
