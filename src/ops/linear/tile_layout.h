// q8_0x8 and q4_0x8, the layouts of quantised weights on the GPU: one 16-byte load per lane gives a
// warp the operands of its tensor-core instructions.
//
// Rows in tiles of 8, columns in granules of 64 (q8_0x8) or 128 (q4_0x8); rows are padded to whole
// tiles and columns to whole granules, with zero scales (and quants that mean 0). For tile t and
// granule g there is one record, at (t * granules + g) * record_bytes:
//   512 bytes   32 lanes x 16 bytes; lane = row_in_tile * 4 + part, part = 0 .. 3
//   scales      f16 [8 rows][blocks in the granule]: 32 bytes (q8_0x8) or 64 (q4_0x8): a lane reads
//               those of its row at once
// q8_0x8: a lane's bytes 0-7 are columns part * 8 .. part * 8 + 7 of the granule's block 0 (blocks
//   of 32 columns, as in q8_0), bytes 8-15 the same of block 1.
// q4_0x8: a lane's 4-byte word b belongs to block b. Its byte i holds column part * 4 + i in the
//   low nibble and column 16 + part * 4 + i in the high one; a nibble n means n - 8, as in q4_0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/dtype.h"

namespace mr::ops {

constexpr int kTileRows = 8;
constexpr int kTileQuantBytes = 512;  // per record, before its scales
constexpr int kTileBlock = 32;        // columns that share a scale

constexpr bool is_tiled(DType type) { return type == DType::q8_0x8 || type == DType::q4_0x8; }

// Columns of a granule.
constexpr int tile_granule(DType type) { return type == DType::q8_0x8 ? 64 : 128; }
constexpr int tile_record_bytes(DType type) {
    return kTileQuantBytes + tile_granule(type) / kTileBlock * kTileRows * 2;
}
constexpr std::int64_t tile_granules(DType type, std::int64_t cols) {
    return (cols + tile_granule(type) - 1) / tile_granule(type);
}
// Bytes of a whole matrix with its padding.
constexpr std::size_t tile_bytes(DType type, std::int64_t rows, std::int64_t cols) {
    return static_cast<std::size_t>((rows + kTileRows - 1) / kTileRows * tile_granules(type, cols) *
                                    tile_record_bytes(type));
}

// The offset of the record that holds (row, col), from the matrix's first byte.
constexpr std::int64_t tile_record(DType type, std::int64_t granules, std::int64_t row,
                                   std::int64_t col) {
    return (row / kTileRows * granules + col / tile_granule(type)) * tile_record_bytes(type);
}

// Offset inside the record: `col` counts from the granule's first column, `row` from the tile's.
constexpr int tile_quant_in_record(DType type, int row, int col) {
    const int block = col / kTileBlock, at = col % kTileBlock;
    return type == DType::q8_0x8 ? (row * 4 + at / 8) * 16 + block * 8 + at % 8
                                 : (row * 4 + at % 16 / 4) * 16 + block * 4 + at % 4;
}
constexpr int tile_scale_in_record(DType type, int row, int col) {
    return kTileQuantBytes + (row * (tile_granule(type) / kTileBlock) + col / kTileBlock) * 2;
}

// Offsets of the byte with the quant of (row, col), and of its scale, in the whole matrix.
constexpr std::int64_t tile_quant(DType type, std::int64_t granules, std::int64_t row,
                                  std::int64_t col) {
    return tile_record(type, granules, row, col) +
           tile_quant_in_record(type, static_cast<int>(row % kTileRows),
                                static_cast<int>(col % tile_granule(type)));
}
constexpr std::int64_t tile_scale(DType type, std::int64_t granules, std::int64_t row,
                                  std::int64_t col) {
    return tile_record(type, granules, row, col) +
           tile_scale_in_record(type, static_cast<int>(row % kTileRows),
                                static_cast<int>(col % tile_granule(type)));
}
// The bit at which a q4_0x8 quant begins in its byte: 0 or 4.
constexpr int tile_shift(std::int64_t col) { return col % kTileBlock < 16 ? 0 : 4; }

// Packs on the host, element by element, exactly by the definition of the layout. Faster packers
// are tested against it. `from` holds rows of q8_0 or q4_0 blocks, `to` has tile_bytes(). cols is
// whole blocks.
inline void pack_tiles(DType type, const std::byte* from, std::int64_t rows, std::int64_t cols,
                       std::byte* to) {
    const bool eight = type == DType::q8_0x8;
    const std::int64_t block_bytes = eight ? 34 : 18, granules = tile_granules(type, cols);
    std::memset(to, 0, tile_bytes(type, rows, cols));
    if (!eight) {  // a nibble of 8 stands for 0
        const std::int64_t records = (rows + kTileRows - 1) / kTileRows * granules;
        for (std::int64_t r = 0; r < records; ++r) {
            std::memset(to + r * tile_record_bytes(type), 0x88, kTileQuantBytes);
        }
    }
    for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t col = 0; col < cols; ++col) {
            const std::byte* block =
                from + (row * (cols / kTileBlock) + col / kTileBlock) * block_bytes;
            const auto at = static_cast<int>(col % kTileBlock);
            std::byte* quant = to + tile_quant(type, granules, row, col);
            if (eight) {
                *quant = block[2 + at];
            } else {
                const std::byte nibble = (block[2 + at % 16] >> (at < 16 ? 0 : 4)) & std::byte{15};
                const int shift = tile_shift(col);
                *quant = (*quant & ~(std::byte{15} << shift)) | (nibble << shift);
            }
            std::memcpy(to + tile_scale(type, granules, row, col), block, 2);
        }
    }
}

}  // namespace mr::ops
