// Passes over any batch: prompts, and what has no step of its own.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "model/cuda/device_resident.h"
#include "model/not_finite.h"
#include "ops/activation/activation_cuda.h"
#include "ops/attention/paged/attention_cuda.h"
#include "ops/check/check_cuda.h"
#include "ops/embedding/embedding_cuda.h"
#include "ops/linear/gemm_cuda.h"
#include "ops/linear/linear_cuda.h"
#include "ops/loss/loss_cuda.h"
#include "ops/rope/rope_cuda.h"

namespace mr::model {
namespace {

// Sequences with at most this many rows take the products for few tokens, others those for many:
// which one a row takes depends on its own sequence alone.
constexpr int kFewRows = cuda::kDecodeRows;

}  // namespace

Resident::Resident(std::shared_ptr<const Model> model, std::shared_ptr<const DeviceWeights> weights,
                   const EngineOptions& options, Ledger& ledger)
    : model_(std::move(model)),
      weights_(std::move(weights)),
      spec_(model_->spec),
      options_(options),
      ledger_(ledger),
      kv_memory_("KV cache",
                 KvCache::bytes(spec_, options.context, options.max_sequences, *options.kv_type)),
      products_(spec_, *weights_, buffers_),
      sampler_(stream_, options.max_sequences, DeviceBuffers::most_recent(spec_, options)),
      timeline_(DeviceBuffers::most_stages(spec_)) {
    cache_ = std::make_unique<KvCache>(spec_, options.context, options.max_sequences,
                                       *options.kv_type, kv_memory_.data());
    buffers_.take(*model_, options);
    if (options.check_nan) stream_.fill(buffers_.not_finite, 0xff, sizeof *buffers_.not_finite);
    first_draw_.resize(static_cast<std::size_t>(options.max_sequences));
    ctx_.ledger = &ledger_;
    ctx_.cuda = &stream_;
    ctx_.dependent_launch = options.dependent_launch;
    ctx_.batch_products = options.batch_products;
    ctx_.resident_attention = options.resident_attention;

    const std::size_t ints =
        3 * static_cast<std::size_t>(options.max_batch) +
        2 * static_cast<std::size_t>(options.max_sequences + 1) +
        static_cast<std::size_t>(options.max_sequences) *
            static_cast<std::size_t>(buffers_.max_pages) +
        static_cast<std::size_t>(std::max(options.max_batch, options.max_logits));
    staging_ = cuda::PinnedBuffer(2 * ints * sizeof(std::int32_t));
    // Pages nobody owns hold no NaN: a masked key may be multiplied with zero.
    stream_.fill(kv_memory_.data(), 0, kv_memory_.size());
    cuda::attention_prepare_scratch(
        stream_, buffers_.attention_scratch,
        std::min(options.max_batch, options.max_sequences * cuda::kDecodeRows), spec_.heads);
    if (spec_.rope.rotary > 0) {
        const RopeFrequencies rope = rope_frequencies(spec_.rope);
        // In the room of qkv, where nothing is yet: a row of it has at least as many bytes.
        const std::size_t bytes = rope.inv_freq.size() * sizeof(double);
        MR_CHECK(bytes <= buffers_.qkv.bytes(), "the frequencies of a head fit into a row");
        stream_.to_device(buffers_.qkv.data, rope.inv_freq.data(), bytes, &ledger_);
        cuda::rope_table(ctx_, buffers_.rope, static_cast<const double*>(buffers_.qkv.data),
                         rope.magnitude);
        stream_.synchronize();
    }
    prepare_steps();
}

Resident::~Resident() {
    try {
        stream_.synchronize();
    } catch (const std::exception&) {  // a lost device was reported where it was met
    }
}

cuda::NormPass Resident::norm_of(Tensor x, Tensor out, Tensor weight, Tensor bias) const {
    cuda::NormPass pass;
    pass.kind = spec_.norm;
    pass.eps = spec_.norm_eps;
    pass.x = x;
    pass.out = out;
    pass.weight = weight;
    pass.bias = bias;
    return pass;
}

// out = x · wᵀ (+ bias), or out += : by the kernel that belongs to the number of rows.
void Resident::product(const cuda::LinearIn& in, bool few) {
    const bool add = in.finish == cuda::Finish::add;
    if (!few) {
        ctx_.scratch = buffers_.gemm_scratch;
        cuda::gemm(ctx_, in.out, in.x, in.w, in.bias, add ? in.out : Tensor{},
                   {.kind = in.kind, .name = in.name});
    } else if (cuda::linear_small_takes(in.w.dtype, in.w.cols())) {
        linear(in);
    } else {
        cuda::linear_plain(ctx_, in.out, in.x, in.w, in.bias, add, in.kind, in.name);
    }
}
void Resident::product(Tensor out, Tensor x, Tensor w, Tensor bias, bool few, const char* name,
                       OpKind kind) {
    cuda::LinearIn in;
    in.x = x;
    in.w = w;
    in.bias = bias;
    in.out = out;
    in.kind = kind;
    in.name = name;
    product(in, few);
}

// Whether norm, product and what follows are one kernel.
bool Resident::attention_fused(const Part& part, int layer) const {
    return part.few && options_.fuse && !spec_.qk_norm &&
           cuda::linear_small_takes(joined(layer).qkv.dtype, spec_.dim);
}
bool Resident::mlp_fused(const Part& part, int layer) const {
    const DType matrix = mlp_matrix(layer).dtype;
    return part.few && options_.fuse && cuda::linear_small_takes(matrix, spec_.dim) &&
           (!spec_.gated || spec_.hidden % 8 == 0) &&
           cuda::compute_type(matrix) == cuda::compute_type(weights_of(layer).down.dtype);
}
// Parallel residual: attention and MLP norm the same x, in one pass where neither norms for itself.
bool Resident::norms_together(const Part& part, int layer) const {
    return spec_.residual == Residual::parallel && !attention_fused(part, layer) &&
           !mlp_fused(part, layer) &&
           cuda::compute_type(joined(layer).qkv.dtype) ==
               cuda::compute_type(mlp_matrix(layer).dtype);
}

// q, and k and v in the cache, from x.
void Resident::attention_in(const Part& part, int layer) {
    const LayerWeights& w = weights_of(layer);
    const DeviceLayer& joined = this->joined(layer);
    const std::int64_t rows = part.batch.tokens;
    const DType compute = cuda::compute_type(joined.qkv.dtype);
    const DType attn_type = cuda::compute_type(w.o.dtype);
    const Tensor x = rows_as(buffers_.x, DType::f32, part.first, rows, spec_.dim);
    Tensor q = rows_as(buffers_.q, attn_type, part.first, rows, spec_.q_dim());
    q.shape = {rows, spec_.heads, spec_.head_dim};
    const ops::PagedKv kv = cache_->layer(layer);
    if (attention_fused(part, layer)) {
        return linear(products_.qkv(part.batch, part.first, layer, kv));
    }
    const Tensor h = rows_as(buffers_.h, compute, part.first, rows, spec_.dim);
    cuda::NormPass pass = norm_of(x, h, w.attn_norm, w.attn_norm_bias);
    if (norms_together(part, layer)) {
        pass.out2 = rows_as(buffers_.h2, compute, part.first, rows, spec_.dim);
        pass.weight2 = w.mlp_norm;
        pass.bias2 = w.mlp_norm_bias;
    }
    cuda::norm(ctx_, pass);
    const Tensor qkv = rows_as(buffers_.qkv, part.few ? DType::f32 : compute, part.first, rows,
                               spec_.q_dim() + 2 * spec_.kv_dim());
    product(qkv, h, joined.qkv, {}, part.few, "qkv");
    cuda::QkvFinish finish;
    finish.q_out = q;
    finish.kv = kv;
    finish.qkv = qkv;
    finish.bias = joined.qkv_bias;
    if (spec_.qk_norm) {
        finish.q_norm = w.q_norm;
        finish.k_norm = w.k_norm;
        finish.norm_eps = spec_.norm_eps;
    }
    finish.rope = buffers_.rope;
    cuda::qkv_finish(ctx_, finish, part.batch);
}

// act(gate(norm(x))) * up(norm(x)), or act(up(norm(x))), into `up`.
void Resident::mlp_in(const Part& part, int layer) {
    const LayerWeights& w = weights_of(layer);
    const Tensor matrix = mlp_matrix(layer);
    const std::int64_t rows = part.batch.tokens;
    const DType compute = cuda::compute_type(matrix.dtype);
    const DType down_type = cuda::compute_type(w.down.dtype);
    const Tensor x = rows_as(buffers_.x, DType::f32, part.first, rows, spec_.dim);
    const Tensor up = rows_as(buffers_.up, down_type, part.first, rows, spec_.hidden);
    if (mlp_fused(part, layer)) return linear(products_.up(rows, part.first, layer));
    const bool together = norms_together(part, layer);
    const Tensor h =
        rows_as(together ? buffers_.h2 : buffers_.h, compute, part.first, rows, spec_.dim);
    if (!together) cuda::norm(ctx_, norm_of(x, h, w.mlp_norm, w.mlp_norm_bias));
    const DType between = part.few ? DType::f32 : compute;
    if (spec_.gated) {
        const Tensor both = rows_as(buffers_.gate_up, between, part.first, rows, 2 * spec_.hidden);
        product(both, h, matrix, {}, part.few, "mlp up");
        cuda::gated_activation(ctx_, up, both, spec_.activation);
    } else {
        // The room of gate_up is not there: up's own serves, 4 bytes an element.
        const Tensor raw =
            rows_as(buffers_.up, part.few ? DType::f32 : compute, part.first, rows, spec_.hidden);
        if (raw.dtype == up.dtype) {
            product(raw, h, matrix, {}, part.few, "mlp up");
            cuda::activation(ctx_, up, raw, w.up_bias, spec_.activation);
        } else {
            // Rounded before the activation: the only place for f32 is where the result goes.
            product(up, h, matrix, w.up_bias, part.few, "mlp up");
            cuda::activation(ctx_, up, up, {}, spec_.activation);
        }
    }
}

void Resident::run(const Part& part) {
    const Weights& weights = weights_->weights;
    const std::int64_t rows = part.batch.tokens;
    const Tensor x = rows_as(buffers_.x, DType::f32, part.first, rows, spec_.dim);
    cuda::embedding(ctx_, x, weights.embedding, weights.positions, part.batch);
    check(embedding_stage(), x, part.first);
    for (int i = 0; i < spec_.layers; ++i) {
        ctx_.layer = i;
        const LayerWeights& w = weights_of(i);
        const bool parallel = spec_.residual == Residual::parallel;
        attention_in(part, i);
        // Parallel residual: the MLP reads x as it enters the layer.
        if (parallel) mlp_in(part, i);
        Tensor q =
            rows_as(buffers_.q, cuda::compute_type(w.o.dtype), part.first, rows, spec_.q_dim());
        Tensor attn = rows_as(buffers_.attn, q.dtype, part.first, rows, spec_.q_dim());
        q.shape = attn.shape = {rows, spec_.heads, spec_.head_dim};
        // Attention waits until the products before it have gone: its many small blocks would take
        // room unevenly, and the next product's blocks would then come to lie two on one
        // multiprocessor and none on another, layer after layer (docs/cuda-engine.md).
        ctx_.dependent_launch = false;
        ctx_.scratch = buffers_.attention_scratch;
        const float scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim));
        if (part.few) {
            cuda::attention_decode(ctx_, attn, q, cache_->layer(i), part.batch, spec_.mask, scale);
        } else {
            cuda::attention_prefill(ctx_, attn, q, cache_->layer(i), part.batch, spec_.mask, scale);
        }
        ctx_.dependent_launch = options_.dependent_launch;
        const auto mlp_out = [&] {
            product(products_.down(rows, part.first, i), part.few);
            check(mlp_stage(spec_, i), x, part.first);
        };
        if (parallel) mlp_out();  // first, as in a step of one kernel (ops/step)
        product(products_.out(rows, part.first, i), part.few);
        check(attention_stage(spec_, i), x, part.first);
        if (!parallel) {
            mlp_in(part, i);
            mlp_out();
        }
    }
    ctx_.layer = -1;
}

