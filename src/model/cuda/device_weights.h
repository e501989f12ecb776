// Weights in device memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/cuda/device.h"
#include "core/ledger.h"
#include "core/progress.h"
#include "core/thread_pool.h"
#include "model/cuda/device_layout.h"
#include "model/model.h"

namespace mr::model {

struct DeviceWeights {
    Weights weights;                  // every tensor points to device memory
    std::vector<DeviceLayer> layers;  // joined tensors, beside weights.layers
    cuda::DeviceArena memory;
    std::uint64_t bytes = 0;  // that lie on the device: device_weight_bytes() of the model
};

struct DeviceLoadOptions {
    std::size_t chunk_bytes = std::size_t{8} << 20;  // sent at a time
    int chunks = 4;                                  // in flight: pinned, and again on the device
    bool through_map = false;  // copy out of the map instead of reading the file (device_reader.h)
};

// What loading takes on the device besides the weights, and gives back.
std::uint64_t device_loading_bytes(const Model& model, const DeviceLoadOptions& options = {});

// Brings the weights to the device (device_layout.h says where they lie there): every thread of
// the pool fills pinned buffers, a copy stream sends them, and blocks become tiles while the next
// chunk is on its way. Matrices of a deferred model (Model::deferred) are made on the device. The
// model may be released afterwards (release_host_weights()).
//
// Throws Error (device) before anything is taken where the weights do not fit, Error (input) where
// a file cannot be read any more. `ledger` (may be null) counts every byte sent.
std::shared_ptr<const DeviceWeights> load_to_device(const Model& model, ThreadPool& pool,
                                                    Ledger* ledger, const Progress& progress = {},
                                                    const DeviceLoadOptions& options = {});

// Gives the host's copy back: tensors keep type and shape and lose their memory; maps are closed.
// Spec and tokenizer stay.
void release_host_weights(Model& model);

}  // namespace mr::model
