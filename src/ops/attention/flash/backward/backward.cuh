// Shared by the kernels of the one-pass backward: their arguments, and the tiles in scratch.
#pragma once

#include "core/cuda/bulk.cuh"
#include "core/cuda/kernel.cuh"
#include "ops/attention/flash/backward/dispatch.cuh"
#include "ops/attention/flash/backward/order.h"
#include "ops/attention/flash/problem.h"

namespace mr::cuda::flash {

// A row of scratch per query and head, in tiles of `rows` rows; every sequence begins a tile.
struct BackwardArgs {
    Problem p;
    BackwardViews views;
    BackwardWorkOrder order;
    std::int64_t tiles = 0;       // tiles of rows, per head
    float* lse2 = nullptr;        // [heads, tiles, rows] lse * log2(e); +infinity: no weight
    float* delta = nullptr;       // [heads, tiles, rows] dout . out
    float* dq = nullptr;          // [heads, tiles, rows * head_dim] sums, in the order of DqTile
    unsigned* turns = nullptr;    // [heads, tiles] additions to the tile so far
    unsigned* tickets = nullptr;  // the number of tickets taken: order.h
    // The last block that adds to a tile of dq writes the sum to the tensor instead, and
    // finish_backward() only handles tiles without an addition. For blocks with whole pairs.
    bool fold = false;
    // L2 eviction policies of the inputs, of the sums of dq, and of their last read: with whole
    // pairs L2 has no room for all.
    std::uint64_t read_policy = kEvictNormal, sums_policy = kEvictNormal, end_policy = kEvictNormal;
    Stamp* stamp = nullptr;

    __device__ __forceinline__ std::int64_t tile(int head, int row_tile) const {
        return head * tiles + row_tile;
    }
};

inline constexpr int kBackwardKeys = 128;  // per tile of keys
// The kernels' head_dim; elements beyond the tensors' own head_dim count as zeros.
constexpr int backward_dim(int head_dim) {
    return head_dim <= 64 ? 64 : head_dim <= 80 ? 80 : head_dim <= 96 ? 96 : 128;
}
// Rows per tile of queries: as many as registers and shared memory have room for.
constexpr int backward_rows(int head_dim) { return head_dim <= 64 ? 128 : 64; }

// The layout of a tile of dq in scratch: that of the registers of two warp groups (wgmma.cuh), so
// that additions reorder nothing. Each has 64 rows by kWidth columns: with 128 rows the group's
// own, with 64 rows its half of the columns. float4 number n * 128 + thread of a group has columns
// 8 n and on.
template <int kDim, int kRows>
struct DqTile {
    static constexpr bool kByRows = kRows == 128;
    static constexpr int kFirstWidth = kByRows ? kDim : kDim > 64 ? 64 : 32;
    static constexpr int width(int group) {
        return group == 0 || kByRows ? kFirstWidth : kDim - kFirstWidth;
    }
    static constexpr int begin(int group) { return group * 64 * kFirstWidth; }  // in floats
    static constexpr int row(int group) { return kByRows ? 64 * group : 0; }
    static constexpr int column(int group) { return kByRows ? 0 : kFirstWidth * group; }
    static constexpr int kFloats = kRows * kDim;
};

// ctx.scratch must have the layout of Parts.
BackwardArgs backward_args(const Context& ctx, const Problem& p, const BackwardViews& views,
                           BackwardBlocks blocks);

// Writes lse2 and delta of every row, and zeros to turns and tickets.
void prepare_backward(const Context& ctx, const BackwardArgs& args);
// Computes dk, dv and the sums of dq.
void backward_on_warp_groups_bf16(const Context& ctx, const BackwardArgs& args);
void backward_on_warp_groups_f16(const Context& ctx, const BackwardArgs& args);
// Writes dq from its sums.
void finish_backward(const Context& ctx, const BackwardArgs& args);

}  // namespace mr::cuda::flash
