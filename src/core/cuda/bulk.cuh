// Bulk copies from global to shared memory (sm_90), and the mbarriers that tell when a copy has
// arrived and when its slot is free again. For older devices the code compiles and is never
// launched.
#pragma once

#include <cstdint>

#include "core/cuda/copy.cuh"
#include "core/cuda/kernel.cuh"

namespace mr::cuda {

// A barrier is 8 bytes of shared memory. It begins in phase 0 and enters the next phase when
// `arrivals` threads have arrived and all announced bytes have been copied.
__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
#endif
}
// Call it before a bulk copy overwrites shared memory that stores or copies of copy.cuh have
// written.
__device__ __forceinline__ void bulk_follows() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// Call it after all barrier_init(), and before a bulk copy overwrites memory that this thread has
// stored to.
__device__ __forceinline__ void barriers_ready() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    bulk_follows();
}
__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}
// Arrives at the barrier at the same offset in block `rank` of the cluster. It publishes no writes:
// use it for buffers that were read and may be refilled.
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
// Arrives and announces copies of `bytes`.
__device__ __forceinline__ void barrier_expect(unsigned barrier, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
#endif
}
// Arrives when this thread's copies of copy.cuh are complete; counts as one of the arrivals.
__device__ __forceinline__ void barrier_arrive_after_copies(unsigned barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}
// The same, but it first adds one to the pending arrivals: the phase lasts until these copies are
// complete, if one of the expected arrivals comes after this call.
__device__ __forceinline__ void barrier_add_arrival_after_copies(unsigned barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}
// Waits until the phase of this parity is over.
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

// Sets the registers per thread of a warp group (four warps), a multiple of 8. All threads of the
// group call it. A group that takes registers waits until other groups have given theirs.
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

// L2 eviction policies of a copy: the values that createpolicy.fractional gives for
// L2::evict_normal, L2::evict_first and L2::evict_last with a fraction of 1. The host passes them
// as kernel arguments.
inline constexpr std::uint64_t kEvictNormal = 0x1000000000000000, kEvictFirst = 0x12f0000000000000,
                               kEvictLast = 0x14f0000000000000;
// For data that is read once: it should not evict data from L2 that will be read again.
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
// Copies to the same offset in every block of the cluster whose bit is set in `blocks`; the barrier
// at the same offset in each block counts the bytes that arrive there. Only code for 90a has it:
// elsewhere ptxas warns that it may be slow.
__device__ __forceinline__ void copy_bulk_to(std::uint16_t blocks, unsigned to, const void* from,
                                             int bytes, unsigned barrier, std::uint64_t policy) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        ".L2::cache_hint [%0], [%1], %2, [%3], %4, %5;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "h"(blocks), "l"(policy)
        : "memory");
#endif
}

}  // namespace mr::cuda
