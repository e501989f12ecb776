// The memory plan of a device engine, from the model alone; and the stand-in for the engine in a
// build without CUDA.
#include <string>

#include "core/cuda/device.h"
#include "core/error.h"
#include "model/cuda/device_buffers.h"
#include "model/cuda/device_engine.h"
#include "model/cuda/device_layout.h"
#include "ops/attention/flash/pages.h"

namespace mr::model {
namespace {

// Head sizes that attention takes (ops/attention/paged/attention_cuda.h).
constexpr int kHeadUnit = 8, kMostHead = 256;

// A value below `most` with which the engine's plan fits, where set(options, value) puts it, by
// bisection: the largest, if all below it fit; 0: none was found. Not only the cache grows with the
// context: scratch and the sampler's rows do, too.
template <typename Set>
std::int64_t fitting_value(const Model& model, const EngineOptions& wanted, std::uint64_t available,
                           std::int64_t most, Set&& set) {
    constexpr std::int64_t kStep = 64;  // a round number, and whole pages
    const auto fits = [&](std::int64_t value) {
        EngineOptions fewer = wanted;
        set(fewer, value);
        return device_plan(model, with_defaults(model, fewer, available)).total() <= available;
    };
    std::int64_t low = 0, high = (most + kStep - 1) / kStep;
    while (high - low > 1) {
        const std::int64_t middle = low + (high - low) / 2;
        (fits(middle * kStep) ? low : high) = middle;
    }
    return low * kStep;
}

}  // namespace

DType device_kv_type(const Model& model) {
    const Tensor& matrix =
        model.weights.layers.empty() ? model.weights.embedding : model.weights.layers.front().o;
    return matrix.dtype == DType::f32 || matrix.dtype == DType::f16 ? matrix.dtype : DType::bf16;
}

bool device_prompts_flash(const Model& model, const EngineOptions& options) {
    const auto device = cuda::device();
    const int dim = model.spec.head_dim;
    return device && device->sm >= 80 && cuda::flash::mma_takes_pages(dim) &&
           cuda::flash::mma_fits(dim, device->shared_per_block) &&
           options.kv_type == device_kv_type(model) && options.kv_type != DType::f32;
}

MemoryPlan device_plan(const Model& model, const EngineOptions& options) {
    MemoryPlan plan;
    plan.add("weights", device_weight_bytes(model));
    plan.add("KV cache", cuda::DeviceArena::padded(
                             KvCache::bytes(model.spec, device_pages(options), *options.kv_type)));
    plan.add("activations", DeviceBuffers::activation_bytes(model, options));
    plan.add("scratch", DeviceBuffers::scratch_bytes(model, options));
    plan.add("sampler and stamps", DeviceBuffers::beside_bytes(model, options));
    return plan;
}

std::string device_takes(const LayerSpec& layer, const LayerSpec& common) {
    // A structured binding of every member: a new member must be handled before this compiles.
    // Masks, scales, norms and activations are passed to the kernels layer by layer.
    const auto& [mask, rope, scale, softcap, norm, norm_eps, qk_norm, activation, gated] = layer;
    if (softcap != 0) return "a softcap of scores";
    if (rope != common.rope) return "rotary positions that differ by layer";  // there is one table
    if (gated != common.gated) return "MLPs with and without a gate in one model";
    return {};
}

std::string step_takes_layer(const LayerSpec& layer, const LayerSpec& common) {
    const auto& [mask, rope, scale, softcap, norm, norm_eps, qk_norm, activation, gated] = layer;
    if (softcap != 0) return "a softcap of scores";
    if (qk_norm) return "norms of q and k";
    // The kernel takes one value of these for all layers.
    if (mask != common.mask) return "masks that differ by layer";
    if (scale != common.scale) return "scales of scores that differ by layer";
    if (rope != common.rope) return "rotary positions that differ by layer";
    if (norm != common.norm || norm_eps != common.norm_eps) return "norms that differ by layer";
    if (activation != common.activation || gated != common.gated) {
        return "MLPs that differ by layer";
    }
    return {};
}

void require_device_shape(const Model& model) {
    const ModelSpec& spec = model.spec;
    require_layers(spec, device_takes, model.source, "the GPU engine", "use --device cpu");
    if (spec.head_dim % kHeadUnit != 0 || spec.head_dim > kMostHead) {
        throw Error::input({.file = model.source,
                            .field = "head size",
                            .value = std::to_string(spec.head_dim),
                            .problem = "the GPU engine needs a multiple of " +
                                       std::to_string(kHeadUnit) + " up to " +
                                       std::to_string(kMostHead),
                            .remedy = "use --device cpu"});
    }
    for (const DeviceLayer& layer : device_views(spec, types_of(model), 0).layers) {
        if (layer.qkv.shape.rank && (!spec.gated || layer.gate_up.shape.rank)) continue;
        throw Error::input({.file = model.source,
                            .field = "weights",
                            .problem = "the matrices of q, k and v, or of gate and up, are of "
                                       "different types or cannot lie one after another in tiles "
                                       "of 8 rows, which the GPU engine needs",
                            .remedy = "convert the model to one type (millrace convert --type), or "
                                      "use --device cpu"});
    }
}

void require_device_memory(const Model& model, const EngineOptions& options,
                           const EngineOptions& wanted, std::uint64_t available) {
    DeviceNeeds needs;
    needs.plan = device_plan(model, options);
    if (needs.plan.total() <= available) return;
    needs.weights = device_weight_bytes(model);
    const auto fitting = [&](std::int64_t most, auto&& set) {
        return fitting_value(model, wanted, available, most, set);
    };
    if (wanted.stream) {
        needs.option = "--window";
        needs.fitting = fitting(wanted.stream.window, [](EngineOptions& o, std::int64_t value) {
            o.stream.window = static_cast<std::int32_t>(value);
        });
        if (needs.fitting < wanted.stream.sinks) needs.fitting = 0;  // require_stream() refuses it
    } else if (wanted.pool > 0) {  // a context beyond the pool is cut to it
        needs.option = "--pool";
        needs.fitting =
            fitting(wanted.pool, [](EngineOptions& o, std::int64_t value) { o.pool = value; });
    } else {
        needs.fitting = fitting(options.context,
                                [](EngineOptions& o, std::int64_t value) { o.context = value; });
    }
    require_device_memory(needs, model.spec, available);
}

void require_device(const Model& model, const EngineOptions& options, const EngineOptions& wanted,
                    std::uint64_t held) {
    require_device_shape(model);
    require_device_memory(model, options, wanted, cuda::require_device().free_bytes + held);
}

#ifndef MR_CUDA
// NOLINTBEGIN(performance-unnecessary-value-param): the signature is that of device_engine_cuda.cpp
std::unique_ptr<Engine> make_device_engine(std::shared_ptr<const Model>,
                                           std::shared_ptr<const DeviceWeights>,
                                           const EngineOptions&) {
    cuda::require_device();  // throws: there is none
    return nullptr;
}
Tensor device_head_input(Engine&, std::int64_t) {
    cuda::require_device();
    return {};
}
// NOLINTEND(performance-unnecessary-value-param)
#endif

}  // namespace mr::model
