#include "core/cuda/vec4.cuh"
#include "ops/embedding/embedding_cuda.h"
#include "ops/linear/tile_layout.h"

namespace mr::cuda {
namespace {

constexpr int kEmbeddingThreads = 256;

struct Table {
    const unsigned char* data;
    DType type;
    int rows;
    int dim;
};

__device__ __forceinline__ float half_at(const unsigned char* p) {
    return __half2float(*reinterpret_cast<const __half*>(p));
}

// Columns col .. col + 3 of a row; col is a multiple of 4, so that they share a block, and in tiles
// a 4-byte word. The type is uniform over all threads.
__device__ __forceinline__ void table_row4(const Table& t, int row, int col, float (&v)[4]) {
    const std::int64_t at = static_cast<std::int64_t>(row) * t.dim + col;
    switch (t.type) {
        case DType::f32:
            return load4(reinterpret_cast<const float*>(t.data) + at, v);
        case DType::f16:
            return load4(reinterpret_cast<const __half*>(t.data) + at, v);
        case DType::bf16:
            return load4(reinterpret_cast<const bf16*>(t.data) + at, v);
        default:
            break;
    }
    unsigned quants;  // four bytes
    float scale;
    bool eight = true;
    int shift = 0;
    if (t.type == DType::q8_0 || t.type == DType::q4_0) {  // blocks are at even addresses
        eight = t.type == DType::q8_0;
        const unsigned char* block = t.data + at / 32 * (eight ? 34 : 18);
        const int in_block = col % 32;
        const auto* pairs =
            reinterpret_cast<const unsigned short*>(block + 2 + (eight ? in_block : in_block % 16));
        quants = pairs[0] | static_cast<unsigned>(pairs[1]) << 16;
        scale = half_at(block);
        shift = in_block < 16 ? 0 : 4;
    } else {
        eight = t.type == DType::q8_0x8;
        const std::int64_t granules = ops::tile_granules(t.type, t.dim);
        quants = *reinterpret_cast<const unsigned*>(t.data +
                                                    ops::tile_quant(t.type, granules, row, col));
        scale = half_at(t.data + ops::tile_scale(t.type, granules, row, col));
        shift = ops::tile_shift(col);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int byte = static_cast<int>(quants >> (8 * i)) & 0xff;
        const int q = eight ? static_cast<signed char>(byte) : ((byte >> shift) & 15) - 8;
        v[i] = scale * static_cast<float>(q);  // exact: 11 bits times 8
    }
}

__device__ __forceinline__ float table_at(const Table& t, int row, int col) {
    const std::int64_t at = static_cast<std::int64_t>(row) * t.dim + col;
    if (t.type == DType::f32) return reinterpret_cast<const float*>(t.data)[at];
    if (t.type == DType::f16) return to_f32(reinterpret_cast<const __half*>(t.data)[at]);
    return to_f32(reinterpret_cast<const bf16*>(t.data)[at]);
}

// Block (token, part of the row): a thread has four columns, or one if dim is not a multiple of 4.
template <bool kFours>
__global__ void __launch_bounds__(kEmbeddingThreads)
    embed(float* out, Table table, Table positions, const std::int32_t* ids,
          const std::int32_t* at_positions, Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    constexpr int kEach = kFours ? 4 : 1;
    const int col = static_cast<int>(blockIdx.y * kEmbeddingThreads + threadIdx.x) * kEach;
    if (col >= table.dim) return;
    const auto token = static_cast<std::size_t>(blockIdx.x);
    const int id = ids[token];
    const int position = positions.data ? at_positions[token] : 0;
    const bool bad = id < 0 || id >= table.rows ||
                     (positions.data && (position < 0 || position >= positions.rows));
    float* to = out + token * static_cast<std::size_t>(table.dim) + col;
    float v[kEach], p[kEach] = {};
    if (bad) {
        for (float& x : v) x = __int_as_float(0x7fc00000);
    } else if constexpr (kFours) {
        table_row4(table, id, col, v);
        if (positions.data) table_row4(positions, position, col, p);
    } else {
        v[0] = table_at(table, id, col);
        if (positions.data) p[0] = table_at(positions, position, col);
    }
    if (positions.data) {
        for (int i = 0; i < kEach; ++i) v[i] = __fadd_rn(v[i], p[i]);
    }
    if constexpr (kFours) {
        store4(to, v);
    } else {
        *to = v[0];
    }
}

// Rows as `units` units of bytes: their meaning does not matter, except that all ones are NaN.
template <typename Unit>
__global__ void __launch_bounds__(kEmbeddingThreads)
    gather(Unit* out, const Unit* x, const std::int32_t* rows, int x_rows, int units,
           Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    const int unit = static_cast<int>(blockIdx.y * kEmbeddingThreads + threadIdx.x);
    if (unit >= units) return;
    const int row = rows[blockIdx.x];
    Unit value;
    if (row >= 0 && row < x_rows) {
        value = x[static_cast<std::size_t>(row) * static_cast<std::size_t>(units) + unit];
    } else {
        memset(&value, 0xff, sizeof value);
    }
    out[static_cast<std::size_t>(blockIdx.x) * static_cast<std::size_t>(units) + unit] = value;
}

Table table_of(Tensor t) {
    if (!t) return {nullptr, DType::f32, 0, 0};
    return {static_cast<const unsigned char*>(t.data), t.dtype, static_cast<int>(t.dim(0)),
            static_cast<int>(t.dim(1))};
}

void check_table(Tensor t, std::int64_t dim) {
    MR_CHECK(t.shape.rank == 2 && t.dim(1) == dim, "a table is [rows, dim]");
    switch (t.dtype) {
        case DType::f32:
        case DType::f16:
        case DType::bf16:
            return;
        case DType::q8_0:
        case DType::q4_0:
        case DType::q8_0x8:
        case DType::q4_0x8:
            MR_CHECK(dim % 32 == 0, "a row is a whole number of blocks");
            return;
        default:
            MR_CHECK(false, "a table is f32, f16, bf16, q8_0, q4_0, q8_0x8 or q4_0x8");
    }
}

unsigned blocks_for(std::int64_t work) {
    return static_cast<unsigned>((work + kEmbeddingThreads - 1) / kEmbeddingThreads);
}

}  // namespace

void embedding(const Context& ctx, Tensor out, Tensor table, Tensor positions_table,
               const ops::DeviceBatch& batch) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(table && out.dtype == DType::f32 && out.shape.rank == 2 && out.dim(0) == batch.tokens,
             "out is f32 [tokens, dim]");
    const std::int64_t dim = out.dim(1);
    check_table(table, dim);
    if (positions_table) check_table(positions_table, dim);
    MR_CHECK(batch.ids && (!positions_table || batch.positions), "the batch lies on the device");
    if (batch.tokens == 0) return;

