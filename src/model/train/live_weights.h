// The weights of a model that is being trained on a GPU, as the engine on the same GPU reads them
// (device_engine.h): they stay where the trainer has them, and nothing goes through the host. Only
// q, k and v are copied, where heads turn: the trainer turns halves and the engine neighbours, so
// rows of q and k have another order there (device_layout.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/cuda/device_layout.h"
#include "model/cuda/device_weights.h"

namespace mr::model {

// `count` pieces of `bytes`, which begin so many bytes after each other.
struct RowCopy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::size_t bytes = 0, count = 1;
    std::size_t to_step = 0, from_step = 0;
};

// Where everything lies, with the copies from address `base` on. Needs no GPU.
struct LiveViews {
    Weights weights;
    std::vector<DeviceLayer> layers;
    std::vector<RowCopy> copies;
    std::uint64_t bytes = 0;  // of the copies: a whole number of DeviceArena's units
};
// `trained` is laid out as params.h says.
LiveViews live_views(const ModelSpec& spec, const Weights& trained, std::uintptr_t base);
// What live_weights() takes on the device.
std::uint64_t live_bytes(const ModelSpec& spec, const Weights& trained);

struct LiveWeights {
    std::shared_ptr<const DeviceWeights> weights;
    std::vector<RowCopy> copies;
};
// Throws Error (device) where there is no room for the copies. `trained` must outlive the result.
LiveWeights live_weights(const ModelSpec& spec, const Weights& trained);
// The copies, of the parameters as they are now; waits until they are made. The trainer's stream
// must have nothing left to do.
void refresh(const LiveWeights& live);

}  // namespace mr::model