// logits = head(norm(x))
void Resident::heads(Tensor logits, Tensor x, bool few) {
    const Weights& w = weights_->weights;
    const DType compute = cuda::compute_type(w.head.dtype);
    if (few && options_.fuse && cuda::linear_small_takes(w.head.dtype, spec_.dim)) {
        return linear(products_.head(x, logits));
    }
    const Tensor h = rows_as(buffers_.h, compute, 0, x.rows(), spec_.dim);
    cuda::norm(ctx_, norm_of(x, h, w.final_norm, w.final_norm_bias));
    product(logits, h, w.head, w.head_bias, few, "head", OpKind::lm_head);
}

// With check_nan: notes the first row of x that is not finite, where none was noted before it.
void Resident::check(int stage, Tensor x, std::int64_t first_row) {
    if (options_.check_nan) cuda::check_finite(ctx_, buffers_.not_finite, x, stage, first_row);
}

// Waits for what was launched and throws what the checks noted. `behind`: how many positions the
// rows have moved on since.
void Resident::require_finite(const DeviceBuffers::Arrays& arrays, int behind) {
    const auto read = [&](const auto* from) {
        std::remove_cvref_t<decltype(*from)> value{};
        stream_.to_host(&value, from, sizeof value, &ledger_);
        stream_.synchronize();
        return value;
    };
    const std::optional<ops::NotFinite> found = ops::NotFinite::unpacked(read(buffers_.not_finite));
    if (!found) return;
    stream_.fill(buffers_.not_finite, 0xff, sizeof *buffers_.not_finite);  // for the next pass
    // A pass gives logits to some of its rows, a step to all.
    const bool some = &arrays == &buffers_.pass && found->stage == logits_stage(spec_);
    const std::int64_t row = some ? read(arrays.rows + found->row) : found->row;
    throw_not_finite(*model_, options_, *found, read(arrays.positions + row) - behind);
}

