// Stand-in for overlap_cuda.cpp in a build without CUDA.
#include "lab/overlap/overlap.h"

#include "core/cuda/device.h"

namespace mr::overlap {

#ifndef MR_CUDA
Report measure(const model::ModelSpec&, const Options&, const Progress&) {
    cuda::require_device();
    return {};
}
#endif

}  // namespace mr::overlap
