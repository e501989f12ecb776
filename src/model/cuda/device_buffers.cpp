#include "model/cuda/device_buffers.h"

#include <algorithm>
#include <type_traits>

#ifdef MR_CUDA
#include "core/cuda/timeline.h"
#include "ops/attention/paged/attention_cuda.h"
#include "ops/linear/gemm_cuda.h"
#include "ops/linear/linear_cuda.h"
#include "ops/sample/adjust_cuda.h"
#include "ops/sample/sample_cuda.h"
#include "ops/step/step_cuda.h"
#endif

namespace mr::model {
// Every buffer: the plan adds them up, the engine allocates them.
template <typename Take>
void DeviceTensors::each(const Model& model, const EngineOptions& options, Take&& take) {
    const ModelSpec& spec = model.spec;
    const int most = row_bucket(options.max_sequences);
    const std::int64_t tokens = std::max(options.max_batch, most);
    const std::int64_t rows = std::max(options.max_logits, most);
    const auto tensor = [&](Tensor& t, Shape shape) {
        t = {take(static_cast<std::size_t>(shape.count()) * 4), DType::f32, shape};
    };
    const auto array = [&](auto*& p, std::int64_t count) {
        p = static_cast<std::remove_reference_t<decltype(p)>>(
            take(static_cast<std::size_t>(count) * sizeof *p));
    };
    tensor(x, {tokens, spec.dim});
    tensor(h, {tokens, spec.dim});
    if (spec.residual == Residual::parallel) tensor(h2, {tokens, spec.dim});
    if (!options.add_in_product) tensor(branch, {tokens, spec.dim});
    tensor(qkv, {tokens, spec.q_dim() + 2 * spec.kv_dim()});
    tensor(q, {tokens, spec.q_dim()});
    tensor(attn, {tokens, spec.q_dim()});
    if (spec.gated) tensor(gate_up, {tokens, 2 * spec.hidden});
    tensor(up, {tokens, spec.hidden});
    tensor(last, {rows, spec.dim});
    tensor(logits, {rows, spec.vocab});
    const std::int64_t pairs = spec.rope.rotary / 2;
    if (pairs > 0) tensor(rope, {options.stream ? tokens : options.context, pairs, 2});
    if (pairs > 0 && options.stream) {
        array(frequencies, pairs);
        const auto views = static_cast<std::int64_t>(sink_views(spec, options).views.size());
        if (views > 0) {
            tensor(rope_sinks, {views, tokens, pairs, 2});
            tensor(q_sinks, {tokens, spec.q_dim()});
        }
    }
    array(nll, rows);
    if (spec.diffusion) {
        array(guess_rows, rows * kGuessRowWords);
        array(guesses, rows * kGuessWords);
        array(block, kBlockWords);
    }
    if (options.check_nan) array(not_finite, 1);
    max_pages =
        static_cast<int>(KvCache::table_entries(device_pages(options), most_held(spec, options)));
    max_fronts = static_cast<int>(KvCache::pages_for(options.stream.sinks));
    for (Arrays* a : {&pass, &decode}) {
        array(a->ids, tokens);
        array(a->positions, tokens);
        array(a->sequence, tokens);
        array(a->first, 2 * (std::int64_t{most} + 1));
        array(a->pages, std::int64_t{most} * max_pages);
        array(a->rows, std::max(rows, tokens));
        if (!options.stream) continue;
        array(a->streams, 2 * std::int64_t{most});
        if (max_fronts > 0) array(a->fronts, std::int64_t{most} * max_fronts);
    }
    array(circles, 2 * std::int64_t{most});
}

std::uint64_t DeviceBuffers::activation_bytes(const Model& model, const EngineOptions& options) {
    DeviceTensors unused;
    std::size_t bytes = 0;
    unused.each(model, options, [&](std::size_t size) -> void* {
        bytes += cuda::DeviceArena::padded(size);
        return nullptr;
    });
    return bytes;
}

#ifdef MR_CUDA
namespace {

std::size_t attention_bytes(const ModelSpec& spec, const EngineOptions& options) {
    const auto context = static_cast<int>(options.context);
    if (const Stream view = widest_view(spec, options)) {
        return cuda::attention_stream_scratch_bytes(decode_rows(options), spec.heads, spec.head_dim,
                                                    context, view.sinks, view.window,
                                                    options.max_batch);
    }
    return cuda::attention_scratch_bytes(decode_rows(options), spec.heads, spec.head_dim, context);
}

// GEMMs of few tokens: their inputs, normed or quantised.
std::size_t linear_bytes(const ModelSpec& spec, const EngineOptions& options) {
    const std::int64_t rows = std::max(decode_rows(options), options.max_logits);
    const std::size_t bytes =
        cuda::linear_small_scratch_bytes(rows, std::max({spec.dim, spec.q_dim(), spec.hidden}));
    if (!spec.diffusion || !options.head_records) return bytes;
    return std::max(bytes, cuda::linear_records_scratch_bytes(rows, spec.dim));
}

std::size_t step_bytes(const ModelSpec& spec, const EngineOptions& options) {
    std::size_t bytes = 0;
    for (int rows = 1; rows <= std::min(options.max_sequences, cuda::kStepRows); ++rows) {
        bytes +=
            cuda::DeviceArena::padded(cuda::StepProgram::bytes(step_shape(spec, options, rows)));
    }
    return bytes;
}

// The largest GEMM of the model decides.
std::size_t gemm_bytes(const Model& model) {
    const ModelSpec& spec = model.spec;
    std::size_t most = 0;
    const auto product = [&](const Tensor& w, std::int64_t n) {
        if (!w.shape.rank) return;
        const DType type = w.dtype == DType::q8_0   ? DType::q8_0x8
                           : w.dtype == DType::q4_0 ? DType::q4_0x8
                                                    : w.dtype;
        const DType compute = cuda::compute_type(type);
        for (const DType out : {DType::f32, compute}) {
            for (const bool bias : {false, true}) {
                most = std::max(most,
                                cuda::gemm_scratch_bytes({n, w.cols(), type, compute, out, bias}));
            }
        }
    };
    for (const LayerWeights& w : model.weights.layers) {
        product(w.q, spec.q_dim() + 2 * spec.kv_dim());
        product(w.o, spec.dim);
        product(w.up, (spec.gated ? 2 : 1) * std::int64_t{spec.hidden});
        product(w.down, spec.dim);
    }
    product(model.weights.head, spec.vocab);
    return most;
}

}  // namespace

std::uint64_t DeviceBuffers::scratch_bytes(const Model& model, const EngineOptions& options) {
    return cuda::DeviceArena::padded(attention_bytes(model.spec, options)) +
           cuda::DeviceArena::padded(gemm_bytes(model)) +
           cuda::DeviceArena::padded(linear_bytes(model.spec, options)) +
           cuda::DeviceArena::padded(step_bytes(model.spec, options));
}

std::uint64_t DeviceBuffers::beside_bytes(const Model& model, const EngineOptions& options) {
    return cuda::DeviceArena::padded(cuda::Sampler::device_bytes(row_bucket(options.max_sequences),
                                                                 most_recent(options))) +
           (model.spec.diffusion ? 0
                                 : cuda::DeviceArena::padded(cuda::Adjuster::device_bytes(
                                       options.max_sequences, row_bucket(options.max_sequences),
                                       model.spec.vocab))) +
           cuda::DeviceArena::padded(most_stages(model.spec) * sizeof(cuda::Stamp));
}

void DeviceBuffers::take(const Model& model, const EngineOptions& options) {
    activations_ = cuda::DeviceArena("activations", activation_bytes(model, options));
    each(model, options, [&](std::size_t size) { return activations_.alloc(size); });
    scratch_ = cuda::DeviceArena("scratch", scratch_bytes(model, options));
    const auto span = [&](std::size_t bytes) {
        return std::span<std::byte>(static_cast<std::byte*>(scratch_.alloc(bytes)), bytes);
    };
    attention_scratch = span(attention_bytes(model.spec, options));
    gemm_scratch = span(gemm_bytes(model));
    linear_scratch = span(linear_bytes(model.spec, options));
    step_programs = span(step_bytes(model.spec, options));
}
#else
// Only a CUDA build knows these sizes.
std::uint64_t DeviceBuffers::scratch_bytes(const Model&, const EngineOptions&) { return 0; }
std::uint64_t DeviceBuffers::beside_bytes(const Model&, const EngineOptions&) { return 0; }
#endif

}  // namespace mr::model
