#include "model/cpu/cpu_engine.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/error.h"
#include "model/cpu/cpu_slots.h"
#include "model/not_finite.h"
#include "model/sink_views.h"
#include "ops/activation/activation.h"
#include "ops/embedding/embedding.h"
#include "ops/linear/linear.h"
#include "ops/loss/loss.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "ops/sample/sample.h"

namespace mr::model {
namespace {

std::size_t scratch_bytes(const Model& model, const EngineOptions& options) {
    const ModelSpec& spec = model.spec;
    const std::size_t samples =
        ops::sample_scratch_bytes(spec.vocab) *
        static_cast<std::size_t>(spec.diffusion ? options.threads : 1);  // guess_here()
    const std::int64_t max_k = std::max({spec.dim, spec.hidden, spec.q_dim()});
    return std::max({ops::linear_scratch_bytes(options.max_batch + options.max_sequences, max_k,
                                               options.threads),
                     ops::attention_scratch_bytes(spec.head_dim, options.threads), samples});
}

struct Activations {
    Tensor x;         // [tokens, dim]     the residual stream
    Tensor h;         // [tokens, dim]     normed input of attention
    Tensor h2;        // [tokens, dim]     normed input of the MLP, where parallel
    Tensor q, k, v;   // [tokens, q_dim], [tokens, kv_dim] twice
    Tensor q_sinks;   // [tokens, q_dim]   queries for sinks, where sequences may stream
    Tensor attn;      // [tokens, q_dim]
    Tensor gate, up;  // [tokens, hidden]
    Tensor last;      // [rows, dim]       what the LM head reads
    Tensor logits;    // [rows, vocab]
    // [tokens, rotary] for every rotation (LayerRopes); only in full_, not in views.
    std::vector<Tensor> cos_sin;
    std::vector<Tensor> sink_cos_sin;  // the same for every SinkView
};

// Every activation buffer by name and shape: the plan adds them up, the engine allocates them. A
// pass has at most max_batch given tokens and one fed token per sequence.
template <typename Take>
void for_each_activation(const ModelSpec& spec, const EngineOptions& options, Activations& a,
                         Take&& take) {
    const std::int64_t tokens = std::int64_t{options.max_batch} + options.max_sequences;
    const std::int64_t rows = options.max_logits;
    take(a.x, Shape{tokens, spec.dim});
    take(a.h, Shape{tokens, spec.dim});
    if (spec.residual == Residual::parallel) take(a.h2, Shape{tokens, spec.dim});
    take(a.q, Shape{tokens, spec.q_dim()});
    take(a.k, Shape{tokens, spec.kv_dim()});
    take(a.v, Shape{tokens, spec.kv_dim()});
    const SinkViews sinks = sink_views(spec, options);
    if (!sinks.views.empty()) take(a.q_sinks, Shape{tokens, spec.q_dim()});
    take(a.attn, Shape{tokens, spec.q_dim()});
    const std::vector<LayerSpec> layers = spec.layer_specs();
    if (std::any_of(layers.begin(), layers.end(), [](const LayerSpec& l) { return l.gated; })) {
        take(a.gate, Shape{tokens, spec.hidden});
    }
    take(a.up, Shape{tokens, spec.hidden});
    const LayerRopes turns = layer_ropes(spec);
    a.cos_sin.resize(turns.ropes.size());
    for (std::size_t i = 0; i < turns.ropes.size(); ++i) {
        take(a.cos_sin[i], Shape{tokens, turns.ropes[i].rotary});
    }
    a.sink_cos_sin.resize(sinks.views.size());
    for (std::size_t i = 0; i < sinks.views.size(); ++i) {
        const auto rope = static_cast<std::size_t>(sinks.views[i].rope);
        take(a.sink_cos_sin[i], Shape{tokens, turns.ropes[rope].rotary});
    }
    take(a.last, Shape{rows, spec.dim});
    take(a.logits, Shape{rows, spec.vocab});
}

std::int64_t pages_of(const EngineOptions& options) {
    return KvCache::pool_pages(options.pool, options.max_sequences);
}

class CpuEngine final : public Engine {
  public:
    CpuEngine(std::shared_ptr<const Model> model, const EngineOptions& options);

