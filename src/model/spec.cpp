#include "model/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace mr::model {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Bounds far above any real model, small enough that no product of two of them overflows.
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxWidth = 1 << 22;
constexpr int kMaxHeads = 1 << 14;
constexpr int kMaxHeadDim = 1 << 12;
constexpr int kMaxContext = 1 << 28;

[[noreturn]] void reject(const std::string& file, std::string field, std::string value,
                         std::string problem) {
    throw Error::input({.file = file,
                        .field = std::move(field),
                        .value = std::move(value),
                        .problem = std::move(problem),
                        .remedy = "the model's configuration is wrong or not supported"});
}

void check_count(const std::string& file, const char* field, std::int64_t value, int max) {
    if (value >= 1 && value <= max) return;
    reject(file, field, fmt::format("{}", value), fmt::format("must be between 1 and {}", max));
}

void check_positive(const std::string& file, std::string field, double value) {
    if (std::isfinite(value) && value > 0) return;
    reject(file, std::move(field), fmt::format("{}", value), "must be a positive number");
}

// `where`: "" for all layers, or "layer 3: ".
void validate_rope(const RopeSpec& rope, int head_dim, const std::string& file,
                   const std::string& where) {
    using Scaling = RopeSpec::Scaling;
    if (rope.rotary < 0 || rope.rotary > head_dim || rope.rotary % 2 != 0) {
        reject(file, where + "rotary dimensions", fmt::format("{}", rope.rotary),
               fmt::format("must be even and at most the head's {} elements", head_dim));
    }
    if (rope.rotary == 0) return;
    check_positive(file, where + "rope theta", rope.theta);
    if (rope.scaling != Scaling::none) check_positive(file, where + "rope factor", rope.factor);
    if (rope.scaling == Scaling::llama3 || rope.scaling == Scaling::yarn) {
        check_positive(file, where + "rope original context", rope.original_context);
        if (rope.original_context > kMaxContext) {
            reject(file, where + "rope original context", fmt::format("{}", rope.original_context),
                   fmt::format("must be at most {}", kMaxContext));
        }
    }
    if (rope.scaling == Scaling::llama3) {
        check_positive(file, where + "rope low_freq_factor", rope.low_freq_factor);
        check_positive(file, where + "rope high_freq_factor", rope.high_freq_factor);
        if (rope.high_freq_factor <= rope.low_freq_factor) {
            reject(file, where + "rope high_freq_factor", fmt::format("{}", rope.high_freq_factor),
                   fmt::format("must be above low_freq_factor, {}", rope.low_freq_factor));
        }
    }
    if (rope.scaling == Scaling::yarn) {
        check_positive(file, where + "rope beta_fast", rope.beta_fast);
        check_positive(file, where + "rope beta_slow", rope.beta_slow);
        if (rope.theta <= 1) {
            reject(file, where + "rope theta", fmt::format("{}", rope.theta),
                   "YaRN needs it above 1");
        }
        if (!std::isfinite(rope.attention_factor) || rope.attention_factor < 0) {
            reject(file, where + "rope attention_factor", fmt::format("{}", rope.attention_factor),
                   "must be a positive number");
        }
    }
    if (!rope.freq_factors.empty()) {
        const std::size_t pairs = static_cast<std::size_t>(rope.rotary) / 2;
        if (rope.freq_factors.size() != pairs) {
            reject(file, where + "rope frequency factors",
                   fmt::format("{}", rope.freq_factors.size()),
                   fmt::format("there must be {}, one per frequency", pairs));
        }
        for (float factor : rope.freq_factors) {
            check_positive(file, where + "rope frequency factor", static_cast<double>(factor));
        }
    }
}

