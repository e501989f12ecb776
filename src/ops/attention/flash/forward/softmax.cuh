// Scores in registers, in the layout of wgmma's results, in the Hopper forward: the running
// softmax, the mask, weights for the next product, rows for memory.
#pragma once

#include "core/cuda/fast_math.cuh"
#include "core/cuda/mma.cuh"
#include "ops/attention/flash/forward/plan.h"
#include "ops/attention/flash/quad.cuh"

namespace mr::cuda::flash::forward {

constexpr float kSlack = 8;  // a maximum may grow by 2^8 before the sums are rescaled

// The running softmax of two rows per thread, g and g + 8 of its warp's 16.
struct Softmax {
    float top[2];     // the maximum that weights are relative to, times scale_log2
    float factor[2];  // to multiply the previous sums with
    float sum[2];     // of this thread's weights

    __device__ __forceinline__ void reset() {
        top[0] = top[1] = -INFINITY;
        sum[0] = sum[1] = 0;
    }
    template <int kCount>
    __device__ __forceinline__ void weigh(float (&s)[kCount], float scale) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float most = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
            for (int i = 4; i < kCount; i += 4) {
                most = fmaxf(most, fmaxf(s[i + 2 * h], s[i + 2 * h + 1]));
            }
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2)) * scale;
            // Every row decides for itself, so that its bits do not depend on other rows.
            const float before = top[h];
            if (most > before + kSlack || before == -INFINITY) top[h] = most;
            const float base = top[h] == -INFINITY ? 0.0f : top[h];
            factor[h] = top[h] == before ? 1.0f : fast_exp2(before - base);
            float added[2] = {0, 0};
#pragma unroll
            for (int i = 0; i < kCount; i += 4) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float& x = s[i + 2 * h + e];
                    x = fast_exp2(fmaf(x, scale, -base));
                    added[e] += x;
                }
            }
            sum[h] = fmaf(sum[h], factor[h], added[0] + added[1]);
        }
    }
    // It never traps, but ptxas cannot know that and so computes the exponentials before this
    // point. Otherwise it moves them after the wait for V's product, with which they should
    // overlap.
    __device__ __forceinline__ void finish() const {
        asm volatile(
            "{ .reg .pred p; setp.gt.f32 p, %0, 0f7F800000; @p trap; }" ::"f"(sum[0] + sum[1]));
    }
    template <int kCount>
    __device__ __forceinline__ void rescale(float (&o)[kCount]) const {
        if (__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
            for (int i = 0; i < kCount; i += 4) {
                o[i] *= factor[0];
                o[i + 1] *= factor[0];
                o[i + 2] *= factor[1];
                o[i + 3] *= factor[1];
            }
        }
    }
};

// Scores that a row does not see become -infinity. `position` is that of row g, `column` 2 c.
template <int kCount>
__device__ __forceinline__ void hide(float (&s)[kCount], const Mask& mask, int position, int keys,
                                     int n, int column) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int hi = mask.hi(position + 8 * h, keys) - n - column;
#pragma unroll
        for (int i = 0; i < kCount / 4; ++i) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                if (8 * i + e >= hi) s[4 * i + 2 * h + e] = -INFINITY;
            }
        }
        if (mask.window == Mask::kNever) continue;
        const int lo = mask.lo(position + 8 * h) - n - column, sinks = mask.sinks - n - column;
#pragma unroll
        for (int i = 0; i < kCount / 4; ++i) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int key = 8 * i + e;
                if (key < lo && key >= sinks) s[4 * i + 2 * h + e] = -INFINITY;
            }
        }
    }
}

template <typename T, int kWide, int kCount>
__device__ __forceinline__ void pack_weights(std::uint32_t (&w)[kWide][4],
                                             const float (&s)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) w[i][j] = pack<T>(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]);
    }
}

// Divides the sums of two rows by their weights and writes them, and their log-sum-exp.
template <typename T, int D>
__device__ __forceinline__ void write_rows(const Problem& p, const ForwardTile& tile, int row,
                                           int c, const Softmax& softmax, const float (&o)[D / 2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float sum = softmax.sum[h];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const bool any = softmax.top[h] != -INFINITY;
        const float factor = any ? 1.0f / sum : 0.0f;
        const int query = tile.row0 + row + 8 * h;
        const bool there = query >= 0 && query < tile.queries;
        T* to = p.out.row<T>(tile.q + query, tile.head, p.head_dim);
#pragma unroll
        for (int i = 0; i < (D + 31) / 32; ++i) {
            std::uint32_t words[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int at = 4 * (4 * i + j) + 2 * h;
                words[j] = at < D / 2
                               ? pack<T>(o[at % (D / 2)] * factor, o[(at + 1) % (D / 2)] * factor)
                               : 0;
            }
            const uint4 piece = gather_quad(words, c);
            const int d = 32 * i + 8 * c;
            if (there && d < p.head_dim) *reinterpret_cast<uint4*>(to + d) = piece;
        }
        if (there && c == 0 && p.lse) {
            p.lse[static_cast<std::int64_t>(tile.head) * p.tokens_q + tile.q + query] =
                any ? (softmax.top[h] + log2f(sum)) * kLn2 : -INFINITY;
        }
    }
}

}  // namespace mr::cuda::flash::forward
