#include "ops/attention/merge/merge.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/attention/flash/reference.h"
#include "ops/simd/testing.h"

namespace mr::ops {
namespace {

using namespace testing;
using Kind = AttentionMask::Kind;

constexpr float kNone = -std::numeric_limits<float>::infinity();

TEST(MergeAttention, IsTheSumOfBothParts) {
    const std::int64_t tokens = 37, heads = 3, dim = 24, stride = heads * dim + 5;
    Floats out = Floats::normal({tokens, stride}, 1), other = Floats::normal({tokens, stride}, 2);
    Floats lse = Floats::normal({heads, tokens}, 3, 4),
           other_lse = Floats::normal({heads, tokens}, 4, 4);
    // Parts without weight, whose values are not read; equal parts; parts that dominate the other.
    lse[0] = kNone, other_lse[1] = kNone, lse[2] = other_lse[2] = kNone;
    lse[3] = other_lse[3] = 2;
    lse[4] = 1e4f, other_lse[5] = 1e4f;
    for (std::int64_t d = 0; d < dim; ++d) {
        out[d] = kPoison;
        other[stride + d] = kPoison;
    }
    const Floats before = out, lse_before = lse;
    const auto rows = [&](Floats& x) {
        return HeadRows(Tensor(x.values.data(), DType::f32, {tokens, heads, dim}), stride);
    };
    Floats out3 = out, lse3 = lse;
    Bench one(1), three(3);
    merge_attention(one, rows(out), lse, rows(other), other_lse);
    merge_attention(three, rows(out3), lse3, rows(other), other_lse);
    EXPECT_TRUE(same_bits(out.values, out3.values));
    EXPECT_TRUE(same_bits(lse.values, lse3.values));
    for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t h = 0; h < heads; ++h) {
            const double a = lse_before[h * tokens + t], b = other_lse[h * tokens + t];
            const double top = std::max(a, b);
            const double sum =
                std::isinf(top) ? top : top + std::log(std::exp(a - top) + std::exp(b - top));
            if (std::isinf(sum)) {
                EXPECT_EQ(lse[h * tokens + t], kNone);
            } else {
                EXPECT_NEAR(lse[h * tokens + t], sum, 2 * kRoundoff * std::abs(sum));
            }
            for (std::int64_t d = 0; d < dim; ++d) {
                const std::int64_t at = t * stride + h * dim + d;
                const double x = std::isinf(a) ? 0 : std::exp(a - sum) * before[at];
                const double y = std::isinf(b) ? 0 : std::exp(b - sum) * other[at];
                ASSERT_NEAR(out[at], x + y, 2 * kRoundoff * (std::abs(x) + std::abs(y)) + 1e-300)
                    << t << ' ' << h << ' ' << d;
            }
        }
        for (std::int64_t d = heads * dim; d < stride; ++d) {  // gap between tokens
            ASSERT_EQ(out[t * stride + d], before[t * stride + d]);
        }
    }
}

