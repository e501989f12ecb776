#include "ops/rope/rope_train.h"

#include "ops/norm/norm.h"
#include "ops/norm/norm_backward.h"
#include "ops/simd/slopes.h"
#include "ops/simd/testing.h"

namespace mr::ops {
namespace {

using namespace testing;

// Queries, keys and values of one fused projection: [tokens, heads + 2 kv_heads, head_dim].
struct Fused {
    Fused(std::int64_t tokens_, std::int64_t heads_, std::int64_t kv_heads_, std::int64_t dim_,
          unsigned seed)
        : tokens(tokens_),
          heads(heads_),
          kv_heads(kv_heads_),
          dim(dim_),
          stride((heads + 2 * kv_heads) * dim),
          data(Floats::normal({tokens, stride}, seed)) {}
    HeadRows q() { return {Tensor(data.values.data(), DType::f32, {tokens, heads, dim}), stride}; }
    HeadRows k() {
        return {Tensor(data.values.data() + heads * dim, DType::f32, {tokens, kv_heads, dim}),
                stride};
    }
    // The heads of `rows` as a separate tensor, and the difference of everything else.
    Floats gathered(const HeadRows& rows) const {
        Floats out({rows.tokens(), rows.heads(), dim});
        for (std::int64_t t = 0; t < rows.tokens(); ++t) {
            std::copy_n(rows.f32(t, 0), rows.heads() * dim,
                        out.values.begin() + t * rows.heads() * dim);
        }
        return out;
    }
    std::int64_t tokens, heads, kv_heads, dim, stride;
    Floats data;
};

Floats table(std::int64_t positions, std::int64_t pairs) {
    Floats cos_sin({positions, pairs, 2});
    std::vector<std::int32_t> at;
    std::vector<double> inv_freq;
    for (std::int64_t i = 0; i < positions; ++i) at.push_back(static_cast<std::int32_t>(i));
    for (std::int64_t i = 0; i < pairs; ++i) {
        inv_freq.push_back(std::pow(0.3, static_cast<double>(i)));
    }
    Bench bench;
    rope_table(bench, cos_sin, at, inv_freq, 1.0);
    return cos_sin;
}

constexpr RopeStyle kStyles[] = {RopeStyle::half, RopeStyle::interleaved};

TEST(RopeTrain, RotatesTheHeadsOfAFusedProjectionAsRopeDoes) {
    for_each_isa([] {
        for (const RopeStyle style : kStyles) {
            for (const int threads : {1, 2, 3}) {
                Fused x(12, 4, 2, 10, 1);
                const Fused before = x;
                Floats cos_sin = table(12, 4);
                Bench bench(threads);
                Floats q = x.gathered(x.q()), k = x.gathered(x.k());
                rope(bench, q, cos_sin, style);
                rope(bench, k, cos_sin, style);
                rope_heads(bench, x.q(), cos_sin, style);
                EXPECT_TRUE(same_bits(x.gathered(x.q()).values, q.values));
                rope_heads(bench, x.k(), cos_sin, style);
                EXPECT_TRUE(same_bits(x.gathered(x.k()).values, k.values));
                for (std::int64_t t = 0; t < 12; ++t) {  // values are unchanged
                    for (std::int64_t i = 6 * 10; i < 8 * 10; ++i) {
                        EXPECT_EQ(x.data[t * x.stride + i], before.data[t * x.stride + i]);
                    }
                }
            }
        }
    });
}

TEST(RopeTrain, OneSequencesTableServesAll) {
    Fused a(12, 2, 1, 8, 1);
    Fused b = a;
    Floats one = table(4, 3), all({12, 3, 2});
    for (std::int64_t i = 0; i < all.size(); ++i) all[i] = one[i % one.size()];
    Bench bench(2);
    rope_heads(bench, a.q(), one, RopeStyle::half);
    rope_heads(bench, b.q(), all, RopeStyle::half);
    EXPECT_TRUE(same_bits(a.data.values, b.data.values));
}

// The gradient of sum(dy * rope(x)) by x.
TEST(RopeTrain, BackwardIsTheSlope) {
    for_each_isa([] {
        const std::int64_t tokens = 3, heads = 2, dim = 6, pairs = 2;
        for (const RopeStyle style : kStyles) {
            Floats x = Floats::normal({tokens, heads, dim}, 1);
            Floats dy = Floats::normal({tokens, heads, dim}, 2), dx = dy;
            Floats cos_sin = table(tokens, pairs);
            Bench bench;
            rope_heads(bench, HeadRows(dx), cos_sin, style, true);
            auto exact = widened(x.values);
            const auto loss = [&] {
                double sum = 0;
                for (std::int64_t i = 0; i < dy.size(); i += dim) {
                    std::vector<double> y(exact.begin() + i, exact.begin() + i + dim);
                    for (std::int64_t j = 0; j < pairs; ++j) {
                        const bool half = style == RopeStyle::half;
                        const auto a = static_cast<std::size_t>(half ? j : 2 * j);
                        const std::size_t b = half ? a + pairs : a + 1;
                        const std::int64_t at = (i / dim / heads * pairs + j) * 2;
                        const double c = cos_sin[at], s = cos_sin[at + 1], u = y[a], v = y[b];
                        y[a] = u * c - v * s;
                        y[b] = u * s + v * c;
                    }
                    for (std::int64_t d = 0; d < dim; ++d) {
                        sum += y[static_cast<std::size_t>(d)] * dy[i + d];
                    }
                }
                return sum;
            };
            for (std::int64_t i = 0; i < dx.size(); ++i) {
                // Two products and a sum, of size 4 at most.
                EXPECT_NEAR(dx[i], slope(exact[static_cast<std::size_t>(i)], loss),
                            4 * 4 * kRoundoff);
            }
        }
    });
}

TEST(HeadsNorm, IsTheNormOfEveryHead) {
    for_each_isa([] {
        const std::int64_t tokens = 37, heads = 3, kv_heads = 2, dim = 13;
        const float eps = 1e-6f;
        Fused x(tokens, heads, kv_heads, dim, 1), dy(tokens, heads, kv_heads, dim, 2);
        Floats w = Floats::normal({dim}, 3);
        // Reference: norm_backward(), whose own tests compare it with f64.
        Floats rows = x.gathered(x.k()), drows = dy.gathered(dy.k());
        const std::int64_t count = tokens * kv_heads;
        const Tensor flat(rows.values.data(), DType::f32, {count, dim});
        Floats out({count, dim}), dx({count, dim}), dw({dim}, 0);
        Bench plain(1, norm_backward_scratch_bytes(count, dim, 1));
        rmsnorm(plain, out, flat, w, eps);
        norm_backward(plain, {NormKind::rms,
                              eps,
                              dx,
                              {},
                              dw,
                              {},
                              Tensor(drows.values.data(), DType::f32, {count, dim}),
                              flat,
                              w});
        std::vector<float> first;
        for (const int threads : {1, 2, 3}) {
            Bench bench(threads);
            Fused y = x, d = dy;
            rmsnorm_heads(bench, y.k(), x.k(), w, eps);
            EXPECT_TRUE(same_bits(y.gathered(y.k()).values, out.values));
            EXPECT_TRUE(same_bits(y.gathered(y.q()).values, x.gathered(x.q()).values));
            Floats dweight({dim}, 0);
            rmsnorm_heads_backward(bench, d.k(), dweight, d.k(), x.k(), w, eps);
            EXPECT_TRUE(same_bits(d.gathered(d.k()).values, dx.values));
            EXPECT_TRUE(same_bits(d.gathered(d.q()).values, dy.gathered(dy.q()).values));
            if (first.empty()) first = dweight.values;
            EXPECT_TRUE(same_bits(dweight.values, first));
            for (std::int64_t i = 0; i < dim; ++i) {
                // Two orders of a sum of `count` terms below 16.
                EXPECT_NEAR(dweight[i], dw[i],
                            2 * static_cast<double>(count) * kRoundoff * 4 *
                                std::sqrt(static_cast<double>(count)));
            }
        }
    });
}

TEST(RopeTrain, LedgerAndContract) {
    Fused x(6, 2, 1, 8, 1);
    Floats cos_sin = table(6, 4), five = table(5, 4), wide = table(6, 5), w({8}, 1), dw({8}, 0);
    Bench bench;
    rope_heads(bench, x.q(), cos_sin, RopeStyle::half);
    expect_record(bench.ledger.op(OpKind::rope), 1, 6 * 2 * 8 * 4 + 6 * 4 * 2 * 4, 384, 96 * 3);
    EXPECT_THROW(rope_heads(bench, x.q(), five, RopeStyle::half), ContractError);
    EXPECT_THROW(rope_heads(bench, x.q(), wide, RopeStyle::half), ContractError);
    rmsnorm_heads(bench, x.q(), x.q(), w, 1e-6f);
    expect_record(bench.ledger.op(OpKind::norm), 1, 384 + 32, 384, 4 * 96);
    EXPECT_THROW(rmsnorm_heads(bench, x.q(), x.k(), w, 1e-6f), ContractError);
    Floats narrow({7}, 1);
    EXPECT_THROW(rmsnorm_heads_backward(bench, x.q(), narrow, x.q(), x.q(), w, 1e-6f),
                 ContractError);
}

}  // namespace
}  // namespace mr::ops
