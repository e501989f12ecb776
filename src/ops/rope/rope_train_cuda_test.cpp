#include "ops/rope/rope_train_cuda.h"

#include <cmath>
#include <string>

#include "core/cuda/testing.h"
#include "core/error.h"

namespace mr::cuda {
namespace {

using ops::HeadRows;
using ops::RopeStyle;

constexpr double kBf16 = 0x1p-8;

class RopeTrainTest : public GpuTest {
  protected:
    void give_scratch() {
        const std::size_t bytes = rmsnorm_heads_scratch_bytes();
        ctx_.scratch = {memory_.array<std::byte>(bytes), bytes};
        stream_->fill(ctx_.scratch.data(), 0xff, bytes);
    }
    // `heads` heads from `first` on, of a fused projection [tokens, all, dim].
    static HeadRows part(Tensor all, std::int64_t first, std::int64_t heads) {
        const std::int64_t dim = all.dim(2);
        auto* at = static_cast<std::byte*>(all.data) + first * dim * 2;
        return {Tensor(at, DType::bf16, {all.dim(0), heads, dim}), all.dim(1) * dim};
    }
};

TEST_F(RopeTrainTest, RotatesAndRotatesBack) {
    struct Case {
        std::int64_t tokens, positions, heads, others, dim, pairs;
    };
    for (const Case& c :
         {Case{12, 4, 3, 2, 64, 32}, Case{5, 5, 1, 1, 8, 4}, Case{7, 7, 2, 3, 128, 64},
          Case{6, 3, 5, 1, 80, 10}, Case{6, 2, 4, 2, 96, 16}, Case{3, 3, 2, 0, 6, 3},
          Case{9, 3, 17, 8, 256, 128}, Case{4, 4, 2, 1, 64, 8}}) {
        for (const RopeStyle style : {RopeStyle::half, RopeStyle::interleaved}) {
            SCOPED_TRACE("dim " + std::to_string(c.dim) + " pairs " + std::to_string(c.pairs) +
                         (style == RopeStyle::half ? " half" : " interleaved"));
            memory_.reset();
            const std::int64_t all = c.heads + c.others;
            std::vector<float> xs = normal(static_cast<std::size_t>(c.tokens * all * c.dim));
            const Tensor x = upload(DType::bf16, {c.tokens, all, c.dim}, xs);
            std::vector<float> angles;
            for (std::int64_t i = 0; i < c.positions * c.pairs; ++i) {
                const double angle = 0.37 * static_cast<double>(i + 1);
                angles.push_back(static_cast<float>(1.5 * std::cos(angle)));  // with a magnitude
                angles.push_back(static_cast<float>(1.5 * std::sin(angle)));
            }
            const Tensor table = upload(DType::f32, {c.positions, c.pairs, 2}, angles);
            const HeadRows rotated = part(x, 0, c.heads);
            for (const bool backward : {false, true}) {
                rope_heads(ctx_, rotated, table, style, backward);
                const std::vector<float> got = download(x);
                for (std::int64_t t = 0; t < c.tokens; ++t) {
                    for (std::int64_t h = 0; h < all; ++h) {
                        const auto head = static_cast<std::size_t>((t * all + h) * c.dim);
                        std::vector<double> want(
                            xs.begin() + static_cast<std::ptrdiff_t>(head),
                            xs.begin() + static_cast<std::ptrdiff_t>(head) + c.dim);
                        std::vector<double> error(static_cast<std::size_t>(c.dim));
                        for (std::int64_t i = 0; h < c.heads && i < c.pairs; ++i) {
                            const auto a =
                                static_cast<std::size_t>(style == RopeStyle::half ? i : 2 * i);
                            const std::size_t b = style == RopeStyle::half
                                                      ? a + static_cast<std::size_t>(c.pairs)
                                                      : a + 1;
                            const auto at =
                                static_cast<std::size_t>(t % c.positions * c.pairs + i) * 2;
                            const double cosine = angles[at],
                                         sine = backward ? -angles[at + 1] : angles[at + 1];
                            const double was_a = want[a], was_b = want[b];
                            want[a] = was_a * cosine - was_b * sine;
                            want[b] = was_a * sine + was_b * cosine;
                            const double slack =
                                3 * 0x1p-24 * 1.5 * (std::abs(was_a) + std::abs(was_b));
                            error[a] = kBf16 * std::abs(want[a]) + slack;
                            error[b] = kBf16 * std::abs(want[b]) + slack;
                        }
                        for (std::size_t i = 0; i < want.size(); ++i) {
                            ASSERT_NEAR(got[head + i], want[i], error[i])
                                << "token " << t << " head " << h << " at " << i;
                        }
                    }
                }
                xs = got;
            }
        }
    }
}

TEST_F(RopeTrainTest, NormOfHeadsMatchesF64) {
    struct Case {
        std::int64_t tokens, heads, others, dim;
    };
    constexpr float kEps = 1e-6f;
    for (const Case& c :
         {Case{1, 1, 0, 8}, Case{5, 3, 2, 64}, Case{7, 2, 1, 128}, Case{3, 4, 1, 80},
          Case{3, 2, 1, 7}, Case{2, 3, 0, 250}, Case{4, 2, 2, 256}, Case{3001, 2, 1, 16}}) {
        for (const bool in_place : {false, true}) {
            SCOPED_TRACE("dim " + std::to_string(c.dim) + " tokens " + std::to_string(c.tokens));
            memory_.reset();
            give_scratch();
            const std::int64_t all = c.heads + c.others;
            const auto count = static_cast<std::size_t>(c.tokens * all * c.dim);
            std::vector<float> xs = normal(count), ds = normal(count),
                               ws = normal(static_cast<std::size_t>(c.dim)),
                               before = normal(static_cast<std::size_t>(c.dim));
            const Tensor x = upload(DType::bf16, {c.tokens, all, c.dim}, xs);
            const Tensor dy = upload(DType::bf16, {c.tokens, all, c.dim}, ds);
            const Tensor weight = upload(DType::f32, {c.dim}, ws);
            const Tensor dweight = upload(DType::f32, {c.dim}, before);
            const Tensor out = poisoned(DType::bf16, {c.tokens, c.heads, c.dim});
            const HeadRows from = part(x, c.others, c.heads), dys = part(dy, c.others, c.heads);
            const HeadRows dx =
                in_place ? dys : HeadRows(poisoned(DType::bf16, {c.tokens, c.heads, c.dim}));
            rmsnorm_heads(ctx_, out, from, weight, kEps);
            rmsnorm_heads_backward(ctx_, dx, dweight, dys, from, weight, kEps);
            const std::vector<float> got = download(out), got_dw = download(dweight);
            const std::vector<float> got_dx = download(in_place ? dy : dx.tensor);
            std::vector<double> want_dw(before.begin(), before.end()),
                size(static_cast<std::size_t>(c.dim), 1.0);
            const auto dim = static_cast<std::size_t>(c.dim);
            for (std::int64_t t = 0; t < c.tokens; ++t) {
                for (std::int64_t h = 0; h < c.heads; ++h) {
                    const auto head = static_cast<std::size_t>((t * all + c.others + h) * c.dim);
                    const auto compact = static_cast<std::size_t>((t * c.heads + h) * c.dim);
                    double squares = 0, sum = 0, sizes = 0;
                    for (std::size_t i = 0; i < dim; ++i) squares += std::pow(xs[head + i], 2);
                    const double rstd =
                        1 / std::sqrt(squares / static_cast<double>(dim) + double{kEps});
                    for (std::size_t i = 0; i < dim; ++i) {
                        const double v = xs[head + i] * rstd, d = ds[head + i];
                        const double each = d * double{ws[i]} * v / static_cast<double>(dim);
                        sum += each;
                        sizes += std::abs(each);
                        want_dw[i] += d * v;
                        size[i] += std::abs(d * v);
                        const double want = v * double{ws[i]};
                        ASSERT_NEAR(got[compact + i], want, (kBf16 + 0x1p-19) * std::abs(want));
                    }
                    for (std::size_t i = 0; i < dim; ++i) {
                        const double v = xs[head + i] * rstd;
                        const double g = double{ds[head + i]} * double{ws[i]};
                        const double want = rstd * (g - v * sum);
                        ASSERT_NEAR(got_dx[(in_place ? head : compact) + i], want,
                                    kBf16 * std::abs(want) +
                                        0x1p-19 * rstd * (std::abs(g) + std::abs(v) * sizes))
                            << "token " << t << " head " << h << " at " << i;
                    }
                }
            }
            for (std::size_t i = 0; i < dim; ++i) {
                ASSERT_NEAR(got_dw[i], want_dw[i], 0x1p-18 * size[i]) << i;
            }
            if (in_place) {  // the other heads are unchanged
                for (std::int64_t t = 0; t < c.tokens; ++t) {
                    const auto first = static_cast<std::size_t>(t * all * c.dim);
                    for (std::size_t i = 0; i < static_cast<std::size_t>(c.others) * dim; ++i) {
                        ASSERT_EQ(got_dx[first + i], ds[first + i]);
                    }
                }
            }
        }
    }
}

TEST_F(RopeTrainTest, BitsAndContract) {
    give_scratch();
    std::vector<float> xs = normal(4000 * 3 * 64), ds = normal(4000 * 3 * 64), ws = normal(64);
    const Tensor x = upload(DType::bf16, {4000, 3, 64}, xs);
    const Tensor dy = upload(DType::bf16, {4000, 3, 64}, ds);
    const Tensor weight = upload(DType::f32, {64}, ws);
    std::vector<std::vector<float>> got;
    for (int i = 0; i < 2; ++i) {
        std::vector<float> zeros(64);
        const Tensor dweight = upload(DType::f32, {64}, zeros);
        const Tensor dx = poisoned(DType::bf16, {4000, 3, 64});
        rmsnorm_heads_backward(ctx_, dx, dweight, dy, x, weight, 1e-6f);
        got.push_back(download(dweight));
        const std::vector<float> more = download(dx);
        got.back().insert(got.back().end(), more.begin(), more.end());
    }
    EXPECT_EQ(got[0], got[1]);
    EXPECT_THROW(rmsnorm_heads(ctx_, x, dy, poisoned(DType::f32, {32}), 1e-6f), ContractError);
    EXPECT_THROW(rope_heads(ctx_, x, poisoned(DType::f32, {4, 33, 2}), RopeStyle::half),
                 ContractError);
    EXPECT_THROW(rope_heads(ctx_, poisoned(DType::f32, {2, 2, 8}), poisoned(DType::f32, {4, 4, 2}),
                            RopeStyle::half),
                 ContractError);
}

}  // namespace
}  // namespace mr::cuda
