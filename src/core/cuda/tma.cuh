// Boxes of a tensor from memory to shared memory by one thread (sm_90); bulk.cuh has the barriers.
#pragma once

#include <cuda.h>

#include "core/cuda/bulk.cuh"

namespace mr::cuda {

// The box of a head_rows_map() at (dim, head, token) to `to` (% 1024 == 0); its bytes, also those
// of zeros, are counted by the barrier, which was told to expect them.
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
// The same, with how L2 is to keep it.
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
// To the same place in all blocks of the cluster that `blocks` has a bit for; the barrier there
// counts what came there.
__device__ __forceinline__ void copy_box_to(std::uint16_t blocks, unsigned to,
                                            const CUtensorMap& map, int dim, int head, int token,
                                            unsigned barrier, std::uint64_t policy) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
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
// After stores to shared memory (by this thread), before TMA or a product reads them there.
__device__ __forceinline__ void stores_before_products() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace mr::cuda
