// GEMMs on the GPU while everything else stays on the host: the first three rungs.
#pragma once

#include <memory>

#include "lab/ladder/llama.h"

namespace mr::ladder {

// Device memory for w, x and out is allocated for every product, and freed after it.
std::unique_ptr<Matmul> copy_per_matmul();
// Memory is allocated once, and x and out go through page-locked memory. Weights are still sent
// every time.
std::unique_ptr<Matmul> preallocated(const model::Model& model);
// The weights are sent once. x and out are sent every time.
std::unique_ptr<Matmul> resident_weights(const model::Model& model);

}  // namespace mr::ladder
