// Helpers for attention around the tensor cores' products, for T = __half and bf16. For sm_80 and
// up; for older devices the code compiles and is never launched.
#pragma once

#include "core/cuda/copy.cuh"
#include "core/cuda/mma.cuh"

namespace mr::cuda::attn {

// An 8 x 8 matrix, spread over the warp as one 8 x 8 quarter of `a` above, transposed.
__device__ __forceinline__ std::uint32_t transpose(std::uint32_t x) {
    std::uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// Four 8 x 8 matrices from shared memory; lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(std::uint32_t (&m)[4], std::uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address));
}
__device__ __forceinline__ void load_transposed(std::uint32_t (&m)[4], std::uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address));
}

}  // namespace mr::cuda::attn
