#include "ops/norm/norm_backward.h"

#include <algorithm>

#include "ops/norm/norm_kernels.h"
#include "ops/simd/pieces.h"

namespace mr::ops {
namespace {

// Rows are cut into parts whose sums are separate and added in order at the end. The cuts depend
// only on the number of rows.
constexpr std::int64_t kFewestRows = 16, kMostParts = 128;

std::int64_t rows_of_part(std::int64_t rows) {
    return std::max(kFewestRows, (rows + kMostParts - 1) / kMostParts);
}
// At least as many as any smaller number of rows has.
std::int64_t most_parts(std::int64_t rows) {
    return std::min(kMostParts, (rows + kFewestRows - 1) / kFewestRows);
}

}  // namespace

std::size_t norm_backward_scratch_bytes(std::int64_t max_rows, std::int64_t max_cols,
                                        int /*threads*/) {
    return static_cast<std::size_t>(2 * most_parts(max_rows) * max_cols) * sizeof(float) +
           alignof(float);
}

void norm_backward(const Context& ctx, const NormBackward& pass) {
    const Tensor &dx = pass.dx, &dy = pass.dy, &x = pass.x, &weight = pass.weight;
    const Tensor &residual = pass.residual, &dweight = pass.dweight, &dbias = pass.dbias;
    const bool centred = pass.kind == NormKind::layer;
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    for (const Tensor* one : {&dx, &dweight, &dy, &x, &weight}) {
        MR_CHECK(*one && one->dtype == DType::f32, "a norm's gradients are f32");
    }
    MR_CHECK(x.cols() > 0 && dy.shape == x.shape && dx.shape == x.shape, "dx and dy are as x");
    MR_CHECK(!residual || (residual.dtype == DType::f32 && residual.shape == x.shape),
             "the residual is as x");
    const std::int64_t rows = x.rows(), cols = x.cols();
    MR_CHECK(weight.shape.count() == cols && dweight.shape.count() == cols,
             "a norm has one weight per column");
    MR_CHECK(!dbias || (dbias.dtype == DType::f32 && dbias.shape.count() == cols),
             "a norm has one bias per column");
    MR_CHECK(ctx.scratch.size() >= norm_backward_scratch_bytes(rows, cols, ctx.pool->size()),
             "ctx.scratch has norm_backward_scratch_bytes()");
    const auto elements = static_cast<std::uint64_t>(rows * cols);
    const std::uint64_t sums = dweight.bytes() + (dbias ? dbias.bytes() : 0);
    // Statistics 2 or 4; g, h and their sums 6; dx 5, dweight 2, dbias and residual 1 each.
    const LedgerEntry entry(
        ctx.ledger, OpKind::norm, elements * (residual ? 12 : 8) + weight.bytes() + sums,
        elements * 4 + sums,
        elements * ((centred ? 17u : 15u) + (dbias ? 1u : 0u) + (residual ? 1u : 0u)));
    const std::int64_t part = rows_of_part(rows), parts = (rows + part - 1) / part;
    const auto address = reinterpret_cast<std::uintptr_t>(ctx.scratch.data());
    auto* partial = reinterpret_cast<float*>((address + alignof(float) - 1) / alignof(float) *
                                             alignof(float));  // [parts, dweight and dbias, cols]
    const auto kernel = MR_DISPATCH(norm_backward_row);
    ctx.pool->parallel_for(parts, 1, [&](std::int64_t i, std::int64_t, int) {
        float* sum = partial + i * 2 * cols;
        std::fill_n(sum, 2 * cols, 0.0f);
        for (std::int64_t r = i * part; r < std::min((i + 1) * part, rows); ++r) {
            kernel(dx.f32(r), sum, dbias ? sum + cols : nullptr, dy.f32(r), x.f32(r), weight.f32(),
                   residual ? residual.f32(r) : nullptr, cols, pass.eps, centred);
        }
    });
    ctx.pool->parallel_for(cols, rows_per_piece(parts),
                           [&](std::int64_t begin, std::int64_t end, int) {
                               for (std::int64_t i = 0; i < parts; ++i) {
                                   const float* sum = partial + i * 2 * cols;
                                   float* to = dweight.f32();
                                   for (std::int64_t c = begin; c < end; ++c) to[c] += sum[c];
                                   if (!dbias) continue;
                                   to = dbias.f32();
                                   for (std::int64_t c = begin; c < end; ++c) {
                                       to[c] += sum[cols + c];
                                   }
                               }
                           });
}

}  // namespace mr::ops
