// Expands tiled quantised weights to a floating type for the product of many tokens. Memory bound:
// one read of the quants, one write of the values.
#include "core/cuda/kernel.cuh"
#include "ops/linear/gemm_cuda.h"
#include "ops/linear/tile_layout.h"

namespace mr::cuda {
namespace {

constexpr int kGemmDequantizeWarps = 8;  // per block
constexpr int kRecordsPerWarp = 4;       // with their loads in flight together

// `count` adjacent values, stored as one
// or two words of 16 bytes (or one of 8).
template <typename T, int count>
__device__ __forceinline__ void store(T* to, const float (&values)[count]) {
    constexpr int kBytes = count * static_cast<int>(sizeof(T));
    union {
        T t[count];
        uint2 two;
        uint4 four[kBytes >= 16 ? kBytes / 16 : 1];
    } packed;
#pragma unroll
    for (int i = 0; i < count; ++i) packed.t[i] = from_f32<T>(values[i]);
    if constexpr (kBytes == 8) {
        *reinterpret_cast<uint2*>(to) = packed.two;
    } else {
#pragma unroll
        for (int i = 0; i < kBytes / 16; ++i) reinterpret_cast<uint4*>(to)[i] = packed.four[i];
    }
}

// The scales of one row of a record: 2 or 4, adjacent.
template <int count>
__device__ __forceinline__ void load_scales(float (&to)[count], const std::byte* from) {
    union {
        unsigned words[count / 2];
        uint2 two;
        __half scales[count];
    } packed;
    if constexpr (count == 2) {
        packed.words[0] = *reinterpret_cast<const unsigned*>(from);
    } else {
        packed.two = *reinterpret_cast<const uint2*>(from);
    }
#pragma unroll
    for (int i = 0; i < count; ++i) to[i] = __half2float(packed.scales[i]);
}

// One warp per record. A lane has 16 bytes: those of one row, a quarter of every block.
template <DType type, typename T>
__device__ __forceinline__ void write_record(T* out, int n, int k, int row, int first_col, int lane,
                                             uint4 quants, const float* scales) {
    if (row >= n) return;
    const int part = lane % 4;
    const unsigned words[4] = {quants.x, quants.y, quants.z, quants.w};
    T* to = out + static_cast<std::size_t>(row) * static_cast<std::size_t>(k);
    if constexpr (type == DType::q8_0x8) {
#pragma unroll
        for (int block = 0; block < 2; ++block) {
            const int col = first_col + block * 32;
            if (col >= k) break;
            float values[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const auto q = static_cast<signed char>(words[block * 2 + i / 4] >> (i % 4 * 8));
                values[i] = scales[block] * static_cast<float>(q);
            }
            store<T, 8>(to + col + part * 8, values);
        }
    } else {
#pragma unroll
        for (int block = 0; block < 4; ++block) {
            const int col = first_col + block * 32;
            if (col >= k) break;
            float low[4], high[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const unsigned byte = words[block] >> (i * 8);
                low[i] = scales[block] * static_cast<float>(static_cast<int>(byte & 15) - 8);
                high[i] = scales[block] * static_cast<float>(static_cast<int>(byte >> 4 & 15) - 8);
            }
            store<T, 4>(to + col + part * 4, low);
            store<T, 4>(to + col + 16 + part * 4, high);
        }
    }
}

template <DType type, typename T>
__global__ void __launch_bounds__(kGemmDequantizeWarps * 32)
    dequantize_tiles(T* __restrict__ out,              // [n, k]
                     const std::byte* __restrict__ w,  // records [tiles][granules]
                     int n, int k, int granules, std::int64_t records, Stamp* stamp) {
    constexpr int kBlocks = ops::tile_granule(type) / ops::kTileBlock;
    wait_for_previous();
    let_next_start();
    const StageClock clock(stamp);
    const int lane = threadIdx.x % 32, row_in_tile = lane / 4;
    const std::int64_t first =
        (std::int64_t{blockIdx.x} * kGemmDequantizeWarps + threadIdx.x / 32) * kRecordsPerWarp;
    uint4 quants[kRecordsPerWarp];
    float scales[kRecordsPerWarp][kBlocks];
#pragma unroll
    for (int r = 0; r < kRecordsPerWarp; ++r) {
        if (first + r >= records) break;
        const std::byte* record = w + (first + r) * ops::tile_record_bytes(type);
        quants[r] = *reinterpret_cast<const uint4*>(record + lane * 16);
        load_scales(scales[r], record + ops::tile_scale_in_record(type, row_in_tile, 0));
    }
#pragma unroll
    for (int r = 0; r < kRecordsPerWarp; ++r) {
        if (first + r >= records) break;
        const auto tile = static_cast<int>((first + r) / granules);
        const auto granule = static_cast<int>((first + r) % granules);
        write_record<type>(out, n, k, tile * ops::kTileRows + row_in_tile,
                           granule * ops::tile_granule(type), lane, quants[r], scales[r]);
    }
}

}  // namespace

void gemm_dequantize(const Context& ctx, Tensor to, Tensor w, OpKind kind) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(ops::is_tiled(w.dtype), "the weights are tiled");
    MR_CHECK(to.shape == w.shape && w.shape.rank == 2, "both are [n, k]");
    const std::int64_t n = w.dim(0), k = w.dim(1);
    MR_CHECK(k % ops::kTileBlock == 0, "k is whole blocks");
    MR_CHECK(reinterpret_cast<std::uintptr_t>(to.data) % 16 == 0 &&
                 reinterpret_cast<std::uintptr_t>(w.data) % 16 == 0,
             "addresses are whole 16 bytes");
    if (n == 0 || k == 0) return;
    const std::int64_t granules = ops::tile_granules(w.dtype, k);
    const std::int64_t records = (n + ops::kTileRows - 1) / ops::kTileRows * granules;
    Stamp* stamp =
        account(ctx, kind, "dequantize", {1, ops::tile_bytes(w.dtype, n, k), to.bytes(), 0, 0});
    constexpr std::int64_t kRecordsPerBlock = kGemmDequantizeWarps * kRecordsPerWarp;
    const auto blocks = static_cast<unsigned>((records + kRecordsPerBlock - 1) / kRecordsPerBlock);
    with_float_type(to.dtype, [&](auto example) {
        using T = decltype(example);
        const auto run = [&](auto kernel) {
            launch(ctx, dim3(blocks), dim3(kGemmDequantizeWarps * 32), 0, kernel,
                   static_cast<T*>(to.data), static_cast<const std::byte*>(w.data),
                   static_cast<int>(n), static_cast<int>(k), static_cast<int>(granules), records,
                   stamp);
        };
        if (w.dtype == DType::q8_0x8) {
            run(dequantize_tiles<DType::q8_0x8, T>);
        } else {
            run(dequantize_tiles<DType::q4_0x8, T>);
        }
    });
}

}  // namespace mr::cuda
