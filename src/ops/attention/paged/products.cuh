// The products of decode attention: a warp's 16 keys of a step, and the reduction of four warps'
// sums to one part. All decode kernels have the same bits because they share these functions:
// decode.cuh, stream.cu and ops/step/step_view.cuh use all of them, many.cu those up to the
// weights. lanes.cuh describes the register layout.
#pragma once

#include "ops/attention/paged/lanes.cuh"
#include "ops/attention/paged/mma.cuh"

namespace mr::cuda::attn {

// Lane 4 g + c has rows 2 c and 2 c + 1 of key_of_row(g) (elements 0, 1) and of the key two further
// (2, 3), as the sum of two chains, which halves the latency.
struct Scores {
    float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};
};
template <typename T, int D>
__device__ __forceinline__ Scores score(const std::uint32_t (&k)[2][D / 8],
                                        const std::uint32_t (&q)[D / 8]) {
    Scores s;
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
        mma<T>(i % 2 ? s.odd : s.even, k[0][2 * i], k[1][2 * i], k[0][2 * i + 1], k[1][2 * i + 1],
               q[2 * i], q[2 * i + 1]);
    }
    return s;
}

// The weights of 16 keys as the second product's B. `key` is the first of the lane's two keys;
// `sees` are the bounds of rows 2 c and 2 c + 1. rebase(e, most) returns the number to subtract
// from the scores of row 2 c + e, of which `most` is the largest; take(e, sum) receives the sum of
// its weights.
struct Weights {
    std::uint32_t b0, b1;
};
template <typename T, typename Rebase, typename Take>
__device__ __forceinline__ Weights weigh(const Scores& s, int key, const KeyRange (&sees)[2],
                                         float scale, Rebase&& rebase, Take&& take) {
    float p[4];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const bool on0 = sees[e].holds(key), on1 = sees[e].holds(key + 2);
        const float s0 = on0 ? (s.even[e] + s.odd[e]) * scale : -INFINITY;
        const float s1 = on1 ? (s.even[2 + e] + s.odd[2 + e]) * scale : -INFINITY;
        float most = fmaxf(s0, s1);
#pragma unroll
        for (int far = 4; far < 32; far *= 2) {
            most = fmaxf(most, __shfl_xor_sync(~0u, most, far));
        }
        const float base = rebase(e, most);
        p[e] = exp2_fast(s0 - base);
        p[2 + e] = exp2_fast(s1 - base);
    }
    const std::uint32_t low = pack<T>(p[0], p[1]), high = pack<T>(p[2], p[3]);
    // Sums the rounded weights, as the product uses them.
    const float2 low2 = unpack<T>(low), high2 = unpack<T>(high);
    float sum[2] = {low2.x + high2.x, low2.y + high2.y};
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
        for (int far = 4; far < 32; far *= 2) {
            sum[e] += __shfl_xor_sync(~0u, sum[e], far);
        }
        take(e, sum[e]);
    }
    return {transpose(low), transpose(high)};
}

// The shared memory of a team.
template <int D, typename TheTile = Tile>
struct DecodeShared {
    static constexpr int kStride = D + 2;  // floats: lanes of different rows use few common banks
    alignas(16) float sums[kDecodeWarps * kTileRows * kStride];
    float2 tops[kDecodeWarps][kTileRows];
    TheTile tile;  // read again only at the end of a part
    bool last;
};

