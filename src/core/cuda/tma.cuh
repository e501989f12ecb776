// TMA (sm_90): one thread copies a box of a tensor to shared memory. bulk.cuh has the barriers.
#pragma once

#include <cuda.h>

#include "core/cuda/bulk.cuh"

namespace mr::cuda {

// Copies the box of a head_rows_map() at (dim, head, token) to `to` (% 1024 == 0). The barrier
// counts its bytes, zeros included, and must have been told to expect them.
__device__ __forceinline__ void copy_box(unsigned to, const CUtensorMap& map, int dim, int head,
                                         int token, unsigned barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
        "l"(&map), "r"(dim), "r"(head), "r"(token), "r"(barrier)
        : "memory");
#endif
}
// The same with an L2 eviction policy.
__device__ __forceinline__ void copy_box(unsigned to, const CUtensorMap& map, int dim, int head,
                                         int token, unsigned barrier, std::uint64_t policy) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(&map), "r"(dim), "r"(head), "r"(token), "r"(barrier), "l"(policy)
        : "memory");
#endif
}
// Copies to the same offset in every block of the cluster whose bit is set in `blocks`; the barrier
// at the same offset in each block counts the bytes that arrive there.
__device__ __forceinline__ void copy_box_to(std::uint16_t blocks, unsigned to,
                                            const CUtensorMap& map, int dim, int head, int token,
                                            unsigned barrier, std::uint64_t policy) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(to),
        "l"(&map), "r"(dim), "r"(head), "r"(token), "r"(barrier), "h"(blocks), "l"(policy)
        : "memory");
#endif
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}
// Call it after stores of this thread to shared memory, before TMA or a wgmma reads them there.
__device__ __forceinline__ void stores_before_products() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace mr::cuda
