#include "lab/ladder/llama.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace mr::ladder {
namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

float dot(const float* a, const float* b, int k) {
    // Sixteen independent sums, so that compilers vectorise.
    constexpr int kSums = 16;
    float sums[kSums] = {};
    int i = 0;
    for (; i + kSums <= k; i += kSums) {
        for (int j = 0; j < kSums; ++j) sums[j] += a[i + j] * b[i + j];
    }
    for (int j = 0; i < k; ++i, ++j) sums[j] += a[i] * b[i];
    float total = 0;
    for (const float sum : sums) total += sum;
    return total;
}

void rmsnorm(std::vector<float>& out, const std::vector<float>& x, const Tensor& weight,
             float eps) {
    const int n = static_cast<int>(x.size());
    const float mean = dot(x.data(), x.data(), n) / static_cast<float>(n);
    const float scale = 1.0f / std::sqrt(mean + eps);
    for (std::size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * weight.f32()[i];
}

void softmax(float* x, int n) {
    const float most = *std::max_element(x, x + n);
    float sum = 0;
    for (int i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] - most);
    for (int i = 0; i < n; ++i) x[i] /= sum;
}

void add(std::vector<float>& x, const std::vector<float>& more) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += more[i];
}

}  // namespace

void multiply_rows(float* out, const float* x, const float* w, std::int64_t begin, std::int64_t end,
                   int k) {
    for (std::int64_t row = begin; row < end; ++row) out[row] = dot(w + row * k, x, k);
}

void ScalarMatmul::multiply(float* out, const float* x, const float* w, int n, int k) {
    for (std::int64_t row = 0; row < n; ++row) {
        float sum = 0;
        for (int i = 0; i < k; ++i) sum += w[row * k + i] * x[i];
        out[row] = sum;
    }
}

void HostMatmul::multiply(float* out, const float* x, const float* w, int n, int k) {
    pool_.parallel_for(n, 32, [&](std::int64_t begin, std::int64_t end, int) {
        multiply_rows(out, x, w, begin, end, k);
    });
}

// Why a layer is not that of a plain Llama; empty if it is (model::TakesLayer).
static std::string plain_takes(const model::LayerSpec& layer, const model::LayerSpec& common) {
    // A structured binding of every member: a new member must be handled before this compiles.
    const auto& [mask, rope, scale, softcap, norm, norm_eps, qk_norm, activation, gated] = layer;
    if (norm != model::NormKind::rms) return "LayerNorm";
    if (qk_norm) return "norms of q and k";
    if (!gated) return "no gate in its MLP";
    if (activation != ops::Activation::silu) return "another activation than SiLU";
    if (rope.rotary == 0) return "no rotary positions";
    if (mask.kind != ops::AttentionMask::Kind::causal) return "a mask that is not causal";
    if (mask.window > 0) return "an attention window";
    if (softcap != 0) return "a softcap of scores";
    if (rope != common.rope || scale != common.scale || norm_eps != common.norm_eps) {
        return "layers that differ";
    }
    return {};
}

void require_plain(const model::Model& model) {
    const model::ModelSpec& spec = model.spec;
    std::string other;
    if (const auto lack = model::lack_of(spec, plain_takes)) {
        other = lack->what;
    } else if (spec.residual != model::Residual::sequential) {
        other = "a parallel residual";
    } else if (spec.qkv_bias || spec.out_bias || spec.mlp_bias) {
        other = "biases";
    } else if (spec.learned_positions) {
        other = "learned positions";
    }
    if (other.empty()) return;
    throw Error::usage({.file = model.source,
                        .field = "family",
                        .value = spec.family,
                        .problem = std::string("the ladder's own forward pass is a plain Llama's, "
                                               "and this model has ") +
                                   other,
                        .remedy = "use a Llama, as in random:stories-42m; 'millrace bench decode' "
                                  "takes every family"});
}

PlainLlama::PlainLlama(std::shared_ptr<const model::Model> model, Matmul& matmul, int positions)
    : model_(std::move(model)),
      spec_(model_->spec),
      matmul_(matmul),
      rope_(model::rope_frequencies(spec_.rope)),
      scale_(spec_.common().scale),
      positions_(positions) {
    require_plain(*model_);
    x_.resize(size(spec_.dim));
    h_.resize(size(spec_.dim));
    q_.resize(size(spec_.q_dim()));
    attn_.resize(size(spec_.q_dim()));
    scores_.resize(size(positions));
    gate_.resize(size(spec_.hidden));
    up_.resize(size(spec_.hidden));
    cos_.resize(rope_.inv_freq.size());
    sin_.resize(rope_.inv_freq.size());
    keys_.resize(size(spec_.layers) * size(positions) * size(spec_.kv_dim()));
    values_.resize(keys_.size());
    logits_.resize(size(spec_.vocab));
}

