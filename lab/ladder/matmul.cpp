// Stand-in for matmul.cu in a build without CUDA.
#include "lab/ladder/matmul.h"

#include "core/cuda/device.h"

#ifndef MR_CUDA
namespace mr::ladder {
namespace {

std::unique_ptr<Matmul> none() {
    cuda::require_device();  // throws: there is no GPU
    return nullptr;
}

}  // namespace

std::unique_ptr<Matmul> copy_per_matmul() { return none(); }
std::unique_ptr<Matmul> preallocated(const model::Model&) { return none(); }
std::unique_ptr<Matmul> resident_weights(const model::Model&) { return none(); }

}  // namespace mr::ladder
#endif