void validate_layer(const LayerSpec& layer, const ModelSpec& model, const std::string& file,
                    const std::string& where) {
    // A structured binding of every member: a new member must be checked before this compiles. Any
    // norm, qk_norm and activation is valid.
    const auto& [mask, rope, scale, softcap, norm, norm_eps, qk_norm, activation, gated] = layer;
    if (!std::isfinite(norm_eps) || norm_eps < 0 || norm_eps >= 1) {
        reject(file, where + "norm epsilon", fmt::format("{}", norm_eps), "must be in [0, 1)");
    }
    if (mask.window < 0) {
        reject(file, where + "sliding window", fmt::format("{}", mask.window),
               "must not be negative");
    }
    if (mask.block < 1) {
        reject(file, where + "attention block", fmt::format("{}", mask.block),
               "must be at least 1");
    }
    // No file format has sinks: programs set them to run a model without end with a window. A model
    // that was not trained for that degrades once its first tokens are gone.
    if (mask.sinks < 0) {
        reject(file, where + "attention sinks", fmt::format("{}", mask.sinks),
               "must not be negative");
    }
    if (mask.sinks > 0 && mask.window == 0) {
        reject(file, where + "attention sinks", fmt::format("{}", mask.sinks),
               "are what a sliding window leaves visible, and there is no window");
    }
    if (!std::isfinite(scale) || scale < 0) {
        reject(file, where + "scale of scores", fmt::format("{}", scale),
               "must be a positive number, or 0 for the usual one");
    }
    if (!std::isfinite(softcap) || softcap < 0) {
        reject(file, where + "softcap of scores", fmt::format("{}", softcap),
               "must be a positive number, or 0 for none");
    }
    if (gated && model.mlp_bias) {
        reject(file, where + "mlp bias", "true", "biases in a gated MLP are not supported");
    }
    validate_rope(rope, model.head_dim, file, where);
}

void validate_diffusion(const ModelSpec& spec, const std::string& file) {
    using Kind = ops::AttentionMask::Kind;
    if (!spec.diffusion) {
        for (const LayerSpec& layer : spec.layer_specs()) {
            if (layer.mask.kind == Kind::causal) continue;
            reject(file, "attention", layer.mask.kind == Kind::full ? "full" : "block-causal",
                   "tokens that come one after another cannot see later ones, and the model names "
                   "no mask token to fill in");
        }
        return;
    }
    const DiffusionSpec& d = *spec.diffusion;
    if (d.mask < 0 || d.mask >= spec.vocab) {
        reject(file, "mask token", fmt::format("{}", d.mask),
               fmt::format("must be a token of the vocabulary, 0 to {}", spec.vocab - 1));
    }
    if (d.block < 0 || d.block > spec.context) {
        reject(file, "block", fmt::format("{}", d.block),
               fmt::format("must be between 1 and the context, {}", spec.context));
    }
    if (d.sub_block < 0 || (d.sub_block > 0 && (d.block == 0 || d.block % d.sub_block != 0))) {
        reject(file, "sub-block", fmt::format("{}", d.sub_block),
               fmt::format("the block of {} is not a multiple of it", d.block));
    }
    for (const LayerSpec& layer : spec.layer_specs()) {
        const bool fits = d.block > 0 ? layer.mask.kind == Kind::block_causal &&
                                            layer.mask.block == d.block && layer.mask.origin == 0
                                      : layer.mask.kind == Kind::full;
        if (fits && layer.mask.window == 0) continue;
        reject(file, "attention", d.block > 0 ? fmt::format("blocks of {}", d.block) : "full",
               layer.mask.window > 0 ? "a sliding window beside it is not supported"
                                     : "a layer has another mask");
    }
    if (spec.learned_positions) {
        reject(file, "positions", "learned", "diffusion models must have rotary ones");
    }
}

// YaRN's magnitude, as its paper suggests.
double yarn_magnitude(double factor) { return factor <= 1 ? 1.0 : 0.1 * std::log(factor) + 1.0; }

