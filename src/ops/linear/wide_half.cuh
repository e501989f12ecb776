// The inside of wide_half.cu: its shapes, who a block is, how a group of warps multiplies a
// granule, and what becomes of the sums of 16 tokens and a tile.
#pragma once

#include "core/cuda/tma.cuh"
#include "core/cuda/wgmma.cuh"
#include "ops/linear/mid_linear.cuh"
#include "ops/linear/small_finish.cuh"

namespace mr::cuda::small {

constexpr int kGranule = 64;       // columns
constexpr int kMultipliers = 256;  // threads: two groups of four warps, 64 rows each
constexpr int kWideThreads = kMultipliers + 128;
constexpr int kFinishStride = 20;                     // floats from token to token
constexpr int kFinishBytes = 16 * kFinishStride * 4;  // of a warp: 16 tokens of a tile

constexpr int kRanks = 4;
constexpr int kStrip = 128;                // rows of a block
constexpr int kPieceBytes = kStrip * 128;  // a granule of them
constexpr int kMostStrips = 8192;          // of a product, twice where two blocks share weights

// kTokensMost: of a block; kHalves: 2: the blocks of a cluster have a half of the tokens each, and
// share the weights; kStages: of the ring; kEntry: threads as many as which would have all
// registers; kRegisters: of a thread that multiplies.
template <int kTokensMost_, int kHalves_, int kStages_, int kEntry_, int kRegisters_>
struct WideShape {
    static constexpr int kTokensMost = kTokensMost_, kStages = kStages_, kHalves = kHalves_;
    static constexpr int kEntry = kEntry_, kRegisters = kRegisters_;
    static constexpr int kSums = kTokensMost / 2;  // registers of a thread
    static constexpr int kInputPiece = kTokensMost * 128;
    static constexpr int kStageBytes = 2 * (kPieceBytes + kInputPiece);
    // Tokens that a rank finishes, and ranks that have such.
    static constexpr int kShare = (kTokensMost / kRanks + 15) / 16 * 16;
    static constexpr int kTakers = kTokensMost / kShare;
    static_assert(kShare * kTakers == kTokensMost);
    static constexpr int kChunks = kShare / 16;  // 16 tokens each, 8 registers, 2 vectors
    // What a block hands over, twice, since others may still read the last: float4 [takers]
    // [chunks][2][threads].
    static constexpr int kHanded = kTakers * kChunks * 2 * kMultipliers;
    static constexpr int kBytes =
        1024 + kStages * kStageBytes + 8 * kFinishBytes + kShare * 8 + 2 * kStages * 8;
    static_assert(kBytes <= 222 * 1024);  // beside it a block that prepares inputs fits
};

struct WidePlan {
    int strips;
    float4* handed;
    unsigned* arrived;     // ranks, of each strip and half
    std::uint64_t policy;  // of the weights: inputs and sums stay in L2
};

template <typename S>
struct WideLayout {
    unsigned ring, full, empty;
    float* finish;
    int2* where;
    __device__ explicit WideLayout(std::byte* base) {
        const unsigned start = shared_address(base);
        ring = (start + 1023) / 1024 * 1024;
        const int rest = static_cast<int>(ring - start) + S::kStages * S::kStageBytes;
        finish = reinterpret_cast<float*>(base + rest);
        where = reinterpret_cast<int2*>(base + rest + 8 * kFinishBytes);
        full = start + rest + 8 * kFinishBytes + S::kShare * 8;
        empty = full + S::kStages * 8;
    }
};

// Who a block is.
template <typename S>
struct WideBlock {
    int half, group, rank, groups;  // four clusters are a group
    int stages;                     // of a strip
    int first_token;                // that it finishes
    __device__ explicit WideBlock(const Params& p) {
        const int block = static_cast<int>(blockIdx.x), cluster = block / S::kHalves;
        half = block % S::kHalves;
        group = cluster / kRanks, rank = cluster % kRanks;
        groups = static_cast<int>(gridDim.x) / (S::kHalves * kRanks);
        const int granules = static_cast<int>((p.k + kGranule - 1) / kGranule);
        stages = max(granules - 2 * rank + kWarps - 1, 0) / kWarps;
        first_token = half * S::kTokensMost + rank * S::kShare;
    }
};

// A place in the ring, and how often it has come round.
template <int kStages>
struct Place {
    int slot = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void next() {
        if (++slot == kStages) slot = 0, parity ^= 1;
    }
};

// The copy engine swizzles: 16 bytes `c` of row r (128 bytes) lie at c ^ r % 8. Row g of the tensor
// cores' 8 is row row_of(g) of the tile's half, so that the two whose bytes are read at once lie in
// different banks.
__device__ __forceinline__ int row_of(int g) { return g >> 1 | (g & 1) << 2; }

using Weights = std::uint32_t[4][4];  // of a lane, a granule
// upper: where the upper half's are; lower: bytes from there to the lower half's.
__device__ __forceinline__ void load_weights(Weights& a, unsigned upper, unsigned lower) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const uint4 u = load16(upper ^ j * 64), l = load16((upper ^ j * 64) + lower);
        a[2 * j][0] = u.x, a[2 * j][1] = l.x, a[2 * j][2] = u.y, a[2 * j][3] = l.y;
        a[2 * j + 1][0] = u.z, a[2 * j + 1][1] = l.z;
        a[2 * j + 1][2] = u.w, a[2 * j + 1][3] = l.w;
    }
}
// Begins sum += a granule.
template <typename T, int kCount>
__device__ __forceinline__ void multiply_granule(float (&sum)[kCount], const Weights& a,
                                                 unsigned tokens) {
    const std::uint64_t b = rows_descriptor(tokens);
    multiply_begin();
#pragma unroll
    for (int i = 0; i < 4; ++i) multiply<T>(sum, a[i], further(b, 32 * i), 1);
    multiply_commit();
}

