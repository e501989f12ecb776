// The inside of tiled_half.cu: what lies where in shared memory, and which tiles and quarters a
// cluster has.
#pragma once

#include "ops/linear/wide_half.cuh"

namespace mr::cuda::small {

constexpr int kTileTokens = 128;
constexpr int kPair = 2;  // blocks of a cluster
constexpr int kTileStages = 4;
constexpr int kStageBytes = kPieceBytes + kTileTokens * 128;
constexpr int kSums = kTileTokens / 2;                   // registers of a thread
constexpr int kWaitingBytes = kSums * kMultipliers * 4;  // the sums of the first four parts
constexpr int kFinishTokens = 64;                        // whose results a warp stages at once
static_assert(kFinishTokens * kFinishStride * 4 <= kWaitingBytes / 8);
constexpr int kQuarters = kWarps / 2;
constexpr int kGroupThreads = kMultipliers / 2;
constexpr int kHandedFloats = kSums * kMultipliers;  // of a block and quarter
constexpr int kTileBytes =
    1024 + kTileStages * kStageBytes + kWaitingBytes + kTileTokens * 8 + 2 * kTileStages * 8;
static_assert(kTileBytes <= 222 * 1024);  // beside it a block that prepares inputs fits

struct TileLayout {
    unsigned ring, full, empty;
    float4* waiting;  // [8 warps][kSums / 4][32 lanes]; then a warp's results go through its part
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

// What all clusters do: first whole tiles in turn, of which those that run at the same time share
// weights; then `tail` tiles in quarters. tail is 0 where cutting gains nothing.
struct TilePlan {
    int strips, token_tiles, units, tail;
    float* handed;      // [tail][quarters - 1][blocks of a cluster][kHandedFloats]
    unsigned* arrived;  // [tail][quarters - 1][blocks of a cluster][groups]
};
// A unit is a tile of each of the cluster's blocks.
struct Piece {
    int unit, from, to;  // quarters
};
struct PieceWalk {
    const TilePlan& plan;
    int clusters, cluster, whole, unit;
    int at, end;  // quarters of the tail
    __device__ explicit PieceWalk(const TilePlan& of)
        : plan(of),
          clusters(static_cast<int>(gridDim.x) / kPair),
          cluster(static_cast<int>(blockIdx.x) / kPair),
          whole(of.units - of.tail),
          unit(cluster),
          at(of.tail * kQuarters * cluster / clusters),
          end(of.tail * kQuarters * (cluster + 1) / clusters) {}
    __device__ bool next(Piece& piece) {
        if (unit < whole) {
            piece = {unit, 0, kQuarters};
            unit += clusters;
            return true;
        }
        if (at >= end) return false;
        const int from = at % kQuarters, count = min(kQuarters - from, end - at);
        piece = {whole + at / kQuarters, from, from + count};
        at += count;
        return true;
    }
    __device__ int strip(int of) const {
        return of / plan.token_tiles * kPair + static_cast<int>(blockIdx.x) % kPair;
    }
    __device__ int first_token(int of) const { return of % plan.token_tiles * kTileTokens; }
};

// The granules of a cluster's pieces in the order in which they are multiplied.
struct GranuleWalk {
    PieceWalk pieces;
    int granules;
    Piece piece{};
    int part = 0, granule = 0;
    bool valid = false;
    __device__ GranuleWalk(const TilePlan& plan, int all) : pieces(plan), granules(all) { enter(); }
    __device__ void enter() {
        valid = false;
        while (!valid && pieces.next(piece)) {
            part = granule = 2 * piece.from;
            valid = granule < granules;
        }
    }
    __device__ void next() {
        granule += kWarps;
        if (granule < granules) return;
        granule = ++part;
        if (part == 2 * piece.to || granule >= granules) enter();
    }
    __device__ int strip() const { return pieces.strip(piece.unit); }
    __device__ int first_token() const { return pieces.first_token(piece.unit); }
};

}  // namespace mr::cuda::small
