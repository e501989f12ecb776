// Construction of the engine, and the layers of a pass: the same for given tokens and for fed rows.
#include <algorithm>
#include <cstring>

#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "model/cuda/device_resident.h"
#include "model/not_finite.h"
#include "ops/activation/activation_cuda.h"
#include "ops/add/add_cuda.h"
#include "ops/attention/paged/attention_cuda.h"
#include "ops/check/check_cuda.h"
#include "ops/embedding/embedding_cuda.h"
#include "ops/linear/gemm_cuda.h"
#include "ops/linear/linear_cuda.h"
#include "ops/loss/loss_cuda.h"
#include "ops/rope/rope_cuda.h"

namespace mr::model {

std::int32_t* Staging::take(std::size_t count) {
    MR_CHECK(used_ + count <= ints_, "what a pass sends was planned");
    auto* at = reinterpret_cast<std::int32_t*>(memory_.data()) + half_ * ints_ + used_;
    used_ += count;
    return at;
}

Resident::Resident(std::shared_ptr<const Model> model, std::shared_ptr<const DeviceWeights> weights,
                   const EngineOptions& options)
    : Engine(std::move(model), options),
      weights_(std::move(weights)),
      spec_(model_->spec),
      layers_(spec_.layer_specs()),
      kv_memory_("KV cache", KvCache::bytes(spec_, device_pages(options), *options.kv_type)),
      products_(spec_, options, *weights_, buffers_),
      sampler_(stream_, row_bucket(options.max_sequences), most_recent(options)),
      timeline_(DeviceBuffers::most_stages(spec_)) {
    cache_ =
        std::make_unique<KvCache>(spec_, device_pages(options), options.max_sequences,
                                  most_held(spec_, options), *options.kv_type, kv_memory_.data());
    buffers_.take(*model_, options);
    if (!spec_.diffusion) {
        adjuster_.emplace(stream_, options.max_sequences, row_bucket(options.max_sequences),
                          spec_.vocab);
    }
    if (options.check_nan) stream_.fill(buffers_.not_finite, 0xff, sizeof *buffers_.not_finite);
    ctx_.cuda = &stream_;
    ctx_.dependent_launch = options.dependent_launch;
    ctx_.batch_products = options.batch_products;
    ctx_.whole_device = turn_.take();
    ctx_.resident_attention = options.resident_attention;

    // Room for ids, positions and sequences of given tokens, the items' first rows and pages, rows
    // with logits; and position, pages and ring of rows that join.
    const auto sequences = static_cast<std::size_t>(options.max_sequences);
    const auto pages = static_cast<std::size_t>(buffers_.max_pages);
    staging_ = Staging(3 * static_cast<std::size_t>(options.max_batch) + 2 * (sequences + 1) +
                       sequences * pages + static_cast<std::size_t>(options.max_logits) +
                       sequences * (pages + 4) +
                       2 * sequences * (2 + static_cast<std::size_t>(buffers_.max_fronts)) +
                       (spec_.diffusion ? static_cast<std::size_t>(options.max_logits) *
                                                  sizeof(cuda::GuessRow) / sizeof(std::int32_t) +
                                              2 * DeviceBuffers::kBlockWords
                                        : 0));
    // Pages that were never written must hold no NaN: masked keys may be multiplied by zero.
    stream_.fill(kv_memory_.data(), 0, kv_memory_.size());
    cuda::attention_prepare_scratch(stream_, buffers_.attention_scratch, decode_rows(options),
                                    spec_.heads);
    if (spec_.rope.rotary > 0) {  // the same in all layers: device_takes()
        const RopeFrequencies rope = rope_frequencies(spec_.rope);
        rope_magnitude_ = rope.magnitude;
        // If no rotations are made per row later, the frequencies go into the unused qkv buffer:
        // one of its rows has at least as many bytes.
        const std::size_t bytes = rope.inv_freq.size() * sizeof(double);
        MR_CHECK(bytes <= buffers_.qkv.bytes(), "the frequencies of a head fit into a row");
        auto* to =
            buffers_.frequencies ? buffers_.frequencies : static_cast<double*>(buffers_.qkv.data);
        stream_.to_device(to, rope.inv_freq.data(), bytes, &ledger_);
        if (!products_.rope_by_row()) cuda::rope_table(ctx_, buffers_.rope, to, rope.magnitude);
        stream_.synchronize();
    }
    prepare_rows();
}

Resident::~Resident() {
    try {
        stream_.synchronize();
    } catch (const std::exception&) {  // a lost device was reported by the call that met it
    }
}

cuda::NormPass Resident::norm_of(const LayerSpec& of, Tensor x, Tensor out, Tensor weight,
                                 Tensor bias) {
    cuda::NormPass pass;
    pass.kind = of.norm;
    pass.eps = of.norm_eps;
    pass.x = x;
    pass.out = out;
    pass.weight = weight;
    pass.bias = bias;
    return pass;
}

// out = x · wᵀ (+ bias), or out +=, with the kernel for this number of rows.
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

// x += product: added by the GEMM itself, or left to the next norm or a separate kernel.
void Resident::add_product(cuda::LinearIn in, const Part& part) {
    // check_nan looks at x after every product.
    if (!part.few || options_.add_in_product || options_.check_nan) return product(in, part.few);
    add_apart(in.out);  // the other branch of a parallel residual
    in.out = rows_as(buffers_.branch, DType::f32, part.first, part.batch.tokens, spec_.dim);
    in.finish = cuda::Finish::store;
    product(in, part.few);
    apart_ = in.out;
}
void Resident::add_apart(Tensor x) {
    if (apart_) cuda::add_to(ctx_, x, std::exchange(apart_, {}));
}
// Norms x after adding what is still to be added to it.
void Resident::norm_of_sum(cuda::NormPass pass) {
    if (apart_ && options_.add_in_norm) {
        pass.residual = pass.sum = pass.x;
        pass.x = std::exchange(apart_, {});
    }
    add_apart(pass.x);
    cuda::norm(ctx_, pass);
}

// Whether norm, product and the ops after it are one kernel.
bool Resident::attention_fused(const Part& part, int layer) const {
    return part.few && options_.fuse && !layer_spec(layer).qk_norm &&
           cuda::linear_small_takes(joined(layer).qkv.dtype, spec_.dim);
}
bool Resident::mlp_fused(const Part& part, int layer) const {
    const DType matrix = mlp_matrix(layer).dtype;
    return part.few && options_.fuse && cuda::linear_small_takes(matrix, spec_.dim) &&
           (!layer_spec(layer).gated || spec_.hidden % 8 == 0) &&
           cuda::compute_type(matrix) == cuda::compute_type(weights_of(layer).down.dtype);
}
// Parallel residual: attention and MLP norm the same x, in one pass unless a fused kernel norms by
// itself.
bool Resident::norms_together(const Part& part, int layer) const {
    return options_.norms_together && spec_.residual == Residual::parallel &&
           !attention_fused(part, layer) && !mlp_fused(part, layer) &&
           cuda::compute_type(joined(layer).qkv.dtype) ==
               cuda::compute_type(mlp_matrix(layer).dtype);
}

// q, and k and v into the cache, from x.
void Resident::attention_in(const Part& part, int layer) {
    const LayerWeights& w = weights_of(layer);
    const LayerSpec& of = layer_spec(layer);
    const DeviceLayer& joined = this->joined(layer);
    const std::int64_t rows = part.batch.tokens;
    const DType compute = cuda::compute_type(joined.qkv.dtype);
    const DType attn_type = cuda::compute_type(w.o.dtype);
    const Tensor x = rows_as(buffers_.x, DType::f32, part.first, rows, spec_.dim);
    Tensor q = rows_as(buffers_.q, attn_type, part.first, rows, spec_.q_dim());
    q.shape = {rows, spec_.heads, spec_.head_dim};
    const ops::PagedKv kv = cache_->layer(layer);
    if (attention_fused(part, layer)) {
        add_apart(x);
        return linear(products_.qkv(part.batch, part.first, layer, kv));
    }
    const Tensor qkv = rows_as(buffers_.qkv, part.few ? DType::f32 : compute, part.first, rows,
                               spec_.q_dim() + 2 * spec_.kv_dim());
    if (part.few && options_.fuse && !norms_together(part, layer) &&
        cuda::linear_small_takes(joined.qkv.dtype, spec_.dim)) {
        // Norms of q and k need whole heads, so they follow the product; the norm of x is fused
        // into it.
        add_apart(x);
        cuda::LinearIn in = products_.qkv_sums(rows, part.first, layer);
        in.out = qkv;
        linear(in);
    } else {
        const Tensor h = rows_as(buffers_.h, compute, part.first, rows, spec_.dim);
        cuda::NormPass pass = norm_of(of, x, h, w.attn_norm, w.attn_norm_bias);
        if (norms_together(part, layer)) {
            pass.out2 = rows_as(buffers_.h2, compute, part.first, rows, spec_.dim);
            pass.weight2 = w.mlp_norm;
            pass.bias2 = w.mlp_norm_bias;
        }
        norm_of_sum(pass);
        product(qkv, h, joined.qkv, {}, part.few, "qkv");
    }
    cuda::QkvFinish finish;
    finish.q_out = q;
    finish.kv = kv;
    finish.qkv = qkv;
    finish.bias = joined.qkv_bias;
    if (of.qk_norm) {
        finish.q_norm = w.q_norm;
        finish.k_norm = w.k_norm;
        finish.norm_eps = of.norm_eps;
    }
    finish.rope = products_.rope(part.first, rows);
    finish.rope_by_row = products_.rope_by_row();
    finish.q_sinks = products_.q_sinks(layer, part.first, rows);
    if (finish.q_sinks) {
        const int view = products_.views().of_layer[static_cast<std::size_t>(layer)];
        finish.rope_sinks = products_.rope_sinks(view, part.first, rows);
    }
    cuda::qkv_finish(ctx_, finish, part.batch);
}

// act(gate(norm(x))) * up(norm(x)), or act(up(norm(x))), into `up`. Returns true if it is in the
// order that the next product wants.
bool Resident::mlp_in(const Part& part, int layer) {
    const LayerWeights& w = weights_of(layer);
    const LayerSpec& of = layer_spec(layer);
    const Tensor matrix = mlp_matrix(layer);
    const std::int64_t rows = part.batch.tokens;
    const DType compute = cuda::compute_type(matrix.dtype);
    const DType down_type = cuda::compute_type(w.down.dtype);
    const Tensor x = rows_as(buffers_.x, DType::f32, part.first, rows, spec_.dim);
    const Tensor up = rows_as(buffers_.up, down_type, part.first, rows, spec_.hidden);
    if (mlp_fused(part, layer)) {
        add_apart(x);
        cuda::LinearIn in = products_.up(rows, part.first, layer);
        in.ordered_out = cuda::linear_small_orders(ctx_, in, w.down.dtype);
        linear(in);
        return in.ordered_out;
    }
    const bool together = norms_together(part, layer);
    const Tensor h =
        rows_as(together ? buffers_.h2 : buffers_.h, compute, part.first, rows, spec_.dim);
    if (!together) norm_of_sum(norm_of(of, x, h, w.mlp_norm, w.mlp_norm_bias));
    const DType between = part.few ? DType::f32 : compute;
    if (of.gated) {
        const Tensor both = rows_as(buffers_.gate_up, between, part.first, rows, 2 * spec_.hidden);
        product(both, h, matrix, {}, part.few, "mlp up");
        cuda::gated_activation(ctx_, up, both, of.activation);
    } else {
        // There is no gate_up buffer: use up's own, which has 4 bytes per element.
        const Tensor raw =
            rows_as(buffers_.up, part.few ? DType::f32 : compute, part.first, rows, spec_.hidden);
        if (raw.dtype == up.dtype) {
            product(raw, h, matrix, {}, part.few, "mlp up");
            cuda::activation(ctx_, up, raw, w.up_bias, of.activation);
        } else {
            // Rounded before the activation: f32 sums would need the buffer of the result.
            product(up, h, matrix, w.up_bias, part.few, "mlp up");
            cuda::activation(ctx_, up, up, {}, of.activation);
        }
    }
    return false;
}

void Resident::run(const Part& part) {
    const Weights& weights = weights_->weights;
    const std::int64_t rows = part.batch.tokens;
    const Tensor x = rows_as(buffers_.x, DType::f32, part.first, rows, spec_.dim);
    rotations_of(part);
    cuda::embedding(ctx_, x, weights.embedding, weights.positions, part.batch);
    check(embedding_stage(), x, part.first);
    apart_ = {};
    ops::DeviceBatch batch = part.batch;     // total_keys is set for each layer
    if (!part.few) batch.streams = nullptr;  // all of them stream as `part` says
    for (int i = 0; i < spec_.layers; ++i) {
        ctx_.layer = i;
        const LayerWeights& w = weights_of(i);
        const LayerSpec& of = layer_spec(i);
        const bool parallel = spec_.residual == Residual::parallel;
        attention_in(part, i);
        // Parallel residual: the MLP reads x as it enters the layer.
        bool ordered = parallel && mlp_in(part, i);
        Tensor q =
            rows_as(buffers_.q, cuda::compute_type(w.o.dtype), part.first, rows, spec_.q_dim());
        Tensor attn = rows_as(buffers_.attn, q.dtype, part.first, rows, spec_.q_dim());
        q.shape = attn.shape = {rows, spec_.heads, spec_.head_dim};
        // Attention waits until the GEMMs before it have ended. Otherwise its many small blocks
        // would fill multiprocessors unevenly, and the next GEMM would put two blocks on one
        // multiprocessor and none on another, layer after layer (docs/cuda-engine.md).
        ctx_.dependent_launch = false;
        ctx_.scratch = buffers_.attention_scratch;
        // Known only for a step that is launched, not captured (decode_batch()): each layer has its
        // mask.
        if (part.batch.total_keys > 0) batch.total_keys = keys_read(i);
        const ops::AttentionMask mask = streamed(part.mask.value_or(of.mask), part.stream);
        const Tensor q_sinks = products_.q_sinks(i, part.first, rows);
        if (part.few) {
            cuda::attention_decode(ctx_, attn, q, cache_->layer(i), batch, mask, of.scale, q_sinks);
        } else {
            cuda::attention_prefill(ctx_, attn, q, cache_->layer(i), batch, mask, of.scale,
                                    q_sinks);
        }
        ctx_.dependent_launch = options_.dependent_launch;
        const auto mlp_out = [&] {
            cuda::LinearIn in = products_.down(rows, part.first, i);
            in.ordered_x = ordered;
            add_product(in, part);
            check(mlp_stage(spec_, i), x, part.first);
        };
        if (parallel) mlp_out();  // first, as in a step of one kernel (ops/step)
        add_product(products_.out(rows, part.first, i), part);
        check(attention_stage(spec_, i), x, part.first);
        if (!parallel) {
            ordered = mlp_in(part, i);
            mlp_out();
        }
    }
    add_apart(x);
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
    cuda::norm(ctx_, norm_of(spec_, x, h, w.final_norm, w.final_norm_bias));
    product(logits, h, w.head, w.head_bias, few, "head", OpKind::lm_head);
}

// With check_nan: records the first row of x that is not finite, unless one is recorded already.
void Resident::check(int stage, Tensor x, std::int64_t first_row) {
    if (options_.check_nan) cuda::check_finite(ctx_, buffers_.not_finite, x, stage, first_row);
}

// Waits for launched work and throws what the checks recorded. `behind`: how many positions the
// rows have advanced since.
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
    // A pass computes logits for some of its rows, a step for all.
    const bool some = &arrays == &buffers_.pass && found->stage == logits_stage(spec_);
    const std::int64_t row = some ? read(arrays.rows + found->row) : found->row;
    throw_not_finite(*model_, options_, *found, read(arrays.positions + row) - behind);
}