    Slot open_slot(SeqId seq, const DrawParams& params) override {
        return slots_.open(seq, params);
    }
    void close_slot(Slot slot) override { slots_.close(slot); }
    void draw(Tensor logits, std::span<const Slot> slots) override;
    ops::Sampled wait(Slot slot, std::uint64_t number) override {
        return slots_.wait(slot, number);
    }
    bool ready(Slot slot, std::uint64_t number) override { return number < slots_.draws(slot); }
    ops::DrawnLogprobs logprobs(Slot slot, std::uint64_t number) override {
        return slots_.logprobs(slot, number);
    }
    void cross_entropy(std::span<double> nll, Tensor logits,
                       std::span<const std::int32_t> targets) override {
        ops::cross_entropy(ctx_, nll, logits, targets);
    }
    Tensor to_host(Tensor logits) override { return logits; }
    Tensor head_input(std::int64_t rows) const { return full_.last.slice_rows(0, rows); }
    void copy_page(std::int32_t to, std::int32_t from) override;
    void synchronize() override {}
    int ahead() const override { return 0; }
    std::int64_t cut() const override { return 1; }
    void watch(bool) override {}
    std::vector<Stage> take_stages() override { return {}; }
    std::uint64_t stage_bytes() const override { return 0; }
    bool one_kernel() const override { return false; }

  private:
    Tensor run(const Pass& pass) override;
    void run(const Pass& pass, std::span<const Place> places, std::span<ops::Guess> out) override {
        guess_here(run(pass), places, out, ctx_.scratch);
    }
    static Tensor row_of(Tensor logits, std::int64_t row);
    void attention_block(const LayerWeights& w, int layer, const Activations& a);
    void mlp_block(const LayerWeights& w, int layer, const Activations& a, Tensor input);
    void norm(const LayerSpec& of, Tensor out, Tensor x, Tensor weight, Tensor bias) const;
    // Cosines and sines of the pass's tokens, [tokens, rotary/2, 2]; `rope`: which of ropes_.ropes.
    Tensor cos_sin(std::size_t rope, std::int64_t tokens) const;
    // The same for queries of sinks; `view`: index into sinks_.views.
    Tensor sink_cos_sin(std::size_t view, std::int64_t tokens) const;
    void make_sink_tables(const Pass& pass);
    Activations views(std::int64_t tokens, std::int64_t rows) const;
    // With check_nan: throws Error if `x`, the result of a stage, has a value that is not
    // finite.
    void check(int stage, Tensor x, const Pass& pass) const;

