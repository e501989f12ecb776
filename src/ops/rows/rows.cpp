#include "ops/rows/rows.h"

#include <algorithm>

#include "ops/simd/pieces.h"

namespace mr::ops {
namespace {

// Checks the rows of `few` against the rows of `all` they correspond to.
void check_rows(const Context& ctx, const Tensor& few, const Tensor& all,
                const std::int32_t* rows) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    MR_CHECK(few.dtype == DType::f32 && all.dtype == DType::f32 && few.shape.rank == 2 &&
                 all.shape.rank == 2 && few.dim(1) == all.dim(1),
             "rows are f32 [n, dim] and [tokens, dim]");
    for (std::int64_t i = 0; i < few.dim(0); ++i) {
        MR_CHECK(rows[i] >= 0 && rows[i] < all.dim(0), "rows lie in the tensor");
    }
}

}  // namespace

void gather_rows(const Context& ctx, Tensor out, Tensor x, const std::int32_t* rows) {
    check_rows(ctx, out, x, rows);
    const LedgerEntry entry(ctx.ledger, OpKind::embedding, out.bytes(), out.bytes(), 0);
    ctx.pool->parallel_for(out.dim(0), rows_per_piece(out.dim(1)),
                           [&](std::int64_t begin, std::int64_t end, int) {
                               for (std::int64_t i = begin; i < end; ++i) {
                                   std::copy_n(x.f32(rows[i]), out.dim(1), out.f32(i));
                               }
                           });
}

void scatter_rows(const Context& ctx, Tensor out, Tensor x, const std::int32_t* rows) {
    check_rows(ctx, x, out, rows);
    const LedgerEntry entry(ctx.ledger, OpKind::embedding, x.bytes(), x.bytes(), 0);
    ctx.pool->parallel_for(x.dim(0), rows_per_piece(x.dim(1)),
                           [&](std::int64_t begin, std::int64_t end, int) {
                               for (std::int64_t i = begin; i < end; ++i) {
                                   std::copy_n(x.f32(i), x.dim(1), out.f32(rows[i]));
                               }
                           });
}

}  // namespace mr::ops
