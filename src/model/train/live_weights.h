// The weights of a model in training on a GPU, in the layout of the engine on the same GPU
// (device_engine.h): they stay in the trainer's memory, and nothing goes through the host. Only
// rotated q, k and v are copied: the trainer rotates halves and the engine neighbours, so rows of q
// and k have another order there (device_layout.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/cuda/device_layout.h"
#include "model/cuda/device_weights.h"

namespace mr::model {

// Copies `count` pieces of `bytes` at fixed strides.
struct RowCopy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::size_t bytes = 0, count = 1;
    std::size_t to_step = 0, from_step = 0;
};

// All tensors, with the copies from address `base` on. Needs no GPU.
struct LiveViews {
    Weights weights;
    std::vector<DeviceLayer> layers;
    std::vector<RowCopy> copies;
    std::uint64_t bytes = 0;  // of the copies: a multiple of DeviceArena's unit
};
// `trained` is laid out as params.h says.
LiveViews live_views(const ModelSpec& spec, const Weights& trained, std::uintptr_t base);
// Device memory that live_weights() allocates.
std::uint64_t live_bytes(const ModelSpec& spec, const Weights& trained);

struct LiveWeights {
    std::shared_ptr<const DeviceWeights> weights;
    std::vector<RowCopy> copies;
};
// Throws Error (device) if there is no room for the copies. `trained` must outlive the result.
LiveWeights live_weights(const ModelSpec& spec, const Weights& trained);
// Copies the current parameters; waits until that is done. The trainer's stream must be
// idle.
void refresh(const LiveWeights& live);

}  // namespace mr::model
