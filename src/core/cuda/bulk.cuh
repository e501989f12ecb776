// Bulk copies from memory to shared memory (sm_90), and the barriers in shared memory that say when
// they have come and when their place is free again. Elsewhere it compiles, and is never launched.
#pragma once

#include <cstdint>

#include "core/cuda/copy.cuh"
#include "core/cuda/kernel.cuh"

namespace mr::cuda {

// A barrier is 8 bytes of shared memory. It begins in phase 0, and goes to the next one when
// `arrivals` have come, and all bytes that were announced.
__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
#endif
}
// After all barrier_init(), and before a bulk copy writes what stores of this thread wrote to.
__device__ __forceinline__ void barriers_ready() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}
// At the barrier in block `rank` of the cluster that lies where `barrier` lies here. It hands over
// nothing that was written: for places that were read, and may be filled again.
__device__ __forceinline__ void barrier_arrive_at(unsigned barrier, int rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "{ .reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [there]; }" ::"r"(barrier),
        "r"(rank)
        : "memory");
#endif
}
// Arrives, and announces copies.
__device__ __forceinline__ void barrier_expect(unsigned barrier, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
#endif
}
// Arrives when this thread's copies of copy.cuh have come; counts as one of the arrivals.
__device__ __forceinline__ void barrier_arrive_after_copies(unsigned barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}
// Until the phase of this parity is over.
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    unsigned over = 0;
    while (!over) {
        asm volatile(
            "{ .reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p; }"
            : "=r"(over)
            : "r"(barrier), "r"(parity)
            : "memory");
    }
#endif
}

// Registers of a group of four warps: from now on so many a thread. All its threads call it; those
// that take wait until others have given. Multiples of 8.
template <int kCount>
__device__ __forceinline__ void give_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

// How L2 is to keep what a copy touches: what createpolicy.fractional makes of L2::evict_normal,
// L2::evict_first and L2::evict_last, of all of it. For hosts, that kernels' arguments carry them.
inline constexpr std::uint64_t kEvictNormal = 0x1000000000000000, kEvictFirst = 0x12f0000000000000,
                               kEvictLast = 0x14f0000000000000;
// What is read once should not push out of L2 what will be read again.
__device__ __forceinline__ std::uint64_t read_once_policy() {
    std::uint64_t policy = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}
// `bytes` and both addresses are multiples of 16. One thread's call copies all of it.
__device__ __forceinline__ void copy_bulk(unsigned to, const void* from, int bytes,
                                          unsigned barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
#endif
}
__device__ __forceinline__ void copy_bulk(unsigned to, const void* from, int bytes,
                                          unsigned barrier, std::uint64_t policy) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
        : "memory");
#endif
}

}  // namespace mr::cuda
