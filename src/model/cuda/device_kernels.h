// What happens to weights on the device while they are loaded: blocks become tiles, and random
// matrices are made in place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/context.h"
#include "model/cuda/device_layout.h"
#include "model/io/random.h"

namespace mr::model {

// Rows of q8_0 or q4_0 blocks, as files have them, into tiles of `type` (q8_0x8, q4_0x8), padding
// and all. from [rows, cols]: on an even address. to: the record of row 0 and column 0, on an
// address of 16; rows that follow in another call begin at a multiple of 8.
void repack_tiles(const Context& ctx, DType type, std::byte* to, const std::byte* from,
                  std::int64_t rows, std::int64_t cols);

// Rows [first, first + rows) of the device's order of a random matrix, as a file would have them:
// the bits that RandomRows::fill() gives. to: on an address of 16 where rows are whole 16 bytes.
void make_random_rows(const Context& ctx, std::byte* to, const RandomRows& matrix,
                      const RowOrder& order, std::int64_t first, std::int64_t rows);

}  // namespace mr::model
