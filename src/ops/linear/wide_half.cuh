// The internals of wide_half.cu: its shapes, and how a group of warps multiplies a granule.
#pragma once

#include "core/cuda/tma.cuh"
#include "core/cuda/wgmma.cuh"
#include "ops/linear/wide_strip.cuh"

namespace mr::cuda::small {

constexpr int kGranule = 64;               // columns
constexpr int kPieceBytes = kStrip * 128;  // a granule of a block's weights

// kEntry: the thread count that sets the register
// limit; kRegisters: per thread that multiplies.
template <int kTokensMost, int kHalves, int kStages, int kEntry_, int kRegisters_>
struct HalfShape
    : WideShape<kTokensMost, kHalves, kStages, 2 * (kPieceBytes + kTokensMost * 128), kGranule> {
    static constexpr int kEntry = kEntry_, kRegisters = kRegisters_;
    static constexpr int kInputPiece = kTokensMost * 128;
};

// TMA swizzles: 16-byte chunk `c` of row r (128 bytes) lies at c ^ r % 8. Row g of the tensor
// cores' 8 is row row_of(g) of the tile's half, so that two rows read at once lie in different
// banks.
__device__ __forceinline__ int row_of(int g) { return g >> 1 | (g & 1) << 2; }

// The position of column c of an input in its row: the tensor cores take 16 neighbours at once, and
// a lane's 16 bytes of weights are 8 columns of two such products.
__device__ __forceinline__ int ordered_column(int c) {
    const int in = c % 32;
    return c - in + in % 8 / 4 * 16 + in % 4 / 2 * 8 + in / 8 * 2 + in % 2;
}

// The distribution of sums: a warp has a tile and all tokens.
struct HalfSums {
    static __device__ __forceinline__ int warp(int tile, int) { return tile; }
    static __device__ __forceinline__ int vector(int, int chunk) { return 2 * chunk; }
    // Tokens 2 t and 2 t + 1 of the n-th 8, rows g and g + 8.
    template <int kStride>
    static __device__ __forceinline__ void put(float* stage, int n, int lane, float4 v) {
        float* at = stage + (n * 8 + lane % 4 * 2) * kStride + row_of(lane / 4);
        at[0] = v.x;
        at[kStride] = v.y;
        at[8] = v.z;
        at[kStride + 8] = v.w;
    }
};

using Weights = std::uint32_t[4][4];  // per lane and granule
// upper: address of the upper half's; lower: bytes from there to the lower half's.
__device__ __forceinline__ void load_weights(Weights& a, unsigned upper, unsigned lower) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const uint4 u = load16(upper ^ j * 64), l = load16((upper ^ j * 64) + lower);
        a[2 * j][0] = u.x, a[2 * j][1] = l.x, a[2 * j][2] = u.y, a[2 * j][3] = l.y;
        a[2 * j + 1][0] = u.z, a[2 * j + 1][1] = l.z;
        a[2 * j + 1][2] = u.w, a[2 * j + 1][3] = l.w;
    }
}
// Starts sum += a granule.
template <typename T, int kCount>
__device__ __forceinline__ void multiply_granule(float (&sum)[kCount], const Weights& a,
                                                 unsigned tokens) {
    const std::uint64_t b = rows_descriptor(tokens);
    multiply_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply<T>(sum, a[i], further(b, 32 * i), 1);
    multiply_commit();
}

}  // namespace mr::cuda::small
