#include "ops/linear/linear_backward.h"

#include "ops/simd/slopes.h"
#include "ops/simd/testing.h"

namespace mr::ops::linear_backward_test {
namespace {

using namespace testing;

struct Size {
    std::int64_t tokens, n, k;
};
// Partial tiles, a single element, and more than one block of depth, of columns and of rows.
constexpr Size kSizes[] = {{1, 1, 1},    {3, 5, 7},     {13, 9, 25},    {8, 12, 12},
                           {97, 50, 33}, {260, 31, 18}, {5, 300, 1000}, {600, 40, 5}};

struct Problem {
    explicit Problem(Size s)
        : size(s),
          x(Floats::normal({s.tokens, s.k}, 1)),
          dy(Floats::normal({s.tokens, s.n}, 2)),
          w(Floats::normal({s.n, s.k}, 3)),
          bias(Floats::normal({s.n}, 4)) {}
    Bench bench(int threads) const {
        return Bench(threads, linear_backward_scratch_bytes(size.tokens, size.n, size.k, threads));
    }
    Size size;
    Floats x, dy, w, bias;
};

// A sum of `length` products, fused or not, in one order, plus two terms: every partial sum is
// rounded once or twice, and none exceeds the sum of the magnitudes.
void expect_sum(float got, double want, double magnitude, std::int64_t length) {
    const double bound = (2 * static_cast<double>(length) + 4) * kRoundoff * magnitude;
    ASSERT_NEAR(got, want, bound);
}

TEST(LinearBackward, ForwardMatchesF64) {
    for_each_isa([] {
        for (const Size s : kSizes) {
            Problem p(s);
            Floats plain({s.tokens, s.n}), full({s.tokens, s.n});
            Bench bench = p.bench(2);
            linear_train(bench, plain, p.x, p.w);
            linear_train(bench, full, p.x, p.w, p.bias, p.dy);
            for (std::int64_t t = 0; t < s.tokens; ++t) {
                for (std::int64_t i = 0; i < s.n; ++i) {
                    double sum = 0, size = 0;
                    for (std::int64_t c = 0; c < s.k; ++c) {
                        const double one = double{p.x[t * s.k + c]} * p.w[i * s.k + c];
                        sum += one;
                        size += std::abs(one);
                    }
                    const std::int64_t at = t * s.n + i;
                    const double more = double{p.bias[i]} + p.dy[at];
                    expect_sum(plain[at], sum, size, s.k);
                    expect_sum(full[at], sum + more,
                               size + std::abs(p.bias[i]) + std::abs(p.dy[at]), s.k);
                    if (::testing::Test::HasFatalFailure()) return;
                }
            }
        }
    });
}

TEST(LinearBackward, GradientsMatchF64AndAreAddedTo) {
    for_each_isa([] {
        for (const Size s : kSizes) {
            Problem p(s);
            Floats dx({s.tokens, s.k}), dx_more = Floats::normal({s.tokens, s.k}, 5);
            Floats dw = Floats::normal({s.n, s.k}, 6), db = Floats::normal({s.n}, 7);
            const Floats dx_before = dx_more, dw_before = dw, db_before = db;
            Bench bench = p.bench(2);
            linear_backward_input(bench, dx, p.dy, p.w);
            linear_backward_input(bench, dx_more, p.dy, p.w, true);
            linear_backward_weight(bench, dw, db, p.dy, p.x);
            for (std::int64_t c = 0; c < s.k; ++c) {
                for (std::int64_t t = 0; t < s.tokens; ++t) {
                    double sum = 0, size = 0;
                    for (std::int64_t i = 0; i < s.n; ++i) {
                        const double one = double{p.dy[t * s.n + i]} * p.w[i * s.k + c];
                        sum += one;
                        size += std::abs(one);
                    }
                    const std::int64_t at = t * s.k + c;
                    expect_sum(dx[at], sum, size, s.n);
                    expect_sum(dx_more[at], sum + dx_before[at], size + std::abs(dx_before[at]),
                               s.n);
                }
                for (std::int64_t i = 0; i < s.n; ++i) {
                    double sum = dw_before[i * s.k + c], size = std::abs(sum);
                    for (std::int64_t t = 0; t < s.tokens; ++t) {
                        const double one = double{p.dy[t * s.n + i]} * p.x[t * s.k + c];
                        sum += one;
                        size += std::abs(one);
                    }
                    expect_sum(dw[i * s.k + c], sum, size, s.tokens);
                }
                if (::testing::Test::HasFatalFailure()) return;
            }
            for (std::int64_t i = 0; i < s.n; ++i) {
                double sum = db_before[i], size = std::abs(sum);
                for (std::int64_t t = 0; t < s.tokens; ++t) {
                    sum += double{p.dy[t * s.n + i]};
                    size += std::abs(double{p.dy[t * s.n + i]});
                }
                expect_sum(db[i], sum, size, s.tokens);
            }
        }
    });
}

// The gradients are the slopes of sum(dy * (x · wᵀ + bias)).
TEST(LinearBackward, GradientsAreTheSlopes) {
    const Size s{3, 4, 5};
    Problem p(s);
    Floats dx({s.tokens, s.k}), dw({s.n, s.k}, 0), db({s.n}, 0);
    Bench bench = p.bench(1);
    linear_backward_input(bench, dx, p.dy, p.w);
    linear_backward_weight(bench, dw, db, p.dy, p.x);
    auto x = widened(p.x.values), w = widened(p.w.values), bias = widened(p.bias.values);
    const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
    const auto loss = [&] {
        double sum = 0;
        for (std::int64_t t = 0; t < s.tokens; ++t) {
            for (std::int64_t i = 0; i < s.n; ++i) {
                double y = bias[at(i)];
                for (std::int64_t c = 0; c < s.k; ++c) y += x[at(t * s.k + c)] * w[at(i * s.k + c)];
                sum += y * p.dy[t * s.n + i];
            }
        }
        return sum;
    };
    const double bound = 20 * kRoundoff * 20;  // at most 5 terms of magnitude at most 4
    for (std::int64_t i = 0; i < dx.size(); ++i) EXPECT_NEAR(dx[i], slope(x[at(i)], loss), bound);
    for (std::int64_t i = 0; i < dw.size(); ++i) EXPECT_NEAR(dw[i], slope(w[at(i)], loss), bound);
    for (std::int64_t i = 0; i < s.n; ++i) EXPECT_NEAR(db[i], slope(bias[at(i)], loss), bound);
}

TEST(LinearBackward, ThreadsAndNeighboursChangeNoBits) {
    for_each_isa([] {
        const Size s{211, 70, 301};
        Problem p(s);
        std::vector<std::vector<float>> first;
        for (const int threads : {1, 2, 3, 7}) {
            Bench bench = p.bench(threads);
            Floats y({s.tokens, s.n}), dx({s.tokens, s.k}), dw({s.n, s.k}, 0), db({s.n}, 0);
            linear_train(bench, y, p.x, p.w, p.bias);
            linear_backward_input(bench, dx, p.dy, p.w);
            linear_backward_weight(bench, dw, db, p.dy, p.x);
            const std::vector<std::vector<float>> all{y.values, dx.values, dw.values, db.values};
            if (first.empty()) first = all;
            for (std::size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(same_bits(all[i], first[i]));
            // A single token.
            Floats y1({1, s.n}), dx1({1, s.k});
            linear_train(bench, y1, p.x.tensor().slice_rows(107, 1), p.w, p.bias);
            linear_backward_input(bench, dx1, p.dy.tensor().slice_rows(107, 1), p.w);
            EXPECT_TRUE(
                std::equal(y1.values.begin(), y1.values.end(), y.values.begin() + 107 * s.n));
            EXPECT_TRUE(
                std::equal(dx1.values.begin(), dx1.values.end(), dx.values.begin() + 107 * s.k));
        }
    });
}

// A NaN of one token stays with its token, although others share its tile.
TEST(LinearBackward, NanStaysInItsRow) {
    for_each_isa([] {
        const Size s{10, 7, 9};
        Problem p(s);
        p.dy[3 * s.n + 2] = kPoison;
        Floats dx({s.tokens, s.k}, 0);
        Bench bench = p.bench(1);
        linear_backward_input(bench, dx, p.dy, p.w);
        for (std::int64_t i = 0; i < dx.size(); ++i) {
            EXPECT_EQ(std::isnan(dx[i]), i / s.k == 3) << i;
        }
    });
}

TEST(LinearBackward, ResidualMayBeTheOutput) {
    const Size s{50, 21, 300};
    Problem p(s);
    Floats apart({s.tokens, s.n}), in_place = p.dy;
    Bench bench = p.bench(2);
    linear_train(bench, apart, p.x, p.w, p.bias, p.dy);
    linear_train(bench, in_place, p.x, p.w, p.bias, in_place);
    EXPECT_TRUE(same_bits(apart.values, in_place.values));
}

TEST(LinearBackward, LedgerAndContract) {
    const Size s{2, 3, 5};
    Problem p(s);
    Floats y({2, 3}), dx({2, 5}), dw({3, 5}, 0), db({3}, 0), wrong({5, 3});
    Bench bench = p.bench(1);
    linear_train(bench, y, p.x, p.w, p.bias);
    expect_record(bench.ledger.op(OpKind::linear), 1, 40 + 60 + 12, 24, 60);
    linear_backward_input(bench, dx, p.dy, p.w, false, OpKind::lm_head);
    expect_record(bench.ledger.op(OpKind::lm_head), 1, 24 + 60, 40, 60);
    linear_backward_weight(bench, dw, db, p.dy, p.x);
    expect_record(bench.ledger.op(OpKind::linear), 2, 112 + 24 + 40 + 60 + 12, 24 + 60 + 12, 126);
    EXPECT_THROW(linear_train(bench, y, p.x, wrong), ContractError);
    EXPECT_THROW(linear_backward_input(bench, dx, p.dy, wrong), ContractError);
    EXPECT_THROW(linear_backward_weight(bench, wrong, {}, p.dy, p.x), ContractError);
    EXPECT_THROW(linear_backward_weight(bench, dw, wrong, p.dy, p.x), ContractError);
    Bench small(1, 16);
    EXPECT_THROW(linear_backward_input(small, dx, p.dy, p.w), ContractError);
}

}  // namespace
}  // namespace mr::ops::linear_backward_test