    const std::vector<LayerSpec> layers_;
    const LayerRopes ropes_;
    std::vector<RopeFrequencies> frequencies_;  // one for each of ropes_.ropes
    const SinkViews sinks_;
    bool asks_sinks_ = false;  // some token of the current pass sees sinks before its window
    std::vector<std::int32_t> sink_positions_;
    Arena arena_;
    Activations full_;                     // sized for all tokens of a pass and max_logits rows
    const Pass* pass_ = nullptr;           // the current one
    std::span<const ops::BatchSeq> seqs_;  // of the current pass
    std::vector<std::int32_t> ids_, positions_;
    // Rows [first, first + count) of the logits belong to one item (logit_token()).
    struct LogitRows {
        std::size_t item;
        std::int64_t first, count;
    };
    std::vector<LogitRows> logit_runs_;
    CpuSlots slots_;
};

CpuEngine::CpuEngine(std::shared_ptr<const Model> model, const EngineOptions& options)
    : Engine(std::move(model), options),
      layers_(model_->spec.layer_specs()),
      ropes_(layer_ropes(model_->spec)),
      sinks_(sink_views(model_->spec, options_)),
      slots_(options_.max_sequences) {
    const ModelSpec& spec = model_->spec;
    for (const RopeSpec& rope : ropes_.ropes) frequencies_.push_back(rope_frequencies(rope));
    const std::size_t tokens = static_cast<std::size_t>(options_.max_batch) +
                               static_cast<std::size_t>(options_.max_sequences);
    ids_.reserve(tokens);
    positions_.reserve(tokens);
    sink_positions_.reserve(tokens);
    cache_ = std::make_unique<KvCache>(spec, pages_of(options_), options_.max_sequences,
                                       most_held(spec, options_), *options_.kv_type);
    const std::size_t scratch = scratch_bytes(*model_, options_);
    std::size_t bytes = Arena::padded(scratch);
    for_each_activation(spec, options_, full_, [&](Tensor&, Shape shape) {
        bytes += Arena::tensor_bytes(DType::f32, shape);
    });
    arena_ = Arena("activations", bytes);
    for_each_activation(spec, options_, full_, [&](Tensor& tensor, Shape shape) {
        tensor = arena_.tensor(DType::f32, shape);
    });
    ctx_.scratch = {static_cast<std::byte*>(arena_.alloc(scratch)), scratch};
}

// The row of logits of one token.
Tensor CpuEngine::row_of(Tensor logits, std::int64_t row) {
    return {logits.f32(row), DType::f32, {logits.dim(1)}};
}

void CpuEngine::draw(Tensor logits, std::span<const Slot> slots) {
    MR_CHECK(logits.rows() >= static_cast<std::int64_t>(slots.size()), "every slot has its logits");
    for (std::size_t i = 0; i < slots.size(); ++i) {
        slots_.draw(ctx_, slots[i], row_of(logits, static_cast<std::int64_t>(i)),
                    cache_->length(slots_.seq(slots[i])));
    }
}

void CpuEngine::copy_page(std::int32_t to, std::int32_t from) {
    for (int i = 0; i < model_->spec.layers; ++i) {
        const ops::PagedKv kv = cache_->layer(i);
        for (const Tensor& tensor : {kv.keys, kv.values}) {
            const std::size_t bytes = tensor.bytes() / static_cast<std::size_t>(tensor.dim(0));
            auto* const data = static_cast<std::byte*>(tensor.data);
            std::memcpy(data + static_cast<std::size_t>(to) * bytes,
                        data + static_cast<std::size_t>(from) * bytes, bytes);
        }
    }
}

// The first `tokens` (and `rows`) rows of every buffer.
Activations CpuEngine::views(std::int64_t tokens, std::int64_t rows) const {
    const auto cut = [](Tensor t, std::int64_t n) { return t ? t.slice_rows(0, n) : t; };
    Activations a;
    a.x = cut(full_.x, tokens);
    a.h = cut(full_.h, tokens);
    a.h2 = cut(full_.h2, tokens);
    a.q = cut(full_.q, tokens);
    a.k = cut(full_.k, tokens);
    a.v = cut(full_.v, tokens);
    a.q_sinks = cut(full_.q_sinks, tokens);
    a.attn = cut(full_.attn, tokens);
    a.gate = cut(full_.gate, tokens);
    a.up = cut(full_.up, tokens);
    a.last = cut(full_.last, rows);
    a.logits = cut(full_.logits, rows);
    return a;
}

Tensor CpuEngine::cos_sin(std::size_t rope, std::int64_t tokens) const {
    Tensor table = full_.cos_sin[rope].slice_rows(0, tokens);
    table.shape = {tokens, ropes_.ropes[rope].rotary / 2, 2};
    return table;
}

Tensor CpuEngine::sink_cos_sin(std::size_t view, std::int64_t tokens) const {
    const auto rope = static_cast<std::size_t>(sinks_.views[view].rope);
    Tensor table = full_.sink_cos_sin[view].slice_rows(0, tokens);
    table.shape = {tokens, ropes_.ropes[rope].rotary / 2, 2};
    return table;
}

void CpuEngine::make_sink_tables(const Pass& pass) {
    asks_sinks_ = false;
    for (std::size_t i = 0; i < pass.items.size(); ++i) {
        asks_sinks_ |= sinks_.asks(cache_->stream(pass.items[i]->seq), pass.seqs[i]);
    }
    if (!asks_sinks_) return;
    for (std::size_t v = 0; v < sinks_.views.size(); ++v) {
        sink_positions_.clear();
        for (std::size_t i = 0; i < pass.items.size(); ++i) {
            sinks_.views[v].add_positions(sink_positions_, cache_->stream(pass.items[i]->seq),
                                          pass.seqs[i]);
        }
        const auto rope = static_cast<std::size_t>(sinks_.views[v].rope);
        ops::rope_table(ctx_, sink_cos_sin(v, pass.tokens), sink_positions_,
                        frequencies_[rope].inv_freq, frequencies_[rope].magnitude);
    }
}

void CpuEngine::norm(const LayerSpec& of, Tensor out, Tensor x, Tensor weight, Tensor bias) const {
    if (of.norm == NormKind::rms) {
        ops::rmsnorm(ctx_, out, x, weight, of.norm_eps);
    } else {
        ops::layernorm(ctx_, out, x, weight, bias, of.norm_eps);
    }
}

// x += o(attention(rope(q(h)), cache + rope(k(h)), v(h)))
void CpuEngine::attention_block(const LayerWeights& w, int layer, const Activations& a) {
    const ModelSpec& spec = model_->spec;
    const LayerSpec& of = layers_[static_cast<std::size_t>(layer)];
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
    if (of.qk_norm) {
        ops::rmsnorm(ctx_, q, q, w.q_norm, of.norm_eps);
        ops::rmsnorm(ctx_, k, k, w.k_norm, of.norm_eps);
    }
    const int rope = ropes_.of_layer[static_cast<std::size_t>(layer)];
    Tensor q_sinks;
    if (rope >= 0 && asks_sinks_) {
        q_sinks = heads(a.q_sinks, spec.heads);
        std::memcpy(q_sinks.data, q.data, q.bytes());
        const int view = sinks_.of_layer[static_cast<std::size_t>(layer)];
        ops::rope(ctx_, q_sinks, sink_cos_sin(static_cast<std::size_t>(view), tokens),
                  of.rope.style);
    }
    if (rope >= 0) {
        const Tensor table = cos_sin(static_cast<std::size_t>(rope), tokens);
        ops::rope(ctx_, q, table, of.rope.style);
        ops::rope(ctx_, k, table, of.rope.style);
    }
    const ops::PagedKv kv = cache_->layer(layer);
    ops::kv_write(ctx_, kv, k, heads(a.v, spec.kv_heads), seqs_);
    // Items next to each other with the same mask are computed together.
    const auto mask_of = [&](std::size_t i) {
        return streamed(pass_->items[i]->mask.value_or(of.mask),
                        cache_->stream(pass_->items[i]->seq));
    };
    for (std::size_t begin = 0, end = 0; begin < seqs_.size(); begin = end) {
        const ops::AttentionMask mask = mask_of(begin);
        while (end < seqs_.size() && mask_of(end) == mask) ++end;
        ops::attention(ctx_, heads(a.attn, spec.heads), q, kv, seqs_.subspan(begin, end - begin),
                       mask, of.scale, q_sinks);
    }
    ledger_.at(layer, "out");
    ops::linear(ctx_, a.attn, {w.o, a.x, w.o_bias, a.x});
}

// x += down(act(gate(input)) * up(input)), or x += down(act(up(input)))
void CpuEngine::mlp_block(const LayerWeights& w, int layer, const Activations& a, Tensor input) {
    const LayerSpec& of = layers_[static_cast<std::size_t>(layer)];
    ledger_.at(layer, "up");
    if (of.gated) {
        const ops::LinearOut both[] = {{w.gate, a.gate, {}, {}}, {w.up, a.up, w.up_bias, {}}};
        ops::linear(ctx_, input, both);
        ops::gated_activation(ctx_, a.up, a.gate, a.up, of.activation);
    } else {
        ops::linear(ctx_, input, {w.up, a.up, w.up_bias, {}});
        ops::activation(ctx_, a.up, a.up, of.activation);
    }
    ledger_.at(layer, "down");
    ops::linear(ctx_, a.up, {w.down, a.x, w.down_bias, a.x});
}

void CpuEngine::check(int stage, Tensor x, const Pass& pass) const {
    if (!options_.check_nan) return;
    const std::optional<ops::NotFinite> found = ops::find_not_finite(ctx_, x, stage);
    if (!found) return;
    const std::int64_t row = found->row;
    if (stage != logits_stage(model_->spec)) {
        throw_not_finite(*model_, options_, *found, positions_[static_cast<std::size_t>(row)]);
    }
    for (const LogitRows& rows_of : logit_runs_) {
        if (row >= rows_of.first + rows_of.count) continue;
        const ops::BatchSeq& seq = pass.seqs[rows_of.item];
        throw_not_finite(
            *model_, options_, *found,
            seq.position + logit_token(*pass.items[rows_of.item], seq.count, row - rows_of.first));
    }
}

Tensor CpuEngine::run(const Pass& pass) {
    const ModelSpec& spec = model_->spec;
    const Weights& weights = model_->weights;
    pass_ = &pass;
    seqs_ = pass.seqs;
    ids_.clear();
    positions_.clear();
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < pass.items.size(); ++i) {
        const BatchItem& item = *pass.items[i];
        if (i < pass.given) {
            ids_.insert(ids_.end(), item.tokens.begin(), item.tokens.end());
        } else {
            const std::uint64_t draws = slots_.draws(item.feed);
            MR_CHECK(draws > 0 && slots_.seq(item.feed) == item.seq, "a slot feeds what it drew");
            ids_.push_back(wait(item.feed, draws - 1).id);
        }
        for (std::int32_t j = 0; j < pass.seqs[i].count; ++j) {
            positions_.push_back(pass.seqs[i].position + j);
        }
    }
    // Rows that the caller reads come first, then those only drawn from.
    logit_runs_.clear();
    for (const bool read : {true, false}) {
        for (std::size_t i = 0; i < pass.items.size(); ++i) {
            const BatchItem& item = *pass.items[i];
            const std::int64_t count = logit_rows(item);
            if (count == 0 || (item.logits != BatchItem::Logits::none) != read) continue;
            logit_runs_.push_back({i, rows, count});
            rows += count;
        }
    }