void PlainLlama::truncate(int length) {
    MR_CHECK(length >= 0 && length <= length_, "only what is there can be forgotten");
    length_ = length;
}

void PlainLlama::multiply(float* out, const float* x, const Tensor& w) {
    matmul_.multiply(out, x, w.f32(), static_cast<int>(w.rows()), static_cast<int>(w.cols()));
}

const std::vector<float>& PlainLlama::forward(std::int32_t token) {
    MR_CHECK(length_ < positions_, "the cache has room for the token");
    const model::Weights& w = model_->weights;
    std::copy_n(w.embedding.f32(token), x_.size(), x_.begin());
    for (std::size_t i = 0; i < cos_.size(); ++i) {
        const double angle = length_ * rope_.inv_freq[i];
        cos_[i] = static_cast<float>(std::cos(angle) * rope_.magnitude);
        sin_[i] = static_cast<float>(std::sin(angle) * rope_.magnitude);
    }
    for (int layer = 0; layer < spec_.layers; ++layer) {
        attention(layer);
        mlp(layer);
    }
    rmsnorm(h_, x_, w.final_norm, spec_.norm_eps);
    multiply(logits_.data(), h_.data(), w.head);
    ++length_;
    return logits_;
}

// Rotates the pairs of one head, [head_dim], in place.
void PlainLlama::rotate(float* head) const {
    const std::size_t pairs = cos_.size();
    const bool neighbours = spec_.rope.style == ops::RopeStyle::interleaved;
    for (std::size_t i = 0; i < pairs; ++i) {
        float& a = head[neighbours ? 2 * i : i];
        float& b = head[neighbours ? 2 * i + 1 : i + pairs];
        const float rotated = a * cos_[i] - b * sin_[i];
        b = a * sin_[i] + b * cos_[i];
        a = rotated;
    }
}

// x += o(attention(q, keys, values))
void PlainLlama::attention(int layer) {
    const model::LayerWeights& w = model_->weights.layers[size(layer)];
    const int head_dim = spec_.head_dim, kv_dim = spec_.kv_dim();
    float* keys = keys_.data() + size(layer) * size(positions_) * size(kv_dim);
    float* values = values_.data() + size(layer) * size(positions_) * size(kv_dim);
    float* key = keys + size(length_) * size(kv_dim);  // this token's

    rmsnorm(h_, x_, w.attn_norm, spec_.norm_eps);
    multiply(q_.data(), h_.data(), w.q);
    multiply(key, h_.data(), w.k);
    multiply(values + size(length_) * size(kv_dim), h_.data(), w.v);
    for (int head = 0; head < spec_.heads; ++head) rotate(q_.data() + head * head_dim);
    for (int head = 0; head < spec_.kv_heads; ++head) rotate(key + head * head_dim);

    std::fill(attn_.begin(), attn_.end(), 0.0f);
    for (int head = 0; head < spec_.heads; ++head) {
        const int from = head / (spec_.heads / spec_.kv_heads) * head_dim;  // in a key or value
        for (int t = 0; t <= length_; ++t) {
            scores_[size(t)] = scale_ * dot(q_.data() + head * head_dim,
                                            keys + size(t) * size(kv_dim) + from, head_dim);
        }
        softmax(scores_.data(), length_ + 1);
        for (int t = 0; t <= length_; ++t) {
            const float* value = values + size(t) * size(kv_dim) + from;
            for (int i = 0; i < head_dim; ++i) {
                attn_[size(head * head_dim + i)] += scores_[size(t)] * value[i];
            }
        }
    }
    multiply(h_.data(), attn_.data(), w.o);
    add(x_, h_);
}

// x += down(silu(gate(h)) * up(h))
void PlainLlama::mlp(int layer) {
    const model::LayerWeights& w = model_->weights.layers[size(layer)];
    rmsnorm(h_, x_, w.mlp_norm, spec_.norm_eps);
    multiply(gate_.data(), h_.data(), w.gate);
    multiply(up_.data(), h_.data(), w.up);
    for (std::size_t i = 0; i < up_.size(); ++i) {
        up_[i] *= gate_[i] / (1.0f + std::exp(-gate_[i]));
    }
    multiply(h_.data(), up_.data(), w.down);
    add(x_, h_);
}

}  // namespace mr::ladder