void Resident::keep_stages(std::vector<Stage> stages) {
    stages_.insert(stages_.end(), stages.begin(), stages.end());
}

std::vector<Stage> Resident::read_stamps() {
    std::vector<Stage> stages = timeline_.read(stream_);
    ledger_.add_device_to_host(stages.size() * sizeof(cuda::Stamp));
    return stages;
}

// Fed rows first: rows that join draw their first token after them.
Tensor Resident::run(const Pass& pass) {
    const std::size_t fed = pass.items.size() - pass.given;
    if (fed > 0) run_fed(pass);
    if (pass.given == 0) {
        return rows_as(buffers_.logits, DType::f32, 0, static_cast<std::int64_t>(fed), spec_.vocab);
    }
    Tensor logits;
    stamped([&] { logits = run_given(pass); });
    if (options_.check_nan) require_finite(buffers_.pass, 0);
    return logits;
}

Engine::StepLaunches Resident::step_launches(int rows, std::int64_t keys) {
    const StepKey key = key_for(row_bucket(rows), keys, cuda::SampleKind::greedy);
    const Meanwhile account(ctx_.ledger, static_cast<Ledger*>(nullptr));
    const auto sample = [&] { launch_sample(key.rows, cuda::SampleKind::greedy, false); };
    // Captured in any case to count its kernels, even if they are launched one by one.
    const auto count = [&](const auto& launch) {
        return static_cast<int>(cuda::Graph::capture(stream_, launch).nodes());
    };
    const int sampling = count(sample);
    const int all = sampling + count([&] { launch_forward(key); });
    if (!captures(key.rows)) return {all, all};
    return {all, key.kind < 0 ? 1 + sampling : 1};
}