    const Activations a = views(pass.tokens, rows);
    ledger_.at(-1);
    ops::embedding(ctx_, a.x, weights.embedding, ids_);
    if (spec.learned_positions) ops::embedding(ctx_, a.x, weights.positions, positions_, true);
    check(embedding_stage(), a.x, pass);
    for (std::size_t i = 0; i < frequencies_.size(); ++i) {
        ledger_.at(-1, "rope table");
        ops::rope_table(ctx_, cos_sin(i, pass.tokens), positions_, frequencies_[i].inv_freq,
                        frequencies_[i].magnitude);
    }

    make_sink_tables(pass);

    for (int i = 0; i < spec.layers; ++i) {
        const LayerWeights& w = weights.layers[static_cast<std::size_t>(i)];
        const LayerSpec& of = layers_[static_cast<std::size_t>(i)];
        ledger_.at(i);
        norm(of, a.h, a.x, w.attn_norm, w.attn_norm_bias);
        // Parallel residual: both branches read x as it enters the layer, so both norms are taken
        // before either adds to x. The MLP's is added first, as on the GPU.
        const bool parallel = spec.residual == Residual::parallel;
        const auto mlp = [&](Tensor h) {
            norm(of, h, a.x, w.mlp_norm, w.mlp_norm_bias);
            mlp_block(w, i, a, h);
            check(mlp_stage(spec, i), a.x, pass);
        };
        if (parallel) mlp(a.h2);
        attention_block(w, i, a);
        check(attention_stage(spec, i), a.x, pass);
        if (!parallel) mlp(a.h);
    }

