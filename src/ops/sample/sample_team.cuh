// The building blocks of the sampling kernels: a team of blocks that share a row, sums over a
// block, the order of logits as integers, and the weight of a logit.
#pragma once

#include <cstdint>

namespace mr::cuda::sampling {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kBins = kThreads;    // per histogram: one per thread
constexpr int kTail = kBins - 1;   // the bin of logits without weight
constexpr int kBinBits = 9;        // 2^9 = kBins
constexpr int kListed = kThreads;  // most candidates ranked individually: one per thread
constexpr float kInfinity = __builtin_huge_valf();
constexpr u32 kAllLanes = 0xffffffffu;

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x % 32); }
__device__ __forceinline__ int warp() { return static_cast<int>(threadIdx.x / 32); }
__device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x); }

// The blocks that work on one row: a cluster, or a single block. Each has the same variables in its
// shared memory; of() gives another block's.
template <bool kCluster>
struct Team {
    static constexpr int kMost = 16;
    __device__ static int rank() {
        u32 r = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if constexpr (kCluster) asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
#endif
        return static_cast<int>(r);
    }
    __device__ static int size() {
        u32 n = 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if constexpr (kCluster) asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
#endif
        return static_cast<int>(n);
    }
    // A barrier for every thread of every block of the team.
    __device__ static void sync() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if constexpr (kCluster) {
            asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::
                             : "memory");
            return;
        }
#endif
        __syncthreads();
    }
    template <typename T>
    __device__ static T* of(T* mine, int rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
        if constexpr (kCluster) {
            T* theirs;
            asm("mapa.u64 %0, %1, %2;" : "=l"(theirs) : "l"(mine), "r"(rank));
            return theirs;
        }
#endif
        return mine;
    }
};

// Reductions and scans over a block. `space`: u64 [kWarps] in shared memory; every thread calls.
template <typename T, typename Op>
__device__ __forceinline__ T warp_reduce(T x, Op op) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        x = op(x, __shfl_xor_sync(kAllLanes, x, offset));
    }
    return x;
}
__device__ __forceinline__ u64 block_sum(u64 x, u64* space) {
    x = warp_reduce(x, [](u64 a, u64 b) { return a + b; });
    __syncthreads();  // earlier reads of `space` are done
    if (lane() == 0) space[warp()] = x;
    __syncthreads();
    x = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) x += space[w];
    return x;
}
// The sum of x over this thread and all threads before it.
__device__ __forceinline__ u64 block_scan(u64 x, u64* space) {
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const u64 y = __shfl_up_sync(kAllLanes, x, static_cast<u32>(offset));
        if (lane() >= offset) x += y;
    }
    __syncthreads();
    if (lane() == 31) space[warp()] = x;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) x += w < warp() ? space[w] : 0;
    return x;
}

// Logits as integers in the same order; -0 equals 0, as on the CPU.
__device__ __forceinline__ u32 key_of(float x) {
    const u32 bits = __float_as_uint(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of(u32 key) {
    return __uint_as_float(key >> 31 ? key ^ 0x80000000u : ~key);
}
// Decreasing: larger logits first, then lower ids.
__device__ __forceinline__ u64 candidate(float x, int id) {
    return u64{key_of(x)} << 32 | static_cast<u32>(~id);
}
__device__ __forceinline__ u32 key_in(u64 candidate) { return static_cast<u32>(candidate >> 32); }
__device__ __forceinline__ int id_in(u64 candidate) {
    return static_cast<int>(~static_cast<u32>(candidate));
}

// The smallest key in [low, high] for which `holds` is true; `holds` is monotone (false, then
// true), and true for `high`. A warp tests 32 keys at a time; all warps get the same result.
template <typename Holds>
__device__ u32 first_key(u32 low, u32 high, Holds holds) {
    while (true) {
        const u32 range = high - low, step = range / 32;
        const u32 mine = range < 32 ? min(low + static_cast<u32>(lane()), high)
                                    : low + step * static_cast<u32>(lane());
        const u32 yes = __ballot_sync(kAllLanes, holds(mine));
        const int first = __ffs(static_cast<int>(yes)) - 1;  // -1: none
        const u32 at = __shfl_sync(kAllLanes, mine, first < 0 ? 31 : first);
        const u32 before = __shfl_sync(kAllLanes, mine, first > 0 ? first - 1 : 0);
        if (first == 0 || (range < 32 && first > 0)) return at;
        if (first > 0) {
            low = before + 1;
            high = at;
        } else {
            low = at + 1;
        }
    }
}

// The weight of a logit relative to the best one, as an integer: 2^44 is the weight of the best.
// Sums of integers are the same in any order, so a draw does not depend on the order of additions.
class Weigher {
  public:
    static constexpr int kBits = 44;  // the sum over a vocabulary of 2^19 is below 2^63
    __device__ Weigher(float best, float temperature)
        : best_(best), temperature_(temperature), rate_(1.4426950408889634 / temperature) {}

    __device__ u64 operator()(float x) const {
        if (best_ == kInfinity) return x == kInfinity ? u64{1} << kBits : 0;  // they share all
        // 2^-halvings: 2^-n via the exponent, 2^r by its series, r in [-1/2, 1/2]. (Must not be
        // fused with the sum below: every kernel must round in the same way.)
        const double halvings =
            __dmul_rn(static_cast<double>(best_) - static_cast<double>(x), rate_);
        if (!(halvings < kBits + 2)) return 0;
        const double rounding = 0x1.8p52;  // adding it rounds to an integer
        const double shifted = halvings + rounding;
        const double r = (shifted - rounding) - halvings;
        const int n = static_cast<int>(static_cast<u32>(__double_as_longlong(shifted)));
        double p = 2.5678435993488206e-11;  // ln(2)^i / i!, i = 12 ... 0
        p = fma(p, r, 4.4455382718708116e-10);
        p = fma(p, r, 7.0549116208011233e-09);
        p = fma(p, r, 1.0178086009239699e-07);
        p = fma(p, r, 1.3215486790144310e-06);
        p = fma(p, r, 1.5252733804059840e-05);
        p = fma(p, r, 1.5403530393381609e-04);
        p = fma(p, r, 1.3333558146428443e-03);
        p = fma(p, r, 9.6181291076284772e-03);
        p = fma(p, r, 5.5504108664821580e-02);
        p = fma(p, r, 2.4022650695910072e-01);
        p = fma(p, r, 6.9314718055994531e-01);
        p = fma(p, r, 1.0);
        const double scale = __longlong_as_double(static_cast<long long>(1023 + kBits - n) << 52);
        const double in_units = fma(p, scale, 0x1p52);  // the nearest integer in the low bits
        return static_cast<u64>(__double_as_longlong(in_units)) & ((u64{1} << 52) - 1);
    }
    // Whether the weight is less than this part of the best one's, by the CPU's arithmetic.
    __device__ bool below(float x, float part) const {
        double nats = (static_cast<double>(x) - static_cast<double>(best_)) /
                      static_cast<double>(temperature_);
        if (best_ == kInfinity) nats = x == kInfinity ? 0.0 : -static_cast<double>(kInfinity);
        return exp(nats) < static_cast<double>(part);
    }

  private:
    float best_, temperature_;
    double rate_;  // halvings per unit of the logits
};

// Bins of logits by their distance to the best one, in kBins steps: monotone.
struct Bins {
    float best, scale;
    __device__ int operator()(float x) const {
        if (x == best) return 0;  // also where both are infinite
        const float distance = (best - x) * scale;
        return distance < static_cast<float>(kTail) ? static_cast<int>(distance) : kTail;
    }
};

}  // namespace mr::cuda::sampling