// The pair (a fractional index) whose rotation makes `turns` turns over the original context.
double yarn_pair_of_turns(const RopeSpec& rope, double turns) {
    return rope.rotary * std::log(rope.original_context / (turns * 2 * kPi)) /
           (2 * std::log(rope.theta));
}

void scale_yarn(const RopeSpec& rope, RopeFrequencies& out) {
    const double low = std::max(std::floor(yarn_pair_of_turns(rope, rope.beta_fast)), 0.0);
    double high = std::min(std::ceil(yarn_pair_of_turns(rope, rope.beta_slow)), rope.rotary - 1.0);
    if (low == high) high += 0.001;
    for (std::size_t i = 0; i < out.inv_freq.size(); ++i) {
        const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        const double kept = out.inv_freq[i];
        out.inv_freq[i] = kept / rope.factor * ramp + kept * (1 - ramp);
    }
    out.magnitude = rope.attention_factor > 0 ? rope.attention_factor : yarn_magnitude(rope.factor);
}

void scale_llama3(const RopeSpec& rope, RopeFrequencies& out) {
    for (double& freq : out.inv_freq) {
        // Turns over the original context: high frequencies are kept, low ones slowed, those
        // between blended.
        const double turns = rope.original_context * freq / (2 * kPi);
        const double blend = std::clamp(
            (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0,
            1.0);
        freq = (1 - blend) * freq / rope.factor + blend * freq;
    }
}

}  // namespace

std::int64_t ModelSpec::widest_window() const {
    std::int64_t widest = 0;
    for (const LayerSpec& layer : layer_specs()) {
        if (layer.mask.window == 0 || layer.mask.sinks > 0) return 0;
        widest = std::max<std::int64_t>(widest, layer.mask.window);
    }
    return widest;
}

std::uint64_t ModelSpec::parameters() const {
    const auto n = [](int value) { return static_cast<std::uint64_t>(value); };
    const auto norm_size = [&](NormKind kind) {
        return kind == NormKind::layer ? 2 * n(dim) : n(dim);
    };
    std::uint64_t total = n(vocab) * n(dim) + norm_size(norm);
    for (const LayerSpec& of : layer_specs()) {
        total += 2 * norm_size(of.norm);
        total += n(q_dim()) * n(dim) * 2 + n(kv_dim()) * n(dim) * 2;
        if (qkv_bias) total += n(q_dim()) + 2 * n(kv_dim());
        if (out_bias) total += n(dim);
        if (of.qk_norm) total += 2 * n(head_dim);
        total += n(hidden) * n(dim) * (of.gated ? 3 : 2);
        if (mlp_bias) total += n(hidden) + n(dim);
    }
    if (learned_positions) total += n(context) * n(dim);
    if (!tied_embeddings) total += n(vocab) * n(dim);
    return total;
}

void ModelSpec::validate(const std::string& file) const {
    check_count(file, "vocabulary", vocab, kMaxVocab);
    check_count(file, "width", dim, kMaxWidth);
    check_count(file, "layers", layers, kMaxLayers);
    check_count(file, "heads", heads, kMaxHeads);
    check_count(file, "kv heads", kv_heads, kMaxHeads);
    check_count(file, "head size", head_dim, kMaxHeadDim);
    check_count(file, "hidden size", hidden, kMaxWidth);
    check_count(file, "context", context, kMaxContext);
    if (heads % kv_heads != 0) {
        reject(file, "kv heads", fmt::format("{}", kv_heads),
               fmt::format("the {} heads are not a multiple of it", heads));
    }
    validate_layer(*this, *this, file, "");
    if (own.empty()) return validate_diffusion(*this, file);
    if (own.size() != static_cast<std::size_t>(layers)) {
        reject(file, "layers of their own", fmt::format("{}", own.size()),
               fmt::format("there must be none or all {}", layers));
    }
    for (int i = 0; i < layers; ++i) {
        validate_layer(own[static_cast<std::size_t>(i)], *this, file, fmt::format("layer {}: ", i));
    }
    validate_diffusion(*this, file);
}