// The arrays of some items, from row `first_row` and sequence `first_seq` on.
ops::DeviceBatch Resident::upload(std::span<const BatchItem* const> items,
                                  std::span<const ops::BatchSeq* const> seqs,
                                  std::int64_t first_row, int first_seq, std::int32_t* first) {
    const DeviceBuffers::Arrays& to = buffers_.pass;
    ops::DeviceBatch batch;
    batch.sequences = static_cast<int>(items.size());
    batch.max_count = 0;
    batch.max_pages = buffers_.max_pages;
    auto* staging = reinterpret_cast<std::int32_t*>(staging_.data()) + staging_used_;
    const auto send = [&](std::int32_t* device, std::size_t count, auto&& fill) {
        fill(staging);
        stream_.to_device(device, staging, count * sizeof *staging, &ledger_);
        staging += count;
        staging_used_ += count;
    };
    std::size_t tokens = 0;
    for (const ops::BatchSeq* seq : seqs) {
        tokens += static_cast<std::size_t>(seq->count);
        batch.max_count = std::max(batch.max_count, seq->count);
        batch.max_keys = std::max(batch.max_keys, seq->position + seq->count);
    }
    batch.tokens = static_cast<int>(tokens);
    batch.ids = to.ids + first_row;
    batch.positions = to.positions + first_row;
    batch.sequence = to.sequence + first_row;
    batch.first = first;
    batch.pages = to.pages + static_cast<std::ptrdiff_t>(first_seq) * buffers_.max_pages;
    send(to.ids + first_row, tokens, [&](std::int32_t* at) {
        for (const BatchItem* item : items)
            at = std::copy(item->tokens.begin(), item->tokens.end(), at);
    });
    send(to.positions + first_row, tokens, [&](std::int32_t* at) {
        for (const ops::BatchSeq* seq : seqs) {
            for (std::int32_t i = 0; i < seq->count; ++i) *at++ = seq->position + i;
        }
    });
    send(to.sequence + first_row, tokens, [&](std::int32_t* at) {
        for (std::size_t s = 0; s < seqs.size(); ++s) {
            at = std::fill_n(at, seqs[s]->count, static_cast<std::int32_t>(s));
        }
    });
    send(first, seqs.size() + 1, [&](std::int32_t* at) {
        std::int32_t row = 0;
        for (const ops::BatchSeq* seq : seqs) {
            *at++ = row;
            row += seq->count;
        }
        *at = row;
    });
    for (std::size_t s = 0; s < seqs.size(); ++s) {
        const std::span<const std::int32_t> pages = seqs[s]->pages;
        send(to.pages + (static_cast<std::ptrdiff_t>(first_seq) + static_cast<std::ptrdiff_t>(s)) *
                            buffers_.max_pages,
             pages.size(), [&](std::int32_t* at) { std::copy(pages.begin(), pages.end(), at); });
    }
    return batch;
}