// Queries of an unknown block see the known blocks before it and all of their own block: two calls
// over disjoint keys, compared with one over all of them. The same for the gradients, where both
// parts get the merged result.
TEST(MergeAttention, TwoPartsAreOneAttention) {
    const int block = 4, seq = 20, heads = 4, kv = 2, dim = 16;
    const auto n = static_cast<std::int64_t>(seq);
    Floats q = Floats::normal({n, heads, dim}, 1), dout = Floats::normal({n, heads, dim}, 2);
    Floats k = Floats::normal({2 * n, kv, dim}, 3), v = Floats::normal({2 * n, kv, dim}, 4);
    const float scale = default_scale(dim);
    const auto half = [&](Floats& x, int which, std::int64_t rows) {
        return Tensor(x.values.data() + which * n * rows * dim, DType::f32, {n, rows, dim});
    };
    Bench bench(2);
    Context ctx = bench;
    std::vector<std::byte> scratch(
        std::max(flash_forward_scratch_bytes(dim, 2), flash_backward_scratch_bytes(dim, 2)));
    ctx.scratch = scratch;
    // Known keys come first in k and v, unknown ones second.
    std::vector<std::int32_t> blocks;
    for (int i = 0; i <= seq; i += block) blocks.push_back(i);
    const AttentionMask before{Kind::block_before, block}, full{Kind::full};
    Floats out({n, heads, dim}), own({n, heads, dim}), lse({heads, n}), own_lse({heads, n});
    flash_forward(ctx, out.tensor(), lse, q.tensor(), half(k, 0, kv), half(v, 0, kv), {}, before,
                  scale);
    flash_forward(ctx, own.tensor(), own_lse, q.tensor(), half(k, 1, kv), half(v, 1, kv),
                  {blocks, blocks}, full, scale);
    for (int t = 0; t < block; ++t) ASSERT_EQ(lse[t], kNone);
    merge_attention(ctx, out.tensor(), lse, own.tensor(), own_lse);
    Floats dq({n, heads, dim}), own_dq({n, heads, dim}), dk({2 * n, kv, dim}), dv({2 * n, kv, dim});
    flash_backward(ctx, {dq.tensor(), half(dk, 0, kv), half(dv, 0, kv)}, dout.tensor(), q.tensor(),
                   half(k, 0, kv), half(v, 0, kv), out.tensor(), lse, {}, before, scale);
    flash_backward(ctx, {own_dq.tensor(), half(dk, 1, kv), half(dv, 1, kv)}, dout.tensor(),
                   q.tensor(), half(k, 1, kv), half(v, 1, kv), out.tensor(), lse, {blocks, blocks},
                   full, scale);
    add_heads(ctx, dq.tensor(), own_dq.tensor());

    // In f64, block by block: its queries over all the keys they see.
    std::vector<double> want_dk(dk.values.size()), want_dv(dv.values.size());
    for (int first = 0; first < seq; first += block) {
        reference::Problem p =
            reference::random_problem(heads, kv, dim, {block}, {first + block}, full, 1);
        p.scale = scale;
        std::vector<std::int64_t> rows;
        for (int j = 0; j < first; ++j) rows.push_back(j);
        for (int j = 0; j < block; ++j) rows.push_back(n + first + j);
        const std::int64_t width = heads * dim, kv_width = kv * dim;
        for (std::int64_t i = 0; i < block * width; ++i) {
            p.q[static_cast<std::size_t>(i)] = q[first * width + i];
            p.dout[static_cast<std::size_t>(i)] = dout[first * width + i];
        }
        for (std::size_t j = 0; j < rows.size(); ++j) {
            for (std::int64_t i = 0; i < kv_width; ++i) {
                const std::size_t to =
                    j * static_cast<std::size_t>(kv_width) + static_cast<std::size_t>(i);
                p.k[to] = k[rows[j] * kv_width + i];
                p.v[to] = v[rows[j] * kv_width + i];
            }
        }
        const reference::Result r = reference::forward_backward(p);
        for (std::int64_t i = 0; i < block * width; ++i) {
            ASSERT_NEAR(out[first * width + i], r.out[static_cast<std::size_t>(i)], 1e-5);
            ASSERT_NEAR(dq[first * width + i], r.dq[static_cast<std::size_t>(i)], 2e-5);
        }
        for (std::size_t j = 0; j < rows.size(); ++j) {
            for (std::int64_t i = 0; i < kv_width; ++i) {
                const std::size_t from =
                    j * static_cast<std::size_t>(kv_width) + static_cast<std::size_t>(i);
                want_dk[static_cast<std::size_t>(rows[j] * kv_width + i)] += r.dk[from];
                want_dv[static_cast<std::size_t>(rows[j] * kv_width + i)] += r.dv[from];
            }
        }
    }
    for (std::size_t i = 0; i < want_dk.size(); ++i) {
        ASSERT_NEAR(dk.values[i], want_dk[i], 4e-5) << i;
        ASSERT_NEAR(dv.values[i], want_dv[i], 4e-5) << i;
    }
}

}  // namespace
}  // namespace mr::ops
