// The product on the GPU while everything else stays on the host: the first three rungs.
#pragma once

#include <memory>

#include "bench/ladder/llama.h"

namespace mr::ladder {

// Device memory for w, x and out is taken for every product, and given back after it.
std::unique_ptr<Matmul> copy_per_matmul();
// It is taken once, and x and out go through page-locked memory. Weights still travel every time.
std::unique_ptr<Matmul> preallocated(const model::Model& model);
// The weights went there once. x and out travel.
std::unique_ptr<Matmul> resident_weights(const model::Model& model);

}  // namespace mr::ladder