    ledger_.at(-1);
    if (rows == 0) return a.logits;
    // Only the rows asked for go through the LM head.
    for (const LogitRows& rows_of : logit_runs_) {
        const ops::BatchSeq& seq = pass.seqs[rows_of.item];
        for (std::int64_t r = 0; r < rows_of.count; ++r) {
            const std::int64_t token = logit_token(*pass.items[rows_of.item], seq.count, r);
            std::memcpy(a.last.f32(rows_of.first + r), a.x.f32(seq.first + token), a.x.row_bytes());
        }
    }
    norm(spec, a.last, a.last, weights.final_norm, weights.final_norm_bias);
    ledger_.at(-1, "head");
    ops::linear(ctx_, a.last, {weights.head, a.logits, weights.head_bias, {}}, OpKind::lm_head);
    check(logits_stage(spec), a.logits, pass);
    for (const LogitRows& rows_of : logit_runs_) {
        for (const Slot slot : pass.items[rows_of.item]->draw) {
            slots_.draw(ctx_, slot, row_of(a.logits, rows_of.first + rows_of.count - 1),
                        draw_position(pass, rows_of.item));
        }
    }
    // Given items come first: in a mixed pass, only their logits are read.
    std::int64_t read = 0;
    for (const LogitRows& rows_of : logit_runs_) {
        const bool given = rows_of.item < pass.given;
        const bool wanted = pass.items[rows_of.item]->logits != BatchItem::Logits::none;
        if (wanted && (given || pass.given == 0)) read = rows_of.first + rows_of.count;
    }
    return a.logits.slice_rows(0, pass.given == 0 ? rows : read);
}

}  // namespace

