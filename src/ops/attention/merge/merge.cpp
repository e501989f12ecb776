#include "ops/attention/merge/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/simd/pieces.h"

namespace mr::ops {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

void check_alike(const Context& ctx, const HeadRows& a, const HeadRows& b) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    for (const HeadRows* x : {&a, &b}) {
        MR_CHECK(x->tensor && x->tensor.dtype == DType::f32 && x->tensor.shape.rank == 3,
                 "heads are f32 [tokens, heads, head_dim]");
        MR_CHECK(x->token_stride >= x->heads() * x->head_dim(),
                 "a token's stride is no less than heads * head_dim");
    }
    MR_CHECK(a.tensor.shape == b.tensor.shape, "both parts have one shape");
}

// to = a * to + b * from; an operand with factor 0 is not read.
void blend(float* to, double a, const float* from, double b, std::int64_t n) {
    for (std::int64_t d = 0; d < n; ++d) {
        const double sum = (a > 0 ? a * double{to[d]} : 0) + (b > 0 ? b * double{from[d]} : 0);
        to[d] = static_cast<float>(sum);
    }
}

}  // namespace

void merge_attention(const Context& ctx, const HeadRows& out, Tensor lse, const HeadRows& other,
                     Tensor other_lse) {
    check_alike(ctx, out, other);
    const std::int64_t tokens = out.tokens(), heads = out.heads(), dim = out.head_dim();
    for (const Tensor* l : {&lse, &other_lse}) {
        MR_CHECK(*l && l->dtype == DType::f32 && l->shape == (Shape{heads, tokens}),
                 "the log-sum-exps are f32 [heads, tokens]");
    }
    const LedgerEntry entry(ctx.ledger, OpKind::attention, 2 * (out.tensor.bytes() + lse.bytes()),
                            out.tensor.bytes() + lse.bytes(),
                            3 * static_cast<std::uint64_t>(out.tensor.shape.count()));
    ctx.pool->parallel_for(
        tokens, rows_per_piece(4 * heads * dim), [&](std::int64_t begin, std::int64_t end, int) {
            for (std::int64_t t = begin; t < end; ++t) {
                for (std::int64_t h = 0; h < heads; ++h) {
                    const double a = lse.f32(h)[t], b = other_lse.f32(h)[t];
                    const double top = std::max(a, b);
                    const double sum =
                        top == kNone ? kNone : top + std::log1p(std::exp(std::min(a, b) - top));
                    blend(out.f32(t, h), a == kNone ? 0 : std::exp(a - sum), other.f32(t, h),
                          b == kNone ? 0 : std::exp(b - sum), dim);
                    lse.f32(h)[t] = static_cast<float>(sum);
                }
            }
        });
}

void add_heads(const Context& ctx, const HeadRows& to, const HeadRows& from) {
    check_alike(ctx, to, from);
    const std::int64_t width = to.heads() * to.head_dim();
    const std::uint64_t bytes = to.tensor.bytes();
    const LedgerEntry entry(ctx.ledger, OpKind::add, 2 * bytes, bytes, bytes / 4);
    ctx.pool->parallel_for(to.tokens(), rows_per_piece(width),
                           [&](std::int64_t begin, std::int64_t end, int) {
                               for (std::int64_t t = begin; t < end; ++t) {
                                   float* a = to.f32(t, 0);
                                   const float* b = from.f32(t, 0);
                                   for (std::int64_t i = 0; i < width; ++i) a[i] += b[i];
                               }
                           });
}

}  // namespace mr::ops
