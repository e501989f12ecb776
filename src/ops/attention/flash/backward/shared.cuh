// The shared memory of the one-pass backward, its barriers, and the instructions it needs besides
// those of core/cuda. For sm_90a; for other devices the code compiles and is never launched.
#pragma once

#include "core/cuda/bulk.cuh"
#include "core/cuda/fast_math.cuh"
#include "ops/attention/flash/backward/backward.cuh"

namespace mr::cuda::flash {

// Bytes of shared memory. A matrix [rows, kDim] is kPanels panels [rows, 64] of 128-byte rows.
template <int kDim, int kRows>
struct BackwardLayout {
    static constexpr int kKeys = kBackwardKeys;
    static constexpr int kPanels = (kDim + 63) / 64;
    static constexpr int kKeyPanel = kKeys * 128, kRowPanel = kRows * 128;
    static constexpr int kKeyTile = kPanels * kKeyPanel, kRowTile = kPanels * kRowPanel;
    static constexpr int kDsPanel = kRows * 128;  // [kRows, 64 keys], per warp group
    static constexpr int kDsTile = 2 * kDsPanel;
    static constexpr int kStages = 2;
    // Slots for tiles of keys. At head size 64 the next tile is loaded while this one is worked on,
    // in place of a second slot for dS.
    static constexpr int kKeySlots = kDim <= 64 ? 2 : 1;
    static constexpr int kDsSlots = kKeySlots == 2 ? 1 : 2;
    static constexpr bool kFold = kKeySlots == 2;  // BackwardArgs::fold

    static constexpr int kK = 0;
    static constexpr int kV = kK + kKeySlots * kKeyTile;
    static constexpr int kQ = kV + kKeySlots * kKeyTile;
    static constexpr int kDo = kQ + kStages * kRowTile;
    static constexpr int kDs = kDo + kStages * kRowTile;
    static constexpr int kDq = kDs + kDsSlots * kDsTile;  // f32, laid out as DqTile; two of them
    static constexpr int kDqTile = DqTile<kDim, kRows>::kFloats * 4;
    static constexpr int kLse = kDq + 2 * kDqTile;
    static constexpr int kDelta = kLse + kStages * kRows * 4;
    static constexpr int kBarriers = kDelta + kStages * kRows * 4;
    static constexpr int kSteps = kBarriers + 176;  // the loading warp's description of each stage
    static constexpr int kDqSteps = kSteps + 16;    // the adding warps' descriptions: DqStep
    static constexpr int kWork = kDqSteps + 16;     // BlockWork
    static constexpr int kBytes = kWork + 32;
    static_assert(kBytes <= 227 * 1024);
};

// Registers per thread: those of a block of 384 threads with 168 each, redistributed.
inline constexpr int kLoadRegisters = 40, kComputeRegisters = (168 * 3 - kLoadRegisters) / 2;

struct BackwardBarriers {
    unsigned at;
    __device__ __forceinline__ unsigned k_full(int slot) const { return at + 8 * slot; }
    __device__ __forceinline__ unsigned v_full(int slot) const { return at + 16 + 8 * slot; }
    __device__ __forceinline__ unsigned keys_empty(int slot) const { return at + 32 + 8 * slot; }
    __device__ __forceinline__ unsigned q_full(int stage) const { return at + 48 + 8 * stage; }
    __device__ __forceinline__ unsigned q_empty(int stage) const { return at + 64 + 8 * stage; }
    __device__ __forceinline__ unsigned do_full(int stage) const { return at + 80 + 8 * stage; }
    __device__ __forceinline__ unsigned do_empty(int stage) const { return at + 96 + 8 * stage; }
    __device__ __forceinline__ unsigned dq_full(int stage, int group) const {
        return at + 112 + 16 * stage + 8 * group;
    }
    // Signals that there is room for dq; for the last block that adds, that the sums so far have
    // arrived.
    __device__ __forceinline__ unsigned dq_ready(int stage) const { return at + 144 + 8 * stage; }
    __device__ __forceinline__ unsigned ds_empty() const { return at + 160; }
    __device__ __forceinline__ unsigned work() const { return at + 168; }
};

inline constexpr long long kTurnLimit = 1ll << 37;  // cycles: 69 s at 1.98 GHz

// Barrier of two warp groups, or of one.
template <int kBarrier, int kThreads>
__device__ __forceinline__ void meet() {
    asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

__device__ __forceinline__ unsigned read_turn(const unsigned* at) {
    unsigned turn = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(turn) : "l"(at) : "memory");
#endif
    return turn;
}
// Every turn comes (order.h). If one does not, because something else wrote to the scratch, the
// kernel traps after a minute instead of hanging.
__device__ __forceinline__ void wait_for_turn(const unsigned* at, unsigned turn) {
    const long long begin = clock64();
    while (read_turn(at) != turn) {
        if (clock64() - begin > kTurnLimit) __trap();
    }
}
__device__ __forceinline__ void write_turn(unsigned* at, unsigned turn) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(turn) : "memory");
#endif
}
__device__ __forceinline__ void fence_async_proxy() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async;" ::: "memory");
#endif
}
// From shared to global memory: copied, or added as f32.
__device__ __forceinline__ void bulk_store(float* to, unsigned from, int bytes,
                                           std::uint64_t policy) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(to),
        "r"(from), "r"(bytes), "l"(policy)
        : "memory");
#endif
}
__device__ __forceinline__ void bulk_add(float* to, unsigned from, int bytes,
                                         std::uint64_t policy) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.f32 "
        "[%0], [%1], %2, %3;" ::"l"(to),
        "r"(from), "r"(bytes), "l"(policy)
        : "memory");
#endif
}
__device__ __forceinline__ void bulk_commit() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
// Wait until shared memory has been read, or until all data is in memory.
__device__ __forceinline__ void bulk_wait_read() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}
__device__ __forceinline__ void bulk_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}
__device__ __forceinline__ void store_matrices(unsigned at, const std::uint32_t (&m)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                 "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
                 : "memory");
#endif
}
__device__ __forceinline__ void store_transposed(unsigned at, const std::uint32_t (&m)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                 "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
                 : "memory");
#endif
}
// Tells the compiler that the values of these registers are dead: a product that only writes them
// follows.
template <int kCount>
__device__ __forceinline__ void forget(float (&d)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) asm volatile("" : "=f"(d[i]));
}
__device__ __forceinline__ uint4 read_four(unsigned at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
__device__ __forceinline__ float2 read_pair(unsigned at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}

}  // namespace mr::cuda::flash
