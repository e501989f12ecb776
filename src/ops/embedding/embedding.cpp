#include "ops/embedding/embedding.h"

#include "ops/quant/quant.h"
#include "ops/simd/pieces.h"

namespace mr::ops {

void embedding(const Context& ctx, Tensor out, Tensor table, std::span<const std::int32_t> ids,
               bool accumulate) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    const auto tokens = static_cast<std::int64_t>(ids.size());
    MR_CHECK(table.shape.rank == 2, "the table is [vocab, dim]");
    const std::int64_t vocab = table.dim(0), dim = table.dim(1);
    MR_CHECK(out.dtype == DType::f32 && out.shape == (Shape{tokens, dim}),
             "out is f32 [tokens, dim]");
    MR_CHECK(is_float(table.dtype) || table.dtype == DType::q8_0 || table.dtype == DType::q4_0,
             "the table is f32, f16, bf16, q8_0 or q4_0");
    const int block = dtype_info(table.dtype).block;
    MR_CHECK(dim % block == 0, "a row is a whole number of blocks");
    for (std::int32_t id : ids) MR_CHECK(id >= 0 && id < vocab, "ids lie in the vocabulary");

    // Each token's row is read; one multiplication per element if the type has a scale.
    const auto elements = static_cast<std::uint64_t>(tokens * dim);
    const LedgerEntry entry(
        ctx.ledger, OpKind::embedding,
        static_cast<std::uint64_t>(tokens) * table.row_bytes() + (accumulate ? elements * 4 : 0),
        elements * 4, elements * ((is_quantised(table.dtype) ? 1u : 0u) + (accumulate ? 1u : 0u)));
    ctx.pool->parallel_for(
        tokens, rows_per_piece(dim), [&](std::int64_t begin, std::int64_t end, int) {
            for (std::int64_t t = begin; t < end; ++t) {
                const std::byte* row = table.row<std::byte>(ids[static_cast<std::size_t>(t)]);
                float* to = out.f32(t);
                if (!accumulate) {
                    dequantize(table.dtype, row, to, dim);
                    continue;
                }
                constexpr std::int64_t kPart = 256;  // a multiple of every block size
                float part[kPart];
                for (std::int64_t i = 0; i < dim; i += kPart) {
                    const std::int64_t n = std::min(kPart, dim - i);
                    dequantize(table.dtype,
                               row + dtype_bytes(table.dtype, static_cast<std::size_t>(i)), part,
                               n);
                    for (std::int64_t j = 0; j < n; ++j) to[i + j] += part[j];
                }
            }
        });
}

}  // namespace mr::ops