void Resident::cross_entropy(std::span<double> nll, Tensor logits,
                             std::span<const std::int32_t> targets) {
    stream_.to_device(buffers_.pass.rows, targets.data(), targets.size_bytes(), &ledger_);
    cuda::cross_entropy(ctx_, buffers_.nll, logits, buffers_.pass.rows);
    stream_.to_host(nll.data(), buffers_.nll, nll.size_bytes(), &ledger_);
    stream_.synchronize();
}

Tensor Resident::to_host(Tensor logits) {
    if (host_logits_.size() < logits.bytes()) host_logits_ = cuda::PinnedBuffer(logits.bytes());
    stream_.to_host(host_logits_.data(), logits.data, logits.bytes(), &ledger_);
    stream_.synchronize();
    return {host_logits_.data(), DType::f32, logits.shape};
}

Tensor Resident::head_input(std::int64_t rows) {
    const Tensor last = rows_as(buffers_.last, DType::f32, 0, rows, spec_.dim);
    const Weights& w = weights_->weights;
    cuda::norm(ctx_, norm_of(spec_, last, last, w.final_norm, w.final_norm_bias));
    return to_host(last);
}

void Resident::copy_page(std::int32_t to, std::int32_t from) {
    // Keys and values of all layers lie one after another and have the same size.
    const Tensor keys = cache_->layer(0).keys;
    const std::size_t page = keys.bytes() / static_cast<std::size_t>(keys.dim(0));
    const std::size_t step = Arena::tensor_bytes(keys.dtype, keys.shape);
    stream_.rows_on_device(kv_memory_.data() + static_cast<std::size_t>(to) * page, step,
                           kv_memory_.data() + static_cast<std::size_t>(from) * page, step, page,
                           2 * static_cast<std::size_t>(spec_.layers));
}

std::unique_ptr<Engine> make_device_engine(std::shared_ptr<const Model> model,
                                           std::shared_ptr<const DeviceWeights> weights,
                                           const EngineOptions& options) {
    return std::make_unique<Resident>(std::move(model), std::move(weights), options);
}

Tensor device_head_input(Engine& engine, std::int64_t rows) {
    auto* const resident = dynamic_cast<Resident*>(&engine);
    MR_CHECK(resident != nullptr, "the engine computes on the device");
    return resident->head_input(rows);
}

}  // namespace mr::model
