#include <algorithm>

#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "model/cuda/device_kernels.h"
#include "ops/linear/tile_layout.h"

namespace mr::model {
namespace {

using ops::kTileRows;

constexpr int kWarps = 8;  // per block
constexpr int kThreads = 32 * kWarps;
constexpr std::int64_t kMostBlocks = 132 * 16;  // for kernels that loop over rows

// Quantised blocks have 34 or 18 bytes: only even addresses are guaranteed.
__device__ std::uint32_t load_word(const std::byte* at) {
    const auto* halves = reinterpret_cast<const std::uint16_t*>(at);
    return halves[0] | static_cast<std::uint32_t>(halves[1]) << 16;
}

// One warp per record: 8 rows of one granule. The granules of a tile are adjacent in the rows, so a
// block of 8 warps reads 8 runs of up to 8 granules.
template <DType kType>
__global__ void repack(std::byte* to, const std::byte* from, std::int64_t rows, int blocks,
                       int granules, int groups) {
    constexpr bool kEight = kType == DType::q8_0x8;
    constexpr int kBlockBytes = kEight ? 34 : 18;
    constexpr int kBlocks = ops::tile_granule(kType) / ops::kTileBlock;  // per granule
    cuda::wait_for_previous();
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t tile = blockIdx.x / static_cast<unsigned>(groups);
    const int granule = static_cast<int>(blockIdx.x % static_cast<unsigned>(groups)) * kWarps +
                        static_cast<int>(threadIdx.x) / 32;
    if (granule >= granules) return;
    std::byte* record = to + (tile * granules + granule) * ops::tile_record_bytes(kType);
    const auto block_at = [&](int row, int block) {
        const std::int64_t r = tile * kTileRows + row;
        const int b = granule * kBlocks + block;
        return r < rows && b < blocks ? from + (r * blocks + b) * kBlockBytes : nullptr;
    };
    const int row = lane / 4, part = lane % 4;
    std::uint32_t words[4];
    if constexpr (kEight) {
#pragma unroll
        for (int b = 0; b < 2; ++b) {
            const std::byte* block = block_at(row, b);
            words[2 * b] = block ? load_word(block + 2 + part * 8) : 0;
            words[2 * b + 1] = block ? load_word(block + 2 + part * 8 + 4) : 0;
        }
    } else {
#pragma unroll
        for (int b = 0; b < 4; ++b) {
            // Byte i of a q4_0 block has columns i and 16 + i, as the tile wants them.
            const std::byte* block = block_at(row, b);
            words[b] = block ? load_word(block + 2 + part * 4) : 0x88888888u;
        }
    }
    reinterpret_cast<uint4*>(record)[lane] = make_uint4(words[0], words[1], words[2], words[3]);
    if (lane < kBlocks * kTileRows) {  // the scales, one per lane
        const int scale_row = lane / kBlocks, scale_block = lane % kBlocks;
        const std::byte* block = block_at(scale_row, scale_block);
        *reinterpret_cast<std::uint16_t*>(
            record + ops::tile_scale_in_record(kType, scale_row, scale_block * ops::kTileBlock)) =
            block ? *reinterpret_cast<const std::uint16_t*>(block) : std::uint16_t{0};
    }
}

template <DType kType>
void launch_repack(const Context& ctx, std::byte* to, const std::byte* from, std::int64_t rows,
                   std::int64_t cols) {
    const auto granules = static_cast<int>(ops::tile_granules(kType, cols));
    const int groups = (granules + kWarps - 1) / kWarps;
    const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
    MR_CHECK(tiles * groups < (std::int64_t{1} << 31), "a chunk is one grid");
    cuda::launch(ctx, dim3(static_cast<unsigned>(tiles * groups)), dim3(kThreads), 0, repack<kType>,
                 to, from, rows, static_cast<int>(cols / ops::kTileBlock), granules, groups);
}

// The parameters of RandomRows, by value for the kernels.
struct RandomRowsArgs {
    std::uint64_t key;
    RowOrder order;
    std::int64_t first, rows;
    int cols;

