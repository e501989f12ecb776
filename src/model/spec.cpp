#include "model/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace mr::model {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Bounds that no real model comes near, small enough that no product of two of them overflows.
constexpr int kMaxVocab = 1 << 24;
constexpr int kMaxWidth = 1 << 22;
constexpr int kMaxLayers = 1 << 12;
constexpr int kMaxHeads = 1 << 14;
constexpr int kMaxHeadDim = 1 << 12;
constexpr int kMaxContext = 1 << 28;

[[noreturn]] void reject(const std::string& file, const char* field, std::string value,
                         std::string problem) {
    throw Error::input({.file = file,
                        .field = field,
                        .value = std::move(value),
                        .problem = std::move(problem),
                        .remedy = "the model's configuration is wrong or not supported"});
}

void check_count(const std::string& file, const char* field, std::int64_t value, int max) {
    if (value >= 1 && value <= max) return;
    reject(file, field, fmt::format("{}", value), fmt::format("must be between 1 and {}", max));
}

void check_positive(const std::string& file, const char* field, double value) {
    if (std::isfinite(value) && value > 0) return;
    reject(file, field, fmt::format("{}", value), "must be a positive number");
}

void validate_rope(const RopeSpec& rope, int head_dim, const std::string& file) {
    using Scaling = RopeSpec::Scaling;
    if (rope.rotary < 0 || rope.rotary > head_dim || rope.rotary % 2 != 0) {
        reject(file, "rotary dimensions", fmt::format("{}", rope.rotary),
               fmt::format("must be even and at most the head's {} elements", head_dim));
    }
    if (rope.rotary == 0) return;
    check_positive(file, "rope theta", rope.theta);
    if (rope.scaling != Scaling::none) check_positive(file, "rope factor", rope.factor);
    if (rope.scaling == Scaling::llama3 || rope.scaling == Scaling::yarn) {
        check_positive(file, "rope original context", rope.original_context);
        if (rope.original_context > kMaxContext) {
            reject(file, "rope original context", fmt::format("{}", rope.original_context),
                   fmt::format("must be at most {}", kMaxContext));
        }
    }
    if (rope.scaling == Scaling::llama3) {
        check_positive(file, "rope low_freq_factor", rope.low_freq_factor);
        check_positive(file, "rope high_freq_factor", rope.high_freq_factor);
        if (rope.high_freq_factor <= rope.low_freq_factor) {
            reject(file, "rope high_freq_factor", fmt::format("{}", rope.high_freq_factor),
                   fmt::format("must be above low_freq_factor, {}", rope.low_freq_factor));
        }
    }
    if (rope.scaling == Scaling::yarn) {
        check_positive(file, "rope beta_fast", rope.beta_fast);
        check_positive(file, "rope beta_slow", rope.beta_slow);
        if (rope.theta <= 1) {
            reject(file, "rope theta", fmt::format("{}", rope.theta), "YaRN needs it above 1");
        }
        if (!std::isfinite(rope.attention_factor) || rope.attention_factor < 0) {
            reject(file, "rope attention_factor", fmt::format("{}", rope.attention_factor),
                   "must be a positive number");
        }
    }
    if (!rope.freq_factors.empty()) {
        const std::size_t pairs = static_cast<std::size_t>(rope.rotary) / 2;
        if (rope.freq_factors.size() != pairs) {
            reject(file, "rope frequency factors", fmt::format("{}", rope.freq_factors.size()),
                   fmt::format("there must be {}, one a frequency", pairs));
        }
        for (float factor : rope.freq_factors) {
            check_positive(file, "rope frequency factor", static_cast<double>(factor));
        }
    }
}

// YaRN's magnitude as its paper suggests it.
double yarn_magnitude(double factor) { return factor <= 1 ? 1.0 : 0.1 * std::log(factor) + 1.0; }

// At which pair (a fractional index) a rotation turns `turns` times over the original context.
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
        // Turns over the original context: many are kept, few are slowed, between is blended.
        const double turns = rope.original_context * freq / (2 * kPi);
        const double blend = std::clamp(
            (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0,
            1.0);
        freq = (1 - blend) * freq / rope.factor + blend * freq;
    }
}

}  // namespace

std::uint64_t ModelSpec::parameters() const {
    const auto n = [](int value) { return static_cast<std::uint64_t>(value); };
    const std::uint64_t norm_size = norm == NormKind::layer ? 2 * n(dim) : n(dim);
    std::uint64_t layer = 2 * norm_size;
    layer += n(q_dim()) * n(dim) * 2 + n(kv_dim()) * n(dim) * 2;
    if (qkv_bias) layer += n(q_dim()) + 2 * n(kv_dim());
    if (out_bias) layer += n(dim);
    if (qk_norm) layer += 2 * n(head_dim);
    layer += n(hidden) * n(dim) * (gated ? 3 : 2);
    if (mlp_bias) layer += n(hidden) + n(dim);
    std::uint64_t total = n(vocab) * n(dim) + n(layers) * layer + norm_size;
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
    if (!std::isfinite(norm_eps) || norm_eps < 0 || norm_eps >= 1) {
        reject(file, "norm epsilon", fmt::format("{}", norm_eps), "must be in [0, 1)");
    }
    if (mask.window < 0) {
        reject(file, "sliding window", fmt::format("{}", mask.window), "must not be negative");
    }
    // No file format names them: a program that wants a model to run on for ever with a window sets
    // them, since without its first tokens a model that was not trained so loses the thread.
    if (mask.sinks < 0) {
        reject(file, "attention sinks", fmt::format("{}", mask.sinks), "must not be negative");
    }
    if (mask.sinks > 0 && mask.window == 0) {
        reject(file, "attention sinks", fmt::format("{}", mask.sinks),
               "are what a sliding window leaves visible, and there is no window");
    }
    if (gated && mlp_bias) {
        reject(file, "mlp bias", "true", "biases in a gated MLP are not supported");
    }
    validate_rope(rope, head_dim, file);
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
             "there is one frequency factor a pair");
    for (std::size_t i = 0; i < rope.freq_factors.size(); ++i) {
        out.inv_freq[i] /= static_cast<double>(rope.freq_factors[i]);
    }
    return out;
}

}  // namespace mr::model
