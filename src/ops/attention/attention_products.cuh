// The products of attention_stream.cu: what a warp does with its 16 keys of a step, and how a team
// of four warps makes one part of their sums. The same as in decode_parts() of
// attention_decode.cuh, in the same order, so that the bits are the same; which lane holds what is
// said there.
#pragma once

#include "ops/attention/attention_decode.cuh"

namespace mr::cuda::attn {

// Row m of the first product's A is key 4 (m / 2 % 4) + 2 (m / 8) + m % 2 of the warp's, so that
// the keys whose weights a lane gets, 2 c, 2 c + 1, 2 c + 8 and 2 c + 9, are neighbours. A lane
// loads keys key_of_row(g) and the one two further (words k[0], k[1]), and values 4 c ... 4 c + 3.
__device__ __forceinline__ int key_of_row(int g) { return 4 * (g / 2) + g % 2; }

// Lane 4 g + c has rows 2 c and 2 c + 1 of key_of_row(g) (elements 0, 1) and of the key two further
// (2, 3), as the sum of two chains: half the latency.
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

// Weights of 16 keys as the second product's B, and what the sums before them are worth now.
struct Weights {
    std::uint32_t b0, b1;
    float factor[2];
};

// What a warp has summed of a part so far, rows 2 c and 2 c + 1.
template <int D>
struct WarpSums {
    float out[D / 16][4];  // [w]: row 2 c (elements 0, 2) and 2 c + 1 (1, 3) of value_column(w, g)
    float top[2], weight[2];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int w = 0; w < D / 16; ++w) {
#pragma unroll
            for (int e = 0; e < 4; ++e) out[w][e] = 0;
        }
        top[0] = -INFINITY, top[1] = -INFINITY;
        weight[0] = 0, weight[1] = 0;
    }
    // `key`: the first of the lane's two; sees: of rows 2 c and 2 c + 1, besides the sinks.
    template <typename T>
    __device__ __forceinline__ Weights weigh(const Scores& s, int key, const KeyRange (&sees)[2],
                                             int sinks, float scale) {
        Weights weights;
        float p[4];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const bool on0 = sees[e].holds(key, sinks), on1 = sees[e].holds(key + 2, sinks);
            const float s0 = on0 ? (s.even[e] + s.odd[e]) * scale : -INFINITY;
            const float s1 = on1 ? (s.even[2 + e] + s.odd[2 + e]) * scale : -INFINITY;
            float most = fmaxf(s0, s1);
#pragma unroll
            for (int far = 4; far < 32; far *= 2) {
                most = fmaxf(most, __shfl_xor_sync(~0u, most, far));
            }
            most = fmaxf(most, top[e]);
            const float base = base_of(most);
            weights.factor[e] = exp2_fast(top[e] - base);
            top[e] = most;
            p[e] = exp2_fast(s0 - base);
            p[2 + e] = exp2_fast(s1 - base);
        }
        const std::uint32_t low = pack<T>(p[0], p[1]), high = pack<T>(p[2], p[3]);
        // The sum is of the weights as they are used, rounded.
        const float2 low2 = unpack<T>(low), high2 = unpack<T>(high);
        float sum[2] = {low2.x + high2.x, low2.y + high2.y};
#pragma unroll
        for (int e = 0; e < 2; ++e) {
#pragma unroll
            for (int far = 4; far < 32; far *= 2) {
                sum[e] += __shfl_xor_sync(~0u, sum[e], far);
            }
            weight[e] = fmaf(weight[e], weights.factor[e], sum[e]);
        }
        weights.b0 = transpose(low);
        weights.b1 = transpose(high);
        return weights;
    }
    template <typename T>
    __device__ __forceinline__ void add(const Weights& weights,
                                        const std::uint32_t (&v)[4][D / 16]) {
#pragma unroll
        for (int w = 0; w < D / 16; ++w) {
            out[w][0] *= weights.factor[0];
            out[w][1] *= weights.factor[1];
            out[w][2] *= weights.factor[0];
            out[w][3] *= weights.factor[1];
            mma<T>(out[w], __byte_perm(v[0][w], v[1][w], 0x5410),
                   __byte_perm(v[0][w], v[1][w], 0x7632), __byte_perm(v[2][w], v[3][w], 0x5410),
                   __byte_perm(v[2][w], v[3][w], 0x7632), weights.b0, weights.b1);
        }
    }
    // For merge_warps().
    __device__ __forceinline__ void put(DecodeShared<D>& shared, int warp, int g, int c,
                                        int rows) const {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int row = 2 * c + e;
            if (row >= rows) continue;
            float* to = shared.sums + (warp * kTileRows + row) * DecodeShared<D>::kStride;
#pragma unroll
            for (int w = 0; w < D / 16; ++w) {
                *reinterpret_cast<float2*>(to + value_column<D>(w, g)) = {out[w][e], out[w][2 + e]};
            }
            if (g == 0) shared.tops[warp][row] = {top[e], weight[e]};
        }
    }
};

// The warps' sums, each for the keys it had, become the part's: they go to out where there is one
// part, else to the partial results. shared.tile says which rows.
template <typename T, int D, typename Team>
__device__ __forceinline__ void merge_warps(const Args& a, int kv_head, int part, int rows,
                                            DecodeShared<D>& shared, Team team) {
    constexpr int kStride = DecodeShared<D>::kStride;
    const Tile& tile = shared.tile;
    const int parts = tile.parts(), place = tile.place(part);
    for (int index = 2 * team.thread(); index < rows * D; index += 2 * kDecodeThreads) {
        const int row = index / D, d = index % D;
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
        if (parts == 1) {
            MemoryLink{}.template store<T>(a, tile.at(a, row, kv_head, D) + d, value, total);
            continue;
        }
        const std::int64_t slot = tile.slot + static_cast<std::int64_t>(row) * a.kv_heads;
        const std::int64_t at = slot * a.max_parts + place;
        *reinterpret_cast<float2*>(a.sums + at * D + d) = value;
        if (d == 0) a.tops[at] = {most, total};
    }
}

}  // namespace mr::cuda::attn
