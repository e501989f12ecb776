// The internals of tiled_half.cu: the layout of shared memory, and which tiles and quarters a
// cluster has.
#pragma once

#include "ops/linear/tile_pieces.h"
#include "ops/linear/wide_half.cuh"

namespace mr::cuda::small {

constexpr int kTileTokens = 128;
constexpr int kPair = 2;  // blocks per cluster
constexpr int kTileStages = 4;
constexpr int kStageBytes = kPieceBytes + kTileTokens * 128;
constexpr int kSums = kTileTokens / 2;                   // registers per thread
constexpr int kWaitingBytes = kSums * kMultipliers * 4;  // the sums of the first four parts
constexpr int kFinishTokens = 64;                        // results that a warp stages at once
static_assert(kFinishTokens * kFinishStride * 4 <= kWaitingBytes / 8);
static_assert(kTileParts == kWarps);
constexpr int kGroupThreads = kMultipliers / 2;
constexpr int kHandedFloats = kSums * kMultipliers;  // per block and quarter
constexpr int kTileBytes =
    1024 + kTileStages * kStageBytes + kWaitingBytes + kTileTokens * 8 + 2 * kTileStages * 8;
static_assert(kTileBytes <= 222 * 1024);  // leaves room for a block that prepares inputs

struct TileLayout {
    unsigned ring, full, empty;
    float4* waiting;  // [8 warps][kSums / 4][32 lanes]; later a warp's results are staged there
    int2* where;
    __device__ explicit TileLayout(std::byte* base) {
        const unsigned start = shared_address(base);
        ring = (start + 1023) / 1024 * 1024;
        const int rest = static_cast<int>(ring - start) + kTileStages * kStageBytes;
        waiting = reinterpret_cast<float4*>(base + rest);
        where = reinterpret_cast<int2*>(base + rest + kWaitingBytes);
        full = start + rest + kWaitingBytes + kTileTokens * 8;
        empty = full + kTileStages * 8;
    }
};

struct TilePlan {
    TileDeal deal;
    int token_tiles;
    float* handed;      // [tail][quarters - 1][blocks of a cluster][kHandedFloats]
    unsigned* arrived;  // [tail][quarters - 1][blocks of a cluster][groups]

    // This block's pieces. Units that run at once share weights: first all tokens of two strips.
    __device__ PieceWalk pieces() const {
        return {deal, static_cast<int>(blockIdx.x) / kPair, static_cast<int>(gridDim.x) / kPair};
    }
    __device__ int strip(int unit) const {
        return unit / token_tiles * kPair + static_cast<int>(blockIdx.x) % kPair;
    }
    __device__ int first_token(int unit) const { return unit % token_tiles * kTileTokens; }
};

using HalfGranule = std::uint32_t[2][4];  // weights per lane: 32 columns
__device__ __forceinline__ void load_half(HalfGranule& a, unsigned upper, unsigned lower) {
    const uint4 u = load16(upper), l = load16(upper + lower);
    a[0][0] = u.x, a[0][1] = l.x, a[0][2] = u.y, a[0][3] = l.y;
    a[1][0] = u.z, a[1][1] = l.z, a[1][2] = u.w, a[1][3] = l.w;
}
template <typename T>
__device__ __forceinline__ void multiply_half(float (&sum)[kSums], const HalfGranule& a,
                                              std::uint64_t tokens) {
    multiply_begin();
    multiply<T>(sum, a[0], tokens, 1);
    multiply<T>(sum, a[1], further(tokens, 32), 1);
    multiply_commit();
}

}  // namespace mr::cuda::small
