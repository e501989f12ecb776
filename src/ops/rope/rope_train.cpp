#include "ops/rope/rope_train.h"

#include <algorithm>

#include "ops/norm/norm_kernels.h"
#include "ops/rope/rope_kernels.h"
#include "ops/simd/pieces.h"

namespace mr::ops {
namespace {

void check_heads(const Context& ctx, const HeadRows& x) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    MR_CHECK(x.tensor && x.tensor.dtype == DType::f32 && x.tensor.shape.rank == 3,
             "heads are f32 [tokens, heads, head_dim]");
    MR_CHECK(x.head_dim() > 0 && x.token_stride >= x.heads() * x.head_dim(),
             "a token's stride is no less than heads * head_dim");
}

void check_norm(const Context& ctx, const HeadRows& a, const HeadRows& b, const Tensor& weight) {
    check_heads(ctx, a);
    check_heads(ctx, b);
    MR_CHECK(a.tensor.shape == b.tensor.shape, "a norm keeps the shape");
    MR_CHECK(weight && weight.dtype == DType::f32 && weight.shape.count() == a.head_dim(),
             "the heads' norm has one weight per element of a head");
}

}  // namespace

void rope_heads(const Context& ctx, const HeadRows& x, Tensor cos_sin, RopeStyle style,
                bool backward) {
    check_heads(ctx, x);
    MR_CHECK(
        cos_sin && cos_sin.dtype == DType::f32 && cos_sin.shape.rank == 3 && cos_sin.dim(2) == 2,
        "cos_sin is f32 [positions, rotary/2, 2]");
    const std::int64_t tokens = x.tokens(), heads = x.heads(), pairs = cos_sin.dim(1);
    const std::int64_t positions = cos_sin.dim(0);
    MR_CHECK(tokens == 0 || (positions > 0 && tokens % positions == 0),
             "tokens are whole sequences of cos_sin's positions");
    MR_CHECK(2 * pairs <= x.head_dim(), "rotary is at most head_dim");
    const auto rotated = static_cast<std::uint64_t>(tokens * heads * pairs * 2);
    const LedgerEntry entry(ctx.ledger, OpKind::rope, rotated * 4 + cos_sin.bytes(), rotated * 4,
                            rotated * 3);
    const auto kernel = MR_DISPATCH(rope_token);
    ctx.pool->parallel_for(
        tokens, rows_per_piece(heads * pairs * 2), [&](std::int64_t begin, std::int64_t end, int) {
            for (std::int64_t t = begin; t < end; ++t) {
                kernel(x.f32(t, 0), cos_sin.f32() + t % positions * pairs * 2, heads, x.head_dim(),
                       pairs, style == RopeStyle::interleaved, backward ? -1.0f : 1.0f);
            }
        });
}

void rmsnorm_heads(const Context& ctx, const HeadRows& out, const HeadRows& x, Tensor weight,
                   float eps) {
    check_norm(ctx, out, x, weight);
    const LedgerEntry entry(ctx.ledger, OpKind::norm, x.tensor.bytes() + weight.bytes(),
                            x.tensor.bytes(),
                            4 * static_cast<std::uint64_t>(x.tensor.shape.count()));
    const auto kernel = MR_DISPATCH(rmsnorm_row);
    ctx.pool->parallel_for(x.tokens(), rows_per_piece(x.heads() * x.head_dim()),
                           [&](std::int64_t begin, std::int64_t end, int) {
                               for (std::int64_t t = begin; t < end; ++t) {
                                   for (std::int64_t h = 0; h < x.heads(); ++h) {
                                       kernel(out.f32(t, h), x.f32(t, h), weight.f32(),
                                              x.head_dim(), eps);
                                   }
                               }
                           });
}

void rmsnorm_heads_backward(const Context& ctx, const HeadRows& dx, Tensor dweight,
                            const HeadRows& dy, const HeadRows& x, Tensor weight, float eps) {
    check_norm(ctx, dx, dy, weight);
    check_norm(ctx, dx, x, dweight);
    const std::int64_t dim = x.head_dim(), tokens = x.tokens();
    MR_CHECK(dim <= kFlashMaxDim, "head_dim is at most 256");
    const auto elements = static_cast<std::uint64_t>(x.tensor.shape.count());
    const LedgerEntry entry(ctx.ledger, OpKind::norm, elements * 8 + 2 * weight.bytes(),
                            elements * 4 + dweight.bytes(), elements * 15);
    // Partial sums over the tokens, cut by their number alone, added in order at the end.
    constexpr std::int64_t kParts = 32;
    float partial[kParts * kFlashMaxDim];
    const std::int64_t part = (tokens + kParts - 1) / kParts;
    const auto kernel = MR_DISPATCH(norm_backward_row);
    ctx.pool->parallel_for(kParts, 1, [&](std::int64_t i, std::int64_t, int) {
        float* sum = partial + i * dim;
        std::fill_n(sum, dim, 0.0f);
        for (std::int64_t t = i * part; t < std::min((i + 1) * part, tokens); ++t) {
            for (std::int64_t h = 0; h < x.heads(); ++h) {
                kernel(dx.f32(t, h), sum, nullptr, dy.f32(t, h), x.f32(t, h), weight.f32(), nullptr,
                       dim, eps, false);
            }
        }
    });
    float* to = dweight.f32();
    for (std::int64_t i = 0; i < kParts; ++i) {
        for (std::int64_t d = 0; d < dim; ++d) to[d] += partial[i * dim + d];
    }
}

}  // namespace mr::ops
