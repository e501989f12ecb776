// Kernels for loading weights: they repack blocks into tiles, and make random matrices in
// place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/context.h"
#include "model/cuda/device_layout.h"
#include "model/io/random.h"

namespace mr::model {

// Repacks rows of q8_0 or q4_0 blocks, in the file layout, into tiles of `type` (q8_0x8, q4_0x8),
// padding included. from [rows, cols]: 2-byte aligned. to: the record of row 0 and column 0,
// 16-byte aligned; rows of a later call begin at a multiple of 8.
void repack_tiles(const Context& ctx, DType type, std::byte* to, const std::byte* from,
                  std::int64_t rows, std::int64_t cols);

// Makes rows [first, first + rows), in the device's row order, of a random matrix in the file
// layout: the same bits as RandomRows::fill(). to: 16-byte aligned if rows are multiples of 16
// bytes.
void make_random_rows(const Context& ctx, std::byte* to, const RandomRows& matrix,
                      const RowOrder& order, std::int64_t first, std::int64_t rows);

}  // namespace mr::model