LayerSpec ModelSpec::common() const {
    LayerSpec out = *this;
    if (out.scale == 0) out.scale = ops::default_scale(head_dim);
    return out;
}

LayerSpec ModelSpec::layer(int i) const {
    MR_CHECK(i >= 0 && i < layers, "the model has the layer");
    LayerSpec out = own.empty() ? common() : own[static_cast<std::size_t>(i)];
    if (out.scale == 0) out.scale = ops::default_scale(head_dim);
    return out;
}

std::vector<LayerSpec> ModelSpec::layer_specs() const {
    std::vector<LayerSpec> out;
    out.reserve(static_cast<std::size_t>(layers));
    for (int i = 0; i < layers; ++i) out.push_back(layer(i));
    return out;
}

LayerRopes layer_ropes(const ModelSpec& spec) {
    LayerRopes out;
    for (const LayerSpec& layer : spec.layer_specs()) {
        if (layer.rope.rotary == 0) {
            out.of_layer.push_back(-1);
            continue;
        }
        const auto found = std::find(out.ropes.begin(), out.ropes.end(), layer.rope);
        out.of_layer.push_back(static_cast<int>(found - out.ropes.begin()));
        if (found == out.ropes.end()) out.ropes.push_back(layer.rope);
    }
    return out;
}

std::optional<LayerLack> lack_of(const ModelSpec& spec, TakesLayer takes) {
    const LayerSpec common = spec.common();
    for (int i = 0; i < spec.layers; ++i) {
        std::string what = takes(spec.layer(i), common);
        if (!what.empty()) return LayerLack{i, std::move(what)};
    }
    return std::nullopt;
}

void require_layers(const ModelSpec& spec, TakesLayer takes, const std::string& file,
                    const char* path, const char* remedy) {
    const std::optional<LayerLack> lack = lack_of(spec, takes);
    if (!lack) return;
    throw Error::input({.file = file,
                        .field = fmt::format("layer {}", lack->layer),
                        .problem = fmt::format("{} lacks {}", path, lack->what),
                        .remedy = remedy});
}

void set_diffusion(ModelSpec& spec, const DiffusionSpec& diffusion) {
    using Kind = ops::AttentionMask::Kind;
    spec.diffusion = diffusion;
    const auto set = [&](LayerSpec& layer) {
        layer.mask.kind = diffusion.block > 0 ? Kind::block_causal : Kind::full;
        layer.mask.block = diffusion.block > 0 ? diffusion.block : 1;
    };
    set(spec);
    for (LayerSpec& layer : spec.own) set(layer);
}

RopeFrequencies rope_frequencies(const RopeSpec& rope) {
    RopeFrequencies out;
    out.inv_freq.resize(static_cast<std::size_t>(rope.rotary) / 2);
    for (std::size_t i = 0; i < out.inv_freq.size(); ++i) {
        out.inv_freq[i] = 1.0 / std::pow(rope.theta, 2.0 * static_cast<double>(i) / rope.rotary);
    }
    if (out.inv_freq.empty()) return out;
    switch (rope.scaling) {
        case RopeSpec::Scaling::none:
            break;
        case RopeSpec::Scaling::linear:
            for (double& freq : out.inv_freq) freq /= rope.factor;
            break;
        case RopeSpec::Scaling::llama3:
            scale_llama3(rope, out);
            break;
        case RopeSpec::Scaling::yarn:
            scale_yarn(rope, out);
            break;
    }
    MR_CHECK(rope.freq_factors.empty() || rope.freq_factors.size() == out.inv_freq.size(),
             "there is one frequency factor per pair");
    for (std::size_t i = 0; i < rope.freq_factors.size(); ++i) {
        out.inv_freq[i] /= static_cast<double>(rope.freq_factors[i]);
    }
    return out;
}

}  // namespace mr::model