// A warp's running softmax and sums of a part, rows 2 c and 2 c + 1.
template <int D>
struct WarpSums {
    float out[D / 16][4];  // [w]: row 2 c (elements 0, 2) and 2 c + 1 (1, 3) of value_column(w, g)
    float top[2], weight[2];
    float factor[2];  // of the sums before the last weigh()

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int w = 0; w < D / 16; ++w) {
#pragma unroll
            for (int e = 0; e < 4; ++e) out[w][e] = 0;
        }
        top[0] = -INFINITY, top[1] = -INFINITY;
        weight[0] = 0, weight[1] = 0;
    }
    // For the next 16 keys; add() then takes their values.
    template <typename T>
    __device__ __forceinline__ Weights weigh(const Scores& s, int key, const KeyRange (&sees)[2],
                                             float scale) {
        return attn::weigh<T>(
            s, key, sees, scale,
            [&](int e, float most) {
                most = fmaxf(most, top[e]);
                const float base = base_of(most);
                factor[e] = exp2_fast(top[e] - base);
                top[e] = most;
                return base;
            },
            [&](int e, float sum) { weight[e] = fmaf(weight[e], factor[e], sum); });
    }
    template <typename T>
    __device__ __forceinline__ void add(const Weights& weights,
                                        const std::uint32_t (&v)[4][D / 16]) {
#pragma unroll
        for (int w = 0; w < D / 16; ++w) {
            out[w][0] *= factor[0];
            out[w][1] *= factor[1];
            out[w][2] *= factor[0];
            out[w][3] *= factor[1];
            mma<T>(out[w], __byte_perm(v[0][w], v[1][w], 0x5410),
                   __byte_perm(v[0][w], v[1][w], 0x7632), __byte_perm(v[2][w], v[3][w], 0x5410),
                   __byte_perm(v[2][w], v[3][w], 0x7632), weights.b0, weights.b1);
        }
    }
    // For merge_warps(): writes to rows `first` and up.
    template <typename TheTile>
    __device__ __forceinline__ void put(DecodeShared<D, TheTile>& shared, int warp, int g, int c,
                                        int rows, int first = 0) const {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int row = 2 * c + e;
            if (row >= rows) continue;
            float* to = shared.sums + (warp * kTileRows + first + row) * shared.kStride;
#pragma unroll
            for (int w = 0; w < D / 16; ++w) {
                *reinterpret_cast<float2*>(to + value_column<D>(w, g)) = {out[w][e], out[w][2 + e]};
            }
            if (g == 0) shared.tops[warp][first + row] = {top[e], weight[e]};
        }
    }
};

// Columns d and d + 1 of a row: the sum over the warps, each with its own keys; and the largest
// score and the sum of weights.
struct MergedRow {
    float2 sums, top;
};
template <int D, typename TheTile>
__device__ __forceinline__ MergedRow merge_row(const DecodeShared<D, TheTile>& shared, int row,
                                               int d) {
    constexpr int kStride = DecodeShared<D, TheTile>::kStride;
    float most = -INFINITY;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) most = fmaxf(most, shared.tops[w][row].x);
    const float base = base_of(most);
    float2 value{0, 0};
    float total = 0;
#pragma unroll
    for (int w = 0; w < kDecodeWarps; ++w) {
        const float factor = exp2_fast(shared.tops[w][row].x - base);
        total = fmaf(factor, shared.tops[w][row].y, total);
        const float2 sum =
            *reinterpret_cast<const float2*>(shared.sums + (w * kTileRows + row) * kStride + d);
        value.x = fmaf(factor, sum.x, value.x);
        value.y = fmaf(factor, sum.y, value.y);
    }
    return {value, {most, total}};
}

// Adds up the warps' sums and writes them to out if there is one part, else to the partial results.
// The rows are read from shared.tile again where needed: with the part's slot in a register, heads
// of 96 spill.
template <typename T, int D, typename TheTile, typename Team, typename Link>
__device__ __forceinline__ void merge_warps(const Args& a, int kv_head, int part, int rows,
                                            DecodeShared<D, TheTile>& shared, Team team,
                                            const Link& link) {
    const TheTile& tile = shared.tile;
    const int parts = tile.parts();
    for (int index = 2 * team.thread(); index < rows * D; index += 2 * kDecodeThreads) {
        const int row = index / D, d = index % D;
        const MergedRow merged = merge_row(shared, row, d);
        if (parts == 1) {
            link.template store<T>(a, tile.at(a, row, kv_head, D) + d, merged.sums, merged.top.y);
            continue;
        }
        const std::int64_t slot = tile.slot + static_cast<std::int64_t>(row) * a.kv_heads;
        link.template store_part<D>(a, slot, tile.place(part), d, merged.sums, merged.top);
    }
}

}  // namespace mr::cuda::attn
