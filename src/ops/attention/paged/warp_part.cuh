// How a single warp computes a part of 64 keys, for many.cu and
// several.cu: the layout of keys and values in shared memory, a lane's
// reads, and how the sums of four groups of 16 keys are combined.
#pragma once

#include "ops/attention/paged/products.cuh"

namespace mr::cuda::attn {

constexpr int kSubKeys = 16;                 // per group
constexpr int kSubs = kStepKeys / kSubKeys;  // groups per part

// The position of 16-byte chunk `chunk` of key or value `row` of a group in its row: swizzled, so
// that the lanes of LaneReads use different banks.
__device__ __forceinline__ int swizzled_chunk(bool value, int chunk, int row) {
    return value ? chunk ^ ((row & 1) | (row >> 2 & 3) << 1) : chunk ^ (row & 1) << 2;
}

// The addresses that a lane reads of a group. Keys: row key_of_row(g) and the one two further, of
// every 64 bytes the c-th 16, even and odd 64 bytes swapped in odd rows. Values: four 8 x 8
// matrices for ldmatrix, keys 0-7 and 8-15 of the product's K (as lanes.cuh orders them), of 16
// neighbours of head_dim each.
template <int kRowBytes>
struct LaneReads {
    unsigned keys[2], values;
    int swizzle;
    __device__ __forceinline__ LaneReads(unsigned ring, int lane) {
        const int g = lane / 4, c = lane % 4;
        const unsigned key_row = ring + key_of_row(g) * kRowBytes + c * 16;
        keys[0] = key_row + g % 2 * 64;
        keys[1] = key_row + 64 - g % 2 * 64;
        values = ring + (4 * (lane % 8 / 2) + 2 * (lane / 16) + lane % 2) * kRowBytes;
        swizzle = lane % 8 ^ (lane / 8 & 1);
    }
};

// The largest score and the sum of weights of a part, and the factor of each group's values: from
// those of the groups, for two rows.
__device__ __forceinline__ void merge_subs(const float (&top)[kSubs][2],
                                           const float (&weight)[kSubs][2], float (&most)[2],
                                           float (&total)[2], float (&factor)[kSubs][2]) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        most[e] = -INFINITY;
        total[e] = 0;
#pragma unroll
        for (int sub = 0; sub < kSubs; ++sub) most[e] = fmaxf(most[e], top[sub][e]);
        const float base = base_of(most[e]);
#pragma unroll
        for (int sub = 0; sub < kSubs; ++sub) {
            factor[sub][e] = exp2_fast(top[sub][e] - base);
            total[e] = fmaf(factor[sub][e], weight[sub][e], total[e]);
        }
    }
}

}  // namespace mr::cuda::attn
