// The interface between linear_backward.cpp and its kernels: a product c = a · b of f32 matrices in
// tiles of as many accumulators as the registers hold. Both operands are first copied into panels,
// in the order in which a tile's loop reads them.
//
// An element of c is summed in one accumulator over the depth in order, block by block: its bits
// depend on the path and on the depth, not on its position in c.
#pragma once

#include <cstdint>

#include "ops/simd/dispatch.h"

namespace mr::ops {

// Accumulators of one tile: [rows, cols] of c. Both divide kPanelStep.
struct PackedTile {
    int rows = 0, cols = 0;
};
inline constexpr std::int64_t kPanelStep = 96;

enum class PanelSide : std::uint8_t {
    left,   // a: panels of PackedTile::rows rows
    right,  // b: panels of PackedTile::cols columns
};

// One block of the depth, for some rows of c and all columns of the packed b.
struct PackedBlock {
    const float* a = nullptr;  // panels [depth, tile rows]
    const float* b = nullptr;  // panels [depth, tile cols]
    std::int64_t depth = 0, rows = 0, cols = 0;
    float* c = nullptr;  // [rows, cols], rows c_stride apart
    std::int64_t c_stride = 0;
    const float* add = nullptr;   // like c, or none: added to the product. May be c.
    const float* bias = nullptr;  // [cols] or none: added last
};

MR_KERNEL(PackedTile, packed_tile, ())
// Copies `count` rows of a (columns of b) into whole panels, padded with zeros. Element (p, i), p
// along the depth, is from[p * stride + i], or from[i * stride + p] if `across`.
MR_KERNEL(void, packed_panels,
          (float* to, const float* from, std::int64_t stride, std::int64_t depth,
           std::int64_t count, bool across, PanelSide side))
MR_KERNEL(void, packed_block, (const PackedBlock& block))
// sums[i] += the sum of rows [0, rows) of x [rows, cols], rows `stride` apart, in a fixed order.
MR_KERNEL(void, column_sums,
          (float* sums, const float* x, std::int64_t stride, std::int64_t rows, std::int64_t cols))

}  // namespace mr::ops