Tensor Resident::forward(std::span<const BatchItem> batch, std::span<const ops::BatchSeq> seqs) {
    if (!watched_) return pass(batch, seqs);
    watched_step_.reset();  // its stages are not the timeline's any more
    timeline_.clear_stages();
    const Meanwhile watching(ctx_.timeline, &timeline_);
    timeline_.reset(stream_);
    const Tensor logits = pass(batch, seqs);
    const std::vector<cuda::Stage> stages = read_stamps();
    stages_.insert(stages_.end(), stages.begin(), stages.end());
    return logits;
}

std::vector<cuda::Stage> Resident::read_stamps() {
    std::vector<cuda::Stage> stages = timeline_.read(stream_);
    ledger_.add_device_to_host(stages.size() * sizeof(cuda::Stamp));
    return stages;
}

Tensor Resident::pass(std::span<const BatchItem> batch, std::span<const ops::BatchSeq> seqs) {
    staged_.synchronize();
    staging_used_ = 0;
    // Sequences with few rows first, those with many after them: two parts, each of one kind.
    std::vector<const BatchItem*> items[2];
    std::vector<const ops::BatchSeq*> where[2];
    for (std::size_t i = 0; i < batch.size(); ++i) {
        const int many = seqs[i].count > kFewRows;
        items[many].push_back(&batch[i]);
        where[many].push_back(&seqs[i]);
    }
    std::int64_t row = 0;
    int first_seq = 0;
    std::map<const BatchItem*, std::int64_t> row_of;
    for (const int many : {0, 1}) {
        if (items[many].empty()) continue;
        Part part;
        part.first = row;
        part.few = !many;
        part.batch = upload(items[many], where[many], row, first_seq,
                            buffers_.pass.first + many * (options_.max_sequences + 1));
        for (std::size_t s = 0; s < items[many].size(); ++s) {
            row_of[items[many][s]] = row;
            row += where[many][s]->count;
        }
        first_seq += part.batch.sequences;
        run(part);
    }

    // The rows that get logits, in the order of the items.
    auto* rows = reinterpret_cast<std::int32_t*>(staging_.data()) + staging_used_;
    std::int64_t count = 0;
    std::vector<std::pair<std::int64_t, bool>> runs;  // rows of one kind: how many, and which
    for (std::size_t i = 0; i < batch.size(); ++i) {
        const std::int64_t all = seqs[i].count;
        const std::int64_t wanted = batch[i].logits == BatchItem::Logits::none   ? 0
                                    : batch[i].logits == BatchItem::Logits::last ? 1
                                                                                 : all;
        for (std::int64_t j = all - wanted; j < all; ++j) {
            rows[count++] = static_cast<std::int32_t>(row_of[&batch[i]] + j);
        }
        if (wanted == 0) continue;
        const bool few = wanted <= kFewRows;
        if (runs.empty() || runs.back().second != few) runs.emplace_back(0, few);
        runs.back().first += wanted;
    }
    const Tensor logits = rows_as(buffers_.logits, DType::f32, 0, count, spec_.vocab);
    if (count > 0) {
        stream_.to_device(buffers_.pass.rows, rows, static_cast<std::size_t>(count) * sizeof *rows,
                          &ledger_);
        const Tensor last = rows_as(buffers_.last, DType::f32, 0, count, spec_.dim);
        cuda::gather_rows(ctx_, last, buffers_.x, buffers_.pass.rows, count);
        std::int64_t at = 0;
        for (const auto& [some, few] : runs) {
            heads(logits.slice_rows(at, some), last.slice_rows(at, some), few);
            at += some;
        }
        check(logits_stage(spec_), logits, 0);
    }
    stream_.record(staged_);
    if (options_.check_nan) require_finite(buffers_.pass, 0);
    return logits;
}

void Resident::cross_entropy(std::span<double> nll, Tensor logits,
                             std::span<const std::int32_t> targets) {
    stream_.to_device(buffers_.pass.rows, targets.data(), targets.size_bytes(), &ledger_);
    cuda::cross_entropy(ctx_, buffers_.nll, logits, buffers_.pass.rows);
    stream_.to_host(nll.data(), buffers_.nll, nll.size_bytes(), &ledger_);
    stream_.synchronize();
}

void Resident::to_host(std::span<float> values, Tensor tensor) {
    stream_.to_host(values.data(), tensor.data, values.size_bytes(), &ledger_);
    stream_.synchronize();
}

std::unique_ptr<DeviceEngine> make_device_engine(std::shared_ptr<const Model> model,
                                                 std::shared_ptr<const DeviceWeights> weights,
                                                 const EngineOptions& options, Ledger& ledger) {
    return std::make_unique<Resident>(std::move(model), std::move(weights), options, ledger);
}

}  // namespace mr::model
