#include "core/cuda/spin.h"

#include <cuda_runtime_api.h>

#include "core/cuda/check.h"

namespace mr::cuda {

bool idle(const Stream& stream) {
    const cudaError_t status = cudaStreamQuery(stream.raw());
    if (status == cudaErrorNotReady) return false;
    MR_CUDA_CALL(status);
    return true;
}

}  // namespace mr::cuda
