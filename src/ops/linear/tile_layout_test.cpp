#include "ops/linear/tile_layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "core/half.h"
#include "ops/quant/quant.h"

namespace mr::ops::tile_layout_test {
namespace {

struct Size {
    std::int64_t rows, cols;
};
constexpr Size kSizes[] = {{1, 32}, {8, 64}, {8, 128}, {9, 96}, {17, 320}, {3, 160}, {40, 256}};
constexpr DType kTypes[] = {DType::q8_0x8, DType::q4_0x8};

TEST(TileLayout, SizesAreThoseOfTheBlocksWhereNothingIsPadded) {
    EXPECT_EQ(tile_record_bytes(DType::q8_0x8), 544);
    EXPECT_EQ(tile_record_bytes(DType::q4_0x8), 576);
    for (DType type : kTypes) {
        EXPECT_EQ(tile_bytes(type, 16, 256), dtype_bytes(type, 16 * 256));
        EXPECT_EQ(tile_bytes(type, 9, 256), dtype_bytes(type, 16 * 256));
        EXPECT_EQ(tile_bytes(type, 16, 160),
                  dtype_bytes(type, 16 * (type == kTypes[0] ? 192 : 256)));
    }
}

// Every quant has its own bits, every (row, block) its own scale, and together they fill the
// matrix.
TEST(TileLayout, EveryElementHasAPlaceOfItsOwn) {
    for (DType type : kTypes) {
        for (const Size& size : kSizes) {
            const std::int64_t granules = tile_granules(type, size.cols);
            const std::int64_t rows = (size.rows + 7) / 8 * 8;
            const std::int64_t cols = granules * tile_granule(type);
            const auto bytes = static_cast<std::int64_t>(tile_bytes(type, size.rows, size.cols));
            std::set<std::int64_t> taken;  // bits / 4
            for (std::int64_t r = 0; r < rows; ++r) {
                for (std::int64_t c = 0; c < cols; ++c) {
                    const std::int64_t at = tile_quant(type, granules, r, c);
                    ASSERT_LT(at, bytes);
                    if (type == DType::q8_0x8) {
                        ASSERT_TRUE(taken.insert(2 * at).second);
                        ASSERT_TRUE(taken.insert(2 * at + 1).second);
                    } else {
                        ASSERT_TRUE(taken.insert(2 * at + tile_shift(c) / 4).second);
                    }
                    const std::int64_t scale = tile_scale(type, granules, r, c);
                    ASSERT_EQ(scale, tile_scale(type, granules, r, c / 32 * 32));
                    if (c % 32 != 0) continue;
                    ASSERT_EQ(scale % 2, 0);
                    for (std::int64_t i = 2 * scale; i < 2 * scale + 4; ++i) {
                        ASSERT_TRUE(taken.insert(i).second);
                    }
                }
            }
            ASSERT_EQ(static_cast<std::int64_t>(taken.size()), 2 * bytes);
            ASSERT_EQ(*taken.rbegin(), 2 * bytes - 1);
        }
    }
}

// The layout as the kernels see it: a lane's sixteen bytes.
TEST(TileLayout, ALanesBytesAreWhatTheKernelsExpect) {
    for (int row = 0; row < 8; ++row) {
        for (int part = 0; part < 4; ++part) {
            const int lane = row * 4 + part;
            for (int block = 0; block < 2; ++block) {
                for (int i = 0; i < 8; ++i) {
                    EXPECT_EQ(tile_quant_in_record(DType::q8_0x8, row, block * 32 + part * 8 + i),
                              lane * 16 + block * 8 + i);
                }
            }
            for (int block = 0; block < 4; ++block) {
                for (int i = 0; i < 4; ++i) {
                    const int low = block * 32 + part * 4 + i;
                    for (int col : {low, low + 16}) {
                        EXPECT_EQ(tile_quant_in_record(DType::q4_0x8, row, col),
                                  lane * 16 + block * 4 + i);
                        EXPECT_EQ(tile_shift(col), col == low ? 0 : 4);
                    }
                }
            }
        }
        EXPECT_EQ(tile_scale_in_record(DType::q4_0x8, row, 70), 512 + row * 8 + 2 * 2);
    }
}

TEST(TileLayout, PackedRowsReadBackAndThePaddingIsZero) {
    std::mt19937 random(3);
    std::normal_distribution<float> dist;
    for (DType type : kTypes) {
        const DType blocks = type == DType::q8_0x8 ? DType::q8_0 : DType::q4_0;
        for (const Size& size : kSizes) {
            const auto count = static_cast<std::size_t>(size.rows * size.cols);
            std::vector<float> values(count), want(count);
            for (float& v : values) v = dist(random);
            std::vector<std::byte> from(dtype_bytes(blocks, count));
            quantize(blocks, values.data(), from.data(), size.rows * size.cols);
            dequantize(blocks, from.data(), want.data(), size.rows * size.cols);
            std::vector<std::byte> tiles(tile_bytes(type, size.rows, size.cols), std::byte{0x5a});
            pack_tiles(type, from.data(), size.rows, size.cols, tiles.data());

            const std::int64_t granules = tile_granules(type, size.cols);
            for (std::int64_t r = 0; r < (size.rows + 7) / 8 * 8; ++r) {
                for (std::int64_t c = 0; c < granules * tile_granule(type); ++c) {
                    std::uint16_t bits = 0;
                    std::memcpy(&bits,
                                &tiles[static_cast<std::size_t>(tile_scale(type, granules, r, c))],
                                2);
                    const auto byte = std::to_integer<int>(
                        tiles[static_cast<std::size_t>(tile_quant(type, granules, r, c))]);
                    const int quant = type == DType::q8_0x8 ? static_cast<signed char>(byte)
                                                            : ((byte >> tile_shift(c)) & 15) - 8;
                    const float got = f16_to_f32(bits) * static_cast<float>(quant);
                    const bool inside = r < size.rows && c < size.cols;
                    ASSERT_EQ(got, inside ? want[static_cast<std::size_t>(r * size.cols + c)] : 0)
                        << dtype_name(type) << " " << r << " " << c;
                    if (!inside) {
                        ASSERT_EQ(quant, 0);
                    }
                    if (!inside && (r >= size.rows || c / 32 * 32 >= size.cols)) {
                        ASSERT_EQ(bits, 0);
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace mr::ops::tile_layout_test