    __device__ std::uint64_t state(std::int64_t row) const {
        return splitmix(key + static_cast<std::uint64_t>(order.source(first + row)));
    }
};
struct ValueTable {
    std::uint32_t values[256];
};

// Bits is the storage type of a weight: uint16_t or uint32_t. One word of random bits gives 8
// weights.
template <typename Bits>
__global__ void random_floats(Bits* to, const RandomRowsArgs what,
                              const __grid_constant__ ValueTable table) {
    __shared__ Bits values[256];
    cuda::wait_for_previous();
    for (int i = static_cast<int>(threadIdx.x); i < 256; i += kThreads) {
        values[i] = static_cast<Bits>(table.values[i]);
    }
    __syncthreads();
    const int words = (what.cols + 7) / 8;
    for (std::int64_t row = blockIdx.x; row < what.rows; row += gridDim.x) {
        const std::uint64_t state = what.state(row);
        Bits* out = to + row * what.cols;
        for (int w = static_cast<int>(threadIdx.x); w < words; w += kThreads) {
            const std::uint64_t word = splitmix(state, static_cast<std::uint64_t>(w));
            if (what.cols % 8 == 0) {
                union {
                    Bits weights[8];
                    uint4 vectors[sizeof(Bits) * 8 / sizeof(uint4)];
                } eight;
#pragma unroll
                for (int i = 0; i < 8; ++i) eight.weights[i] = values[word >> (8 * i) & 0xff];
#pragma unroll
                for (int i = 0; i < static_cast<int>(sizeof(Bits) / 2); ++i) {
                    reinterpret_cast<uint4*>(out + 8 * w)[i] = eight.vectors[i];
                }
            } else {
                for (int i = 0; i < 8 && 8 * w + i < what.cols; ++i) {
                    out[8 * w + i] = values[word >> (8 * i) & 0xff];
                }
            }
        }
    }
}

// kBlockBytes is 34 or 18: a scale and 4 or 2 words.
template <int kBlockBytes>
__global__ void random_blocks(std::byte* to, const RandomRowsArgs what, std::uint64_t odd,
                              std::uint16_t scale) {
    constexpr int kWords = (kBlockBytes - 2) / 8;
    cuda::wait_for_previous();
    const int blocks = what.cols / ops::kTileBlock;
    for (std::int64_t row = blockIdx.x; row < what.rows; row += gridDim.x) {
        const std::uint64_t state = what.state(row);
        std::byte* out = to + row * blocks * kBlockBytes;
        for (int w = static_cast<int>(threadIdx.x); w < blocks * kWords; w += kThreads) {
            const std::uint64_t word = splitmix(state, static_cast<std::uint64_t>(w)) | odd;
            auto* at = reinterpret_cast<std::uint16_t*>(out + w / kWords * kBlockBytes);
            if (w % kWords == 0) at[0] = scale;
            at += 1 + w % kWords * 4;
#pragma unroll
            for (int i = 0; i < 4; ++i) at[i] = static_cast<std::uint16_t>(word >> (16 * i));
        }
    }
}

}  // namespace

void repack_tiles(const Context& ctx, DType type, std::byte* to, const std::byte* from,
                  std::int64_t rows, std::int64_t cols) {
    MR_CHECK(ops::is_tiled(type) && cols % ops::kTileBlock == 0, "rows are whole blocks");
    MR_CHECK(reinterpret_cast<std::uintptr_t>(to) % 16 == 0 &&
                 reinterpret_cast<std::uintptr_t>(from) % 2 == 0,
             "tiles are aligned to 16 bytes, blocks to 2");
    if (rows == 0) return;
    if (type == DType::q8_0x8) {
        launch_repack<DType::q8_0x8>(ctx, to, from, rows, cols);
    } else {
        launch_repack<DType::q4_0x8>(ctx, to, from, rows, cols);
    }
}

void make_random_rows(const Context& ctx, std::byte* to, const RandomRows& matrix,
                      const RowOrder& order, std::int64_t first, std::int64_t rows) {
    if (rows == 0) return;
    const RandomRowsArgs what{matrix.key, order, first, rows, static_cast<int>(matrix.cols)};
    const dim3 grid(static_cast<unsigned>(std::min(rows, kMostBlocks)));
    const dim3 block(kThreads);
    ValueTable table{};
    std::copy(matrix.values.begin(), matrix.values.end(), table.values);
    switch (matrix.dtype) {
        case DType::f32:
            return cuda::launch(ctx, grid, block, 0, random_floats<std::uint32_t>,
                                reinterpret_cast<std::uint32_t*>(to), what, table);
        case DType::f16:
        case DType::bf16:
            return cuda::launch(ctx, grid, block, 0, random_floats<std::uint16_t>,
                                reinterpret_cast<std::uint16_t*>(to), what, table);
        case DType::q8_0:
            return cuda::launch(ctx, grid, block, 0, random_blocks<34>, to, what,
                                RandomRows::kOddBytes, matrix.scale);
        case DType::q4_0:
            return cuda::launch(ctx, grid, block, 0, random_blocks<18>, to, what, std::uint64_t{0},
                                matrix.scale);
        default:
            MR_CHECK(false, "random weights are f32, f16, bf16, q8_0 or q4_0");
    }
}

}  // namespace mr::model
