#include "model/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/cpu.h"
#include "core/error.h"
#include "model/cuda/device_engine.h"
#include "model/cuda/device_weights.h"
#include "model/not_finite.h"
#include "ops/activation/activation.h"
#include "ops/embedding/embedding.h"
#include "ops/linear/linear.h"
#include "ops/loss/loss.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "ops/sample/sample.h"

namespace mr::model {
namespace {

EngineOptions with_defaults(const Model& model, EngineOptions options) {
    if (options.threads <= 0) options.threads = cpu_info().cores;
    if (options.context <= 0) options.context = model.spec.context;
    options.max_batch = static_cast<int>(
        std::clamp<std::int64_t>(options.max_batch, 1, std::max<std::int64_t>(options.context, 1)));
    options.max_sequences = std::max(options.max_sequences, 1);
    options.max_batch = std::max(options.max_batch, options.max_sequences);
    if (options.max_logits <= 0) options.max_logits = options.max_sequences;
    // What a step computed is looked at when it ends: there is nothing to replay.
    if (options.check_nan) options.graph = false;
    if (!options.kv_type) options.kv_type = options.cuda ? device_kv_type(model) : DType::f32;
    return options;
}

std::size_t scratch_bytes(const Model& model, const EngineOptions& options) {
    const ModelSpec& spec = model.spec;
    const std::int64_t max_k = std::max({spec.dim, spec.hidden, spec.q_dim()});
    return std::max({ops::linear_scratch_bytes(options.max_batch, max_k, options.threads),
                     ops::attention_scratch_bytes(spec.head_dim, options.threads),
                     ops::sample_scratch_bytes(spec.vocab)});
}

std::int64_t logit_rows(const BatchItem& item) {
    switch (item.logits) {
        case BatchItem::Logits::none:
            return 0;
        case BatchItem::Logits::last:
            return 1;
        case BatchItem::Logits::all:
            return static_cast<std::int64_t>(item.tokens.size());
    }
    return 0;
}

}  // namespace

// Every activation buffer by name and shape: the plan adds them up, the engine takes them.
template <typename Take>
void Engine::for_each_activation(const ModelSpec& spec, const EngineOptions& options,
                                 Activations& a, Take&& take) {
    const std::int64_t tokens = options.max_batch;
    const std::int64_t rows = options.max_logits;
    take(a.x, Shape{tokens, spec.dim});
    take(a.h, Shape{tokens, spec.dim});
    if (spec.residual == Residual::parallel) take(a.h2, Shape{tokens, spec.dim});
    take(a.q, Shape{tokens, spec.q_dim()});
    take(a.k, Shape{tokens, spec.kv_dim()});
    take(a.v, Shape{tokens, spec.kv_dim()});
    take(a.attn, Shape{tokens, spec.q_dim()});
    if (spec.gated) take(a.gate, Shape{tokens, spec.hidden});
    take(a.up, Shape{tokens, spec.hidden});
    if (spec.rope.rotary > 0) take(a.cos_sin, Shape{tokens, spec.rope.rotary});
    take(a.last, Shape{rows, spec.dim});
    take(a.logits, Shape{rows, spec.vocab});
}

MemoryPlan Engine::plan(const Model& model, const EngineOptions& wanted) {
    const EngineOptions options = with_defaults(model, wanted);
    if (options.cuda) return device_plan(model, options);
    MemoryPlan plan;
    if (model.weights.mapped_bytes > 0) {
        plan.add("weights, mapped from the file", model.weights.mapped_bytes, true);
    }
    if (model.weights.owned_bytes > 0) plan.add("weights, in memory", model.weights.owned_bytes);
    plan.add("KV cache",
             KvCache::bytes(model.spec, options.context, options.max_sequences, *options.kv_type));
    std::uint64_t activations = 0;
    Activations unused;
    for_each_activation(model.spec, options, unused, [&](Tensor&, Shape shape) {
        activations += Arena::tensor_bytes(DType::f32, shape);
    });
    plan.add("activations", activations);
    plan.add("scratch", Arena::padded(scratch_bytes(model, options)));
    return plan;
}

namespace {

void require_positions(const ModelSpec& spec, const EngineOptions& options) {
    if (spec.learned_positions &&
        options.context > std::int64_t{spec.context} * options.max_sequences) {
        throw Error::input({.field = "--ctx",
                            .value = std::to_string(options.context),
                            .problem = "the model has a table of " + std::to_string(spec.context) +
                                       " learned positions",
                            .remedy = "use at most that"});
    }
}

}  // namespace

void Engine::require(const Model& model, const EngineOptions& wanted) {
    const EngineOptions options = with_defaults(model, wanted);
    require_positions(model.spec, options);
    if (options.cuda) return require_device(model, options);
    plan(model, options)
        .require(cpu_info().memory_bytes,
                 "use a smaller --ctx, --kv-type f16, or a smaller weight type");
}

Engine::Engine(std::shared_ptr<const Model> model, const EngineOptions& options,
               std::shared_ptr<const DeviceWeights> weights)
    : model_(std::move(model)),
      options_(with_defaults(*model_, options)),
      rope_(rope_frequencies(model_->spec.rope)),
      pool_(options_.threads) {
    const ModelSpec& spec = model_->spec;
    seqs_.reserve(static_cast<std::size_t>(options_.max_sequences));
    ids_.reserve(static_cast<std::size_t>(options_.max_batch));
    positions_.reserve(static_cast<std::size_t>(options_.max_batch));
    if (options_.cuda) {
        MR_CHECK(weights != nullptr, "an engine on the device is given weights there");
        require_positions(spec, options_);
        require_device(*model_, options_, weights->bytes);
        device_ = make_device_engine(model_, std::move(weights), options_, ledger_);
        ctx_ = {&pool_, &ledger_};
        return;
    }
    require(*model_, options_);
    cache_ = std::make_unique<KvCache>(spec, options_.context, options_.max_sequences,
                                       *options_.kv_type);
    const std::size_t scratch = scratch_bytes(*model_, options_);
    std::size_t bytes = Arena::padded(scratch);
    for_each_activation(spec, options_, full_, [&](Tensor&, Shape shape) {
        bytes += Arena::tensor_bytes(DType::f32, shape);
    });
    arena_ = Arena("activations", bytes);
    for_each_activation(spec, options_, full_, [&](Tensor& tensor, Shape shape) {
        tensor = arena_.tensor(DType::f32, shape);
    });
    ctx_ = {&pool_, &ledger_, {static_cast<std::byte*>(arena_.alloc(scratch)), scratch}};
}

Engine::~Engine() = default;

KvCache& Engine::cache() { return device_ ? device_->cache() : *cache_; }

void Engine::cross_entropy(std::span<double> nll, Tensor logits,
                           std::span<const std::int32_t> targets) {
    if (device_) return device_->cross_entropy(nll, logits, targets);
    ops::cross_entropy(ctx_, nll, logits, targets);
}

Tensor Engine::to_host(Tensor logits) {
    if (!device_) return logits;
    host_logits_.resize(static_cast<std::size_t>(logits.shape.count()));
    device_->to_host(host_logits_, logits);
    return {host_logits_.data(), DType::f32, logits.shape};
}

// The first `tokens` (and `rows`) rows of every buffer.
Engine::Activations Engine::views(std::int64_t tokens, std::int64_t rows) const {
    const auto cut = [](Tensor t, std::int64_t n) { return t ? t.slice_rows(0, n) : t; };
    Activations a;
    a.x = cut(full_.x, tokens);
    a.h = cut(full_.h, tokens);
    a.h2 = cut(full_.h2, tokens);
    a.q = cut(full_.q, tokens);
    a.k = cut(full_.k, tokens);
    a.v = cut(full_.v, tokens);
    a.attn = cut(full_.attn, tokens);
    a.gate = cut(full_.gate, tokens);
    a.up = cut(full_.up, tokens);
    a.cos_sin = cut(full_.cos_sin, tokens);
    if (a.cos_sin) a.cos_sin.shape = {tokens, model_->spec.rope.rotary / 2, 2};
    a.last = cut(full_.last, rows);
    a.logits = cut(full_.logits, rows);
    return a;
}

void Engine::norm(Tensor out, Tensor x, Tensor weight, Tensor bias) const {
    const ModelSpec& spec = model_->spec;
    if (spec.norm == NormKind::rms) {
        ops::rmsnorm(ctx_, out, x, weight, spec.norm_eps);
    } else {
        ops::layernorm(ctx_, out, x, weight, bias, spec.norm_eps);
    }
}

// x += o(attention(rope(q(h)), cache + rope(k(h)), v(h)))
void Engine::attention_block(const LayerWeights& w, int layer, const Activations& a) {
    const ModelSpec& spec = model_->spec;
    const std::int64_t tokens = a.x.rows();
    const ops::LinearOut qkv[] = {
        {w.q, a.q, w.q_bias, {}}, {w.k, a.k, w.k_bias, {}}, {w.v, a.v, w.v_bias, {}}};
    ledger_.at(layer, "qkv");
    ops::linear(ctx_, a.h, qkv);

    const auto heads = [&](Tensor t, std::int64_t count) {
        return Tensor(t.data, t.dtype, {tokens, count, spec.head_dim});
    };
    const Tensor q = heads(a.q, spec.heads);
    const Tensor k = heads(a.k, spec.kv_heads);
    if (spec.qk_norm) {
        ops::rmsnorm(ctx_, q, q, w.q_norm, spec.norm_eps);
        ops::rmsnorm(ctx_, k, k, w.k_norm, spec.norm_eps);
    }
    if (spec.rope.rotary > 0) {
        ops::rope(ctx_, q, a.cos_sin, spec.rope.style);
        ops::rope(ctx_, k, a.cos_sin, spec.rope.style);
    }
    const ops::PagedKv kv = cache_->layer(layer);
    ops::kv_write(ctx_, kv, k, heads(a.v, spec.kv_heads), seqs_);
    ops::attention(ctx_, heads(a.attn, spec.heads), q, kv, seqs_, spec.mask,
                   1.0f / std::sqrt(static_cast<float>(spec.head_dim)));
    ledger_.at(layer, "out");
    ops::linear(ctx_, a.attn, {w.o, a.x, w.o_bias, a.x});
}

// x += down(act(gate(input)) * up(input)), or x += down(act(up(input)))
void Engine::mlp_block(const LayerWeights& w, int layer, const Activations& a, Tensor input) {
    const ModelSpec& spec = model_->spec;
    ledger_.at(layer, "up");
    if (spec.gated) {
        const ops::LinearOut both[] = {{w.gate, a.gate, {}, {}}, {w.up, a.up, w.up_bias, {}}};
        ops::linear(ctx_, input, both);
        ops::gated_activation(ctx_, a.up, a.gate, a.up, spec.activation);
    } else {
        ops::linear(ctx_, input, {w.up, a.up, w.up_bias, {}});
        ops::activation(ctx_, a.up, a.up, spec.activation);
    }
    ledger_.at(layer, "down");
    ops::linear(ctx_, a.up, {w.down, a.x, w.down_bias, a.x});
}

void Engine::check(int stage, Tensor x, std::span<const BatchItem> batch) const {
    if (!options_.check_nan) return;
    const std::optional<ops::NotFinite> found = ops::find_not_finite(ctx_, x, stage);
    if (!found) return;
    std::int64_t row = found->row;
    if (stage != logits_stage(model_->spec)) {
        throw_not_finite(*model_, options_, *found, positions_[static_cast<std::size_t>(row)]);
    }
    // Logits are of the last tokens of every item.
    std::size_t item = 0;
    for (; row >= logit_rows(batch[item]); ++item) row -= logit_rows(batch[item]);
    const ops::BatchSeq& seq = seqs_[item];
    throw_not_finite(*model_, options_, *found,
                     seq.position + seq.count - logit_rows(batch[item]) + row);
}

Tensor Engine::forward(std::span<const BatchItem> batch) {
    const ModelSpec& spec = model_->spec;
    const Weights& weights = model_->weights;

    // Lay the batch out: one row a token, sequences one after another.
    seqs_.clear();
    ids_.clear();
    positions_.clear();
    std::int64_t rows = 0;
    for (const BatchItem& item : batch) {
        const auto count = static_cast<std::int64_t>(item.tokens.size());
        MR_CHECK(count > 0, "every item of a batch has tokens");
        MR_CHECK(static_cast<std::int64_t>(ids_.size()) + count <= options_.max_batch,
                 "a batch has at most max_batch tokens");
        const std::int64_t position = cache().length(item.seq);
        if (spec.learned_positions && position + count > spec.context) {
            throw Error::input({.field = "context",
                                .value = std::to_string(position + count),
                                .problem = "the model has learned positions for " +
                                           std::to_string(spec.context) + " tokens only",
                                .remedy = "use a shorter text"});
        }
        cache().reserve(item.seq, position + count);
        seqs_.push_back({static_cast<std::int32_t>(ids_.size()), static_cast<std::int32_t>(count),
                         static_cast<std::int32_t>(position), cache().pages(item.seq)});
        for (std::int64_t i = 0; i < count; ++i) {
            ids_.push_back(item.tokens[static_cast<std::size_t>(i)]);
            positions_.push_back(static_cast<std::int32_t>(position + i));
        }
        rows += logit_rows(item);
    }
    MR_CHECK(rows <= options_.max_logits, "a batch asks for at most max_logits rows");
    for (std::int32_t id : ids_) {
        if (id < 0 || id >= spec.vocab) {
            throw Error::input(
                {.field = "token id",
                 .value = std::to_string(id),
                 .problem = "is outside of the model's vocabulary of " + std::to_string(spec.vocab),
                 .remedy = "use the tokenizer that belongs to the model"});
        }
    }

    if (device_) {
        const Tensor logits = device_->forward(batch, seqs_);
        for (std::size_t s = 0; s < batch.size(); ++s)
            cache().advance(batch[s].seq, seqs_[s].count);
        return logits;
    }
    const Activations a = views(static_cast<std::int64_t>(ids_.size()), rows);
    ledger_.at(-1);
    ops::embedding(ctx_, a.x, weights.embedding, ids_);
    if (spec.learned_positions) ops::embedding(ctx_, a.x, weights.positions, positions_, true);
    check(embedding_stage(), a.x, batch);
    if (a.cos_sin) {
        ledger_.at(-1, "rope table");
        ops::rope_table(ctx_, a.cos_sin, positions_, rope_.inv_freq, rope_.magnitude);
    }

    for (int i = 0; i < spec.layers; ++i) {
        const LayerWeights& w = weights.layers[static_cast<std::size_t>(i)];
        ledger_.at(i);
        norm(a.h, a.x, w.attn_norm, w.attn_norm_bias);
        // Parallel residual: both branches read x as it enters the layer, so both norms are taken
        // before either adds to x. The MLP's is added first, as on the GPU.
        const bool parallel = spec.residual == Residual::parallel;
        const auto mlp = [&](Tensor h) {
            norm(h, a.x, w.mlp_norm, w.mlp_norm_bias);
            mlp_block(w, i, a, h);
            check(mlp_stage(spec, i), a.x, batch);
        };
        if (parallel) mlp(a.h2);
        attention_block(w, i, a);
        check(attention_stage(spec, i), a.x, batch);
        if (!parallel) mlp(a.h);
    }

    ledger_.at(-1);
    // Only the rows that were asked for go through the LM head.
    std::int64_t row = 0;
    for (std::size_t s = 0; s < batch.size(); ++s) {
        const ops::BatchSeq& seq = seqs_[s];
        const std::int64_t count = logit_rows(batch[s]);
        std::memcpy(a.last.f32(row), a.x.f32(seq.first + seq.count - count),
                    static_cast<std::size_t>(count) * a.x.row_bytes());
        row += count;
        cache().advance(batch[s].seq, seq.count);
    }
    if (rows == 0) return a.logits;
    norm(a.last, a.last, weights.final_norm, weights.final_norm_bias);
    ledger_.at(-1, "head");
    ops::linear(ctx_, a.last, {weights.head, a.logits, weights.head_bias, {}}, OpKind::lm_head);
    check(logits_stage(spec), a.logits, batch);
    return a.logits;
}

}  // namespace mr::model