std::string cpu_takes(const LayerSpec& layer, const LayerSpec&) {
    // A structured binding of every member: a new member must be handled before this compiles.
    // Masks and scales go to ops::attention layer by layer, each rotation has its table, and norms
    // and MLPs are the layer's.
    const auto& [mask, rope, scale, softcap, norm, norm_eps, qk_norm, activation, gated] = layer;
    if (softcap != 0) return "a softcap of scores";
    return {};
}

MemoryPlan cpu_plan(const Model& model, const EngineOptions& options) {
    MemoryPlan plan;
    if (model.weights.mapped_bytes > 0) {
        plan.add("weights, mapped from the file", model.weights.mapped_bytes, true);
    }
    if (model.weights.owned_bytes > 0) plan.add("weights, in memory", model.weights.owned_bytes);
    plan.add("KV cache", KvCache::bytes(model.spec, pages_of(options), *options.kv_type));
    std::uint64_t activations = 0;
    Activations unused;
    for_each_activation(model.spec, options, unused, [&](Tensor&, Shape shape) {
        activations += Arena::tensor_bytes(DType::f32, shape);
    });
    plan.add("activations", activations);
    plan.add("scratch", Arena::padded(scratch_bytes(model, options)));
    return plan;
}

std::unique_ptr<Engine> make_cpu_engine(std::shared_ptr<const Model> model,
                                        const EngineOptions& options) {
    return std::make_unique<CpuEngine>(std::move(model), options);
}

Tensor cpu_head_input(const Engine& engine, std::int64_t rows) {
    const auto* cpu = dynamic_cast<const CpuEngine*>(&engine);
    MR_CHECK(cpu != nullptr, "the engine computes on the CPU");
    return cpu->head_input(rows);
}

}  // namespace mr::model
