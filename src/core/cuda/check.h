// No CUDA call goes unchecked: MR_CUDA_CALL(cudaMalloc(...)) throws Error (device) with the
// runtime's own message. Only for files that nvcc compiles.
#pragma once

#include <cuda_runtime_api.h>

namespace mr::cuda {

[[noreturn]] void call_failed(cudaError_t status, const char* call, const char* file, int line);

}  // namespace mr::cuda

#define MR_CUDA_CALL(call)                                                  \
    do {                                                                    \
        const cudaError_t mr_status_ = (call);                              \
        if (mr_status_ != cudaSuccess) [[unlikely]]                         \
            ::mr::cuda::call_failed(mr_status_, #call, __FILE__, __LINE__); \
    } while (false)
