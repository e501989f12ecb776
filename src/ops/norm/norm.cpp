#include "ops/norm/norm.h"

#include "ops/norm/norm_kernels.h"
#include "ops/simd/pieces.h"

namespace mr::ops {
namespace {

void check(const Context& ctx, Tensor out, Tensor x, Tensor weight) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    MR_CHECK(out.dtype == DType::f32 && x.dtype == DType::f32 && weight.dtype == DType::f32,
             "norms work on f32");
    MR_CHECK(out.shape == x.shape && x.cols() > 0, "a norm keeps the shape");
    MR_CHECK(weight && weight.shape.count() == x.cols(), "a norm has one weight per column");
}

}  // namespace

void rmsnorm(const Context& ctx, Tensor out, Tensor x, Tensor weight, float eps) {
    check(ctx, out, x, weight);
    const auto elements = static_cast<std::uint64_t>(x.shape.count());
    // Square, add, factor, weight: 4 operations per element.
    const LedgerEntry entry(ctx.ledger, OpKind::norm, x.bytes() + weight.bytes(), out.bytes(),
                            4 * elements);
    const std::int64_t cols = x.cols();
    const auto kernel = MR_DISPATCH(rmsnorm_row);
    const float* w = weight.f32();
    ctx.pool->parallel_for(x.rows(), rows_per_piece(cols),
                           [&](std::int64_t begin, std::int64_t end, int) {
                               for (std::int64_t r = begin; r < end; ++r) {
                                   kernel(out.f32(r), x.f32(r), w, cols, eps);
                               }
                           });
}

void layernorm(const Context& ctx, Tensor out, Tensor x, Tensor weight, Tensor bias, float eps) {
    check(ctx, out, x, weight);
    MR_CHECK(!bias || (bias.dtype == DType::f32 && bias.shape.count() == x.cols()),
             "a norm has one bias per column");
    const auto elements = static_cast<std::uint64_t>(x.shape.count());
    // Mean 1, variance 3, result 3, bias 1: operations per element.
    const LedgerEntry entry(ctx.ledger, OpKind::norm,
                            x.bytes() + weight.bytes() + (bias ? bias.bytes() : 0), out.bytes(),
                            (bias ? 8 : 7) * elements);
    const std::int64_t cols = x.cols();
    const auto kernel = MR_DISPATCH(layernorm_row);
    const float* w = weight.f32();
    const float* b = bias ? bias.f32() : nullptr;
    ctx.pool->parallel_for(x.rows(), rows_per_piece(cols),
                           [&](std::int64_t begin, std::int64_t end, int) {
                               for (std::int64_t r = begin; r < end; ++r) {
                                   kernel(out.f32(r), x.f32(r), w, b, cols, eps);
                               }
                           });
}

}  // namespace mr::ops