    const auto tokens = static_cast<std::uint64_t>(batch.tokens);
    const std::uint64_t elements = tokens * static_cast<std::uint64_t>(dim);
    const std::uint64_t scaled = is_quantised(table.dtype) ? 1 : 0;
    Stamp* stamp = account(ctx, OpKind::embedding, "embedding",
                           {1, tokens * (4 + table.row_bytes() + positions_table.row_bytes()),
                            elements * 4, elements * (scaled + (positions_table ? 1 : 0)), 0});
    const bool fours =
        in_fours(table.data, dim) && in_fours(positions_table.data, dim) && in_fours(out.data, dim);
    MR_CHECK(fours || !is_quantised(table.dtype), "a quantised table is aligned to 16 bytes");
    MR_CHECK(fours || !positions_table || !is_quantised(positions_table.dtype),
             "a quantised table is aligned to 16 bytes");
    const dim3 grid(static_cast<unsigned>(tokens), blocks_for(fours ? dim / 4 : dim));
    launch(ctx, grid, dim3(kEmbeddingThreads), 0, fours ? embed<true> : embed<false>, out.f32(),
           table_of(table), table_of(positions_table), batch.ids, batch.positions, stamp);
}

void gather_rows(const Context& ctx, Tensor out, Tensor x, const std::int32_t* rows,
                 std::int64_t count) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(out && x && out.dtype == x.dtype && !is_quantised(x.dtype) && x.cols() > 0 &&
                 out.cols() == x.cols() && out.rows() == count,
             "out is [count, cols] of x's type");
    MR_CHECK(rows, "the rows lie on the device");
    if (count == 0) return;
    const std::size_t bytes = x.row_bytes();
    Stamp* stamp = account(ctx, OpKind::embedding, "gather rows",
                           {1, static_cast<std::uint64_t>(count) * (bytes + 4), out.bytes(), 0, 0});
    const auto start = [&](auto unit) {
        using Unit = decltype(unit);
        const auto units = static_cast<std::int64_t>(bytes / sizeof(Unit));
        launch(ctx, dim3(static_cast<unsigned>(count), blocks_for(units)), dim3(kEmbeddingThreads),
               0, gather<Unit>, static_cast<Unit*>(out.data), static_cast<const Unit*>(x.data),
               rows, static_cast<int>(x.rows()), static_cast<int>(units), stamp);
    };
    const auto low = reinterpret_cast<std::uintptr_t>(out.data) |
                     reinterpret_cast<std::uintptr_t>(x.data) | bytes;
    if (low % 16 == 0) {
        start(uint4{});
    } else if (low % 4 == 0) {
        start(unsigned{});
    } else {
        start(static_cast<unsigned short>(0));
    }
}

}  // namespace mr::cuda
