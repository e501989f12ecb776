// The statistics of one row, in one order for every kernel that needs them: the norm kernels, the
// fused linear prologue, the per-head norms. The bits depend on the row's values and on `cols`
// alone, not on the kernel or its number of threads.
//
// The order: elements in chunks of 4; chunk c belongs to partial sum c % 256, which adds its chunks
// one after another; then a tree adds partials p and p + 128, p and p + 64, ... p and p + 1.
// A group of 32, 64, 128 or 256 threads holds 256 / threads partials each, so that the first levels
// of the tree are its own registers, the next ones go through shared memory and the last five are
// shuffles. A thread's chunks come one at a time (chunk thread + threads * i), or, where 16 bytes
// of f16 or bf16 are loaded at once, in neighbouring pairs (kEach = 2): chunks 2 (thread + threads
// * i) and the next. Either way a partial lies whole in one thread.
#pragma once

#include "core/cuda/kernel.cuh"
#include "ops/norm/kind.h"

namespace mr::cuda {

using ops::NormKind;

struct RowStats {
    float mean;  // 0 for rms
    float rstd;  // 1 / sqrt(mean((x - mean)²) + eps)
};

constexpr int kRowPartials = 256;
constexpr int kRowChunk = 4;  // elements

// Floats of shared memory that row_stats<kThreads> needs.
template <int kThreads, int kEach = 1>
constexpr int kRowShared = kThreads > 32 ? 2 * kThreads* kEach : 0;

__device__ __forceinline__ float chunk_sum(float a, float b, float c, float d) {
    return __fadd_rn(__fadd_rn(a, b), __fadd_rn(c, d));
}
__device__ __forceinline__ float chunk_squares(float a, float b, float c, float d) {
    return __fadd_rn(__fmaf_rn(b, b, __fmul_rn(a, a)), __fmaf_rn(d, d, __fmul_rn(c, c)));
}

// The tree. Thread `thread` of the group holds, as partial[i * kEach + e], the partials (thread +
// kThreads * i) * kEach + e; every thread gets the sum. More than one warp: `shared` has kThreads *
// kEach floats that may be overwritten.
template <int kThreads, int kEach = 1, typename Team = BlockTeam>
__device__ __forceinline__ float row_reduce(float (&partial)[kRowPartials / kThreads], int thread,
                                            float* shared, Team team = {}) {
    static_assert(kThreads == 32 || kThreads == 64 || kThreads == 128 || kThreads == 256);
    static_assert((kEach == 1 || kEach == 2) && kThreads * kEach <= kRowPartials);
#pragma unroll
    for (int n = kRowPartials / kThreads / 2; n >= kEach; n /= 2) {
#pragma unroll
        for (int i = 0; i < n; ++i) partial[i] = __fadd_rn(partial[i], partial[i + n]);
    }
    float sums[kEach];
#pragma unroll
    for (int e = 0; e < kEach; ++e) sums[e] = partial[e];
    if constexpr (kThreads > 32) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) shared[thread * kEach + e] = sums[e];
        team.sync();
        constexpr int kWarps = kThreads / 32;
        float warps[kWarps * kEach];
#pragma unroll
        for (int i = 0; i < kWarps * kEach; ++i) {
            warps[i] = shared[((thread & 31) + 32 * (i / kEach)) * kEach + i % kEach];
        }
#pragma unroll
        for (int n = kWarps * kEach / 2; n >= kEach; n /= 2) {
#pragma unroll
            for (int i = 0; i < n; ++i) warps[i] = __fadd_rn(warps[i], warps[i + n]);
        }
#pragma unroll
        for (int e = 0; e < kEach; ++e) sums[e] = warps[e];
    }
    float sum = sums[0];
    if constexpr (kEach == 1) {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, offset));
        }
    } else {
        // Lane l has partials 2l and 2l + 1. The lower half of the warp continues with the even
        // ones, the upper half with the odd ones; the two are added last.
        const bool upper = thread & 16;
        const float given = upper ? sums[0] : sums[1];
        sum = upper ? sums[1] : sums[0];
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, given, 16));
#pragma unroll
        for (int offset = 8; offset > 0; offset /= 2) {
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, offset));
        }
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 16));
    }
    return sum;
}

__device__ __forceinline__ float row_rstd(float squares, float inverse_cols, float eps) {
    return rsqrtf(__fmaf_rn(squares, inverse_cols, eps));
}

