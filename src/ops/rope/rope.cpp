#include "ops/rope/rope.h"

#include <cmath>

#include "ops/rope/rope_kernels.h"
#include "ops/simd/pieces.h"

namespace mr::ops {

void rope_table(const Context& ctx, Tensor cos_sin, std::span<const std::int32_t> positions,
                std::span<const double> inv_freq, double magnitude) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    const auto tokens = static_cast<std::int64_t>(positions.size());
    const auto pairs = static_cast<std::int64_t>(inv_freq.size());
    MR_CHECK(cos_sin.dtype == DType::f32 && cos_sin.shape == (Shape{tokens, pairs, 2}),
             "cos_sin is f32 [tokens, rotary/2, 2]");
    // Angle, cosine, sine and the two magnitudes: 5 operations per pair.
    const LedgerEntry entry(ctx.ledger, OpKind::rope,
                            positions.size_bytes() + inv_freq.size_bytes(), cos_sin.bytes(),
                            5 * static_cast<std::uint64_t>(tokens * pairs));
    float* table = cos_sin.f32();
    // A sine and a cosine take about as long as 64 elements of other ops.
    ctx.pool->parallel_for(
        tokens, rows_per_piece(64 * pairs), [&](std::int64_t begin, std::int64_t end, int) {
            for (std::int64_t t = begin; t < end; ++t) {
                const double position = positions[static_cast<std::size_t>(t)];
                float* row = table + t * pairs * 2;
                for (std::int64_t i = 0; i < pairs; ++i) {
                    const double angle = position * inv_freq[static_cast<std::size_t>(i)];
                    row[2 * i] = static_cast<float>(std::cos(angle) * magnitude);
                    row[2 * i + 1] = static_cast<float>(std::sin(angle) * magnitude);
                }
            }
        });
}

void rope(const Context& ctx, Tensor x, Tensor cos_sin, RopeStyle style) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    MR_CHECK(x.dtype == DType::f32 && x.shape.rank == 3, "x is f32 [tokens, heads, head_dim]");
    MR_CHECK(cos_sin.dtype == DType::f32 && cos_sin.shape.rank == 3 && cos_sin.dim(2) == 2 &&
                 cos_sin.dim(0) == x.dim(0),
             "cos_sin is f32 [tokens, rotary/2, 2]");
    const std::int64_t tokens = x.dim(0), heads = x.dim(1), head_dim = x.dim(2);
    const std::int64_t pairs = cos_sin.dim(1);
    MR_CHECK(2 * pairs <= head_dim, "rotary is at most head_dim");
    const auto rotated = static_cast<std::uint64_t>(tokens * heads * pairs * 2);
    const LedgerEntry entry(ctx.ledger, OpKind::rope, rotated * 4 + cos_sin.bytes(), rotated * 4,
                            rotated * 3);
    float* data = x.f32();
    const float* table = cos_sin.f32();
    const auto kernel = MR_DISPATCH(rope_token);
    ctx.pool->parallel_for(tokens, rows_per_piece(heads * pairs * 2),
                           [&](std::int64_t begin, std::int64_t end, int) {
                               for (std::int64_t t = begin; t < end; ++t) {
                                   kernel(data + t * heads * head_dim, table + t * pairs * 2, heads,
                                          head_dim, pairs, style == RopeStyle::interleaved, 1);
                               }
                           });
}

}  // namespace mr::ops
