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
    std::uint64_t bytes = 0;  // on the device: device_weight_bytes() of the model
};

struct DeviceLoadOptions {
    std::size_t chunk_bytes = std::size_t{8} << 20;  // sent at a time
    int chunks = 4;                                  // in flight: pinned, and as many on the device
    bool through_map = false;  // copy out of the map instead of reading the file (device_reader.h)
};

// Device memory that loading needs besides the weights, and frees at its end.
std::uint64_t device_loading_bytes(const Model& model, const DeviceLoadOptions& options = {});

// Loads the weights to the device (layout: device_layout.h): every thread of the pool fills pinned
// buffers, a copy stream sends them, and blocks are repacked into tiles while the next chunk is in
// flight. Matrices of a deferred model (Model::deferred) are made on the device. The model may be
// released afterwards (release_host_weights()).
//
// Throws Error (device) before it allocates if the weights do not fit, Error (input) if a file can
// no longer be read. `ledger` (may be null) counts every byte sent.
std::shared_ptr<const DeviceWeights> load_to_device(const Model& model, ThreadPool& pool,
                                                    Ledger* ledger, const Progress& progress = {},
                                                    const DeviceLoadOptions& options = {});

// Frees the host's copy: tensors keep type and shape but not their memory; maps are closed. Spec
// and tokenizer stay.
void release_host_weights(Model& model);

}  // namespace mr::model