// The statistics of a row that its group holds in registers: v[k * kEach + e] is chunk
// (thread + kThreads * k) * kEach + e, zeros past the end; cols is a multiple of 4 kEach.
// kThreads > 32: all threads of the group call it; a second call with the same `shared` needs a
// team.sync() before it.
template <int kThreads, int kChunks, int kEach = 1, typename Team = BlockTeam>
__device__ __forceinline__ RowStats row_stats(NormKind kind, const float (&v)[kChunks][kRowChunk],
                                              int cols, float eps, int thread, float* shared,
                                              Team team = {}) {
    constexpr int kMine = kRowPartials / kThreads;
    const float inverse_cols = __frcp_rn(static_cast<float>(cols));
    RowStats stats{0.0f, 0.0f};
    if (kind == NormKind::layer) {
        float partial[kMine] = {};
#pragma unroll
        for (int k = 0; k < kChunks; ++k) {
            const float sum = chunk_sum(v[k][0], v[k][1], v[k][2], v[k][3]);
            partial[k % kMine] = __fadd_rn(partial[k % kMine], sum);
        }
        stats.mean =
            __fmul_rn(row_reduce<kThreads, kEach>(partial, thread, shared, team), inverse_cols);
        shared += kRowShared<kThreads, kEach> / 2;
    }
    // The variance from the centred values: a large mean must not swamp it.
    float partial[kMine] = {};
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
        const float sum =
            chunk_squares(__fsub_rn(v[k][0], stats.mean), __fsub_rn(v[k][1], stats.mean),
                          __fsub_rn(v[k][2], stats.mean), __fsub_rn(v[k][3], stats.mean));
        const int chunk = (thread + kThreads * (k / kEach)) * kEach + k % kEach;
        const bool inside = chunk * kRowChunk < cols;
        partial[k % kMine] = inside ? __fadd_rn(partial[k % kMine], sum) : partial[k % kMine];
    }
    stats.rstd =
        row_rstd(row_reduce<kThreads, kEach>(partial, thread, shared, team), inverse_cols, eps);
    return stats;
}

// The row as a function: value(i) is element i, called once for rms and twice for layer, only for i
// < cols. For rows of any length and alignment; otherwise as above.
template <int kThreads, typename Value, typename Team = BlockTeam>
__device__ __forceinline__ RowStats row_stats_of(NormKind kind, Value&& value, int cols, float eps,
                                                 int thread, float* shared, Team team = {}) {
    constexpr int kMine = kRowPartials / kThreads;
    const float inverse_cols = __frcp_rn(static_cast<float>(cols));
    RowStats stats{0.0f, 0.0f};
    const int chunks = (cols + kRowChunk - 1) / kRowChunk;
    const auto sum_of = [&](auto&& term, float mean, float* space) {
        float partial[kMine] = {};
        // Partial i of this thread: chunks thread + kThreads * i, then every 256th.
        for (int base = 0; base < chunks; base += kRowPartials) {
#pragma unroll
            for (int i = 0; i < kMine; ++i) {
                const int chunk = base + thread + kThreads * i;
                if (chunk >= chunks) break;
                float d[kRowChunk];
#pragma unroll
                for (int j = 0; j < kRowChunk; ++j) {
                    const int at = chunk * kRowChunk + j;
                    d[j] = at < cols ? __fsub_rn(value(at), mean) : 0.0f;
                }
                partial[i] = __fadd_rn(partial[i], term(d[0], d[1], d[2], d[3]));
            }
        }
        return row_reduce<kThreads, 1>(partial, thread, space, team);
    };
    if (kind == NormKind::layer) {
        stats.mean = __fmul_rn(sum_of(chunk_sum, 0.0f, shared), inverse_cols);
        shared += kThreads > 32 ? kThreads : 0;
    }
    stats.rstd = row_rstd(sum_of(chunk_squares, stats.mean, shared), inverse_cols, eps);
    return stats;
}

// The row in f32 memory (global or shared), 16-byte aligned if cols is a multiple of 4; read once
// for rms, twice for layer.
template <int kThreads, typename Team = BlockTeam>
__device__ __forceinline__ RowStats row_stats(NormKind kind, const float* x, int cols, float eps,
                                              int thread, float* shared, Team team = {}) {
    if (cols % kRowChunk != 0) {
        return row_stats_of<kThreads>(
            kind, [x](int i) { return x[i]; }, cols, eps, thread, shared, team);
    }
    constexpr int kMine = kRowPartials / kThreads;
    const float inverse_cols = __frcp_rn(static_cast<float>(cols));
    RowStats stats{0.0f, 0.0f};
    const int chunks = cols / kRowChunk;
    const auto sum_of = [&](auto&& term, float mean, float* space) {
        float partial[kMine] = {};
        constexpr int kBatch = kMine > 4 ? kMine : 4;  // loads in flight
        for (int base = thread; base < chunks; base += kThreads * kBatch) {
            float4 v[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                const int chunk = base + kThreads * i;
                if (chunk < chunks) v[i] = reinterpret_cast<const float4*>(x)[chunk];
            }
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                if (base + kThreads * i >= chunks) break;
                partial[i % kMine] = __fadd_rn(
                    partial[i % kMine], term(__fsub_rn(v[i].x, mean), __fsub_rn(v[i].y, mean),
                                             __fsub_rn(v[i].z, mean), __fsub_rn(v[i].w, mean)));
            }
        }
        return row_reduce<kThreads, 1>(partial, thread, space, team);
    };
    if (kind == NormKind::layer) {
        stats.mean = __fmul_rn(sum_of(chunk_sum, 0.0f, shared), inverse_cols);
        shared += kThreads > 32 ? kThreads : 0;
    }
    stats.rstd = row_rstd(sum_of(chunk_squares, stats.mean, shared), inverse_cols, eps);
    return stats;
}

// One element of the result. rms: mean is 0; no bias: b is 0.
__device__ __forceinline__ float normed(float v, const RowStats& stats, float w, float b) {
    return __fmaf_rn(__fmul_rn(__fsub_rn(v, stats.mean), stats.rstd), w, b);
}

}  // namespace mr::cuda
