// What a device engine will hold, from the model alone; and what a build without CUDA has instead
// of one.
#include <algorithm>

#include "core/cuda/device.h"
#include "core/error.h"
#include "model/device_buffers.h"
#include "model/device_engine.h"
#include "model/device_layout.h"

namespace mr::model {

DType device_kv_type(const Model& model) {
    const Tensor& matrix =
        model.weights.layers.empty() ? model.weights.embedding : model.weights.layers.front().o;
    return matrix.dtype == DType::f32 || matrix.dtype == DType::f16 ? matrix.dtype : DType::bf16;
}

MemoryPlan device_plan(const Model& model, const EngineOptions& options) {
    MemoryPlan plan;
    plan.add("weights", device_weight_bytes(model));
    plan.add("KV cache", KvCache::bytes(model.spec, options.context, options.max_sequences,
                                        options.kv_type.value_or(device_kv_type(model))));
    plan.add("activations", DeviceBuffers::activation_bytes(model, options));
    plan.add("scratch", DeviceBuffers::scratch_bytes(model, options));
    return plan;
}

void require_device(const Model& model, const EngineOptions& options) {
    const cuda::DeviceInfo info = cuda::require_device();
    DeviceNeeds needs;
    needs.plan = device_plan(model, options);
    needs.context = options.context;
    needs.weights = device_weight_bytes(model);
    needs.kv_position = KvCache::bytes(model.spec, KvCache::kPageTokens, 1,
                                       options.kv_type.value_or(device_kv_type(model))) /
                        KvCache::kPageTokens;
    require_device_memory(needs, model.spec, info.free_bytes);
}

#ifndef MR_CUDA
// NOLINTBEGIN(performance-unnecessary-value-param): the signature is that of device_engine.cu
std::unique_ptr<DeviceEngine> make_device_engine(std::shared_ptr<const Model>,
                                                 std::shared_ptr<const DeviceWeights>,
                                                 const EngineOptions&, Ledger&) {
    cuda::require_device();  // throws: there is none
    return nullptr;
}
// NOLINTEND(performance-unnecessary-value-param)
std::uint64_t DeviceBuffers::activation_bytes(const Model&, const EngineOptions&) { return 0; }
std::uint64_t DeviceBuffers::scratch_bytes(const Model&, const EngineOptions&) { return 0; }
#endif

}  // namespace mr::model