__device__ __forceinline__ void multipliers_meet() {
    asm volatile("bar.sync 1, %0;" ::"n"(kMultipliers) : "memory");
}

// The results of one tile and 16 tokens from `first` on, from stage [16 tokens][kStride], by a
// warp. where: of the first of them.
template <typename T, int kStride>
__device__ __forceinline__ void finish_stage(const Params& p, const int2* where, const float* stage,
                                             int tile, int first, int lane) {
    if (p.finish == Finish::qkv) {
        const int row = tile * kTileRows + 2 * (lane % 8);
        if (row >= p.n) return;
        float2 v[4], rotation[4];
        int2 place[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int token = lane / 8 + 4 * i;
            v[i] = *reinterpret_cast<const float2*>(stage + token * kStride + 2 * (lane % 8));
            place[i] = first + token < p.rows ? where[token] : int2{};
            rotation[i] = float2{};
            if (is_rotated(p, row)) rotation[i] = rotation_of(p, row, place[i].x);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int token = first + lane / 8 + 4 * i;
            if (token >= p.rows) break;
            finish_pair<T>(p, place[i], row, token, v[i].x, v[i].y, rotation[i]);
        }
    } else if (p.finish == Finish::gate) {
        const int row = tile * (kTileRows / 2) + lane % 8;
        if (row >= p.out_cols) return;
        float gate[4], up[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* at = stage + (lane / 8 + 4 * i) * kStride + lane % 8;
            gate[i] = at[0];
            up[i] = at[8];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int token = first + lane / 8 + 4 * i;
            if (token < p.rows) finish_gate<T>(p, row, token, gate[i], up[i]);
        }
    } else {
        const int row = tile * kTileRows + lane % 16;
        if (row >= p.n) return;
        float v[8], before[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int token = first + lane / 16 + 2 * i;
            v[i] = stage[(lane / 16 + 2 * i) * kStride + lane % 16];
            before[i] = 0;
            if (p.finish == Finish::add && token < p.rows) {
                before[i] = static_cast<const float*>(
                    p.out)[static_cast<std::int64_t>(token) * p.out_cols + row];
            }
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int token = first + lane / 16 + 2 * i;
            if (token >= p.rows) break;
            finish_one<T>(p, row, token, v[i], [&](const float*) { return before[i]; });
        }
    }
}

}  // namespace mr::cuda::small
