#include "ops/embedding/embedding_backward.h"

#include "ops/simd/pieces.h"

namespace mr::ops {

void embedding_backward(const Context& ctx, Tensor dtable, Tensor dx,
                        std::span<const std::int32_t> ids) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    MR_CHECK(dtable && dtable.dtype == DType::f32 && dtable.shape.rank == 2,
             "the table's gradient is f32 [rows, dim]");
    const auto tokens = static_cast<std::int64_t>(ids.size());
    const std::int64_t rows = dtable.dim(0), dim = dtable.dim(1);
    MR_CHECK(dx && dx.dtype == DType::f32 && dx.shape == (Shape{tokens, dim}),
             "dx is f32 [tokens, dim]");
    for (std::int32_t id : ids) MR_CHECK(id >= 0 && id < rows, "ids lie in the table");
    const auto elements = static_cast<std::uint64_t>(tokens * dim);
    const LedgerEntry entry(ctx.ledger, OpKind::embedding, elements * 8 + ids.size_bytes(),
                            elements * 4, elements);
    // Threads share the columns, at least a cache line each: a row may occur more than once, and
    // its additions stay in order.
    const std::int64_t grain = (rows_per_piece(tokens) + 15) / 16 * 16;
    ctx.pool->parallel_for(dim, grain, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t t = 0; t < tokens; ++t) {
            float* __restrict to = dtable.f32(ids[static_cast<std::size_t>(t)]);
            const float* __restrict from = dx.f32(t);
            for (std::int64_t i = begin; i < end; ++i) to[i] += from[i];
        }
    });
}

}  // namespace mr::ops
