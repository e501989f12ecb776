#include "model/cuda/device_weights.h"

#include <algorithm>

namespace mr::model {

std::uint64_t device_loading_bytes(const Model& model, const DeviceLoadOptions& options) {
    // A chunk holds at least the 8 rows of a tile.
    std::size_t chunk = cuda::DeviceArena::padded(options.chunk_bytes);
    for (RoleAt at : roles_of(model.spec)) {
        if (!is_matrix(at.role)) continue;
        const Tensor& tensor = role_slot(model.weights, at);
        chunk = std::max(chunk, cuda::DeviceArena::padded(8 * tensor.row_bytes()));
    }
    return chunk * static_cast<std::uint64_t>(std::max(options.chunks, 1));
}

void release_host_weights(Model& model) {
    Weights& weights = model.weights;
    for (RoleAt at : roles_of(model.spec)) role_slot(weights, at).data = nullptr;
    weights.head.data = nullptr;  // a tied head has no role of its own
    weights.files = {};
    weights.keep.clear();
    weights.arenas.clear();
    weights.mapped_bytes = weights.owned_bytes = 0;
}

#ifndef MR_CUDA
std::shared_ptr<const DeviceWeights> load_to_device(const Model&, ThreadPool&, Ledger*,
                                                    const Progress&, const DeviceLoadOptions&) {
    cuda::require_device();  // its error says why
    return nullptr;
}
#endif

}  // namespace mr::model
