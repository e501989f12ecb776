#include "ops/norm/norm_backward.h"

#include "ops/simd/slopes.h"
#include "ops/simd/testing.h"

namespace mr::ops::norm_backward_test {
namespace {

using namespace testing;

constexpr float kEps = 1e-5f;
constexpr NormKind kKinds[] = {NormKind::rms, NormKind::layer};

struct Problem {
    Problem(NormKind kind_, std::int64_t rows_, std::int64_t cols_, float mean = 0)
        : kind(kind_),
          rows(rows_),
          cols(cols_),
          x(Floats::normal({rows, cols}, 1, 1, mean)),
          dy(Floats::normal({rows, cols}, 2)),
          w(Floats::normal({cols}, 3)) {}

    // dx, dweight, dbias; the last two start from `start`.
    struct Result {
        Floats dx, dw, db;
    };
    Result run(int threads, Tensor residual, float start) {
        Bench bench(threads, norm_backward_scratch_bytes(rows, cols, threads));
        Result out{Floats({rows, cols}), Floats({cols}, start), Floats({cols}, start)};
        norm_backward(bench, {kind, kEps, out.dx, residual, out.dw,
                              kind == NormKind::layer ? out.db.tensor() : Tensor{}, dy, x, w});
        return out;
    }

    NormKind kind;
    std::int64_t rows, cols;
    Floats x, dy, w;
};

// The norm in f64 of one row.
struct Exact {
    Exact(NormKind kind, const double* x, std::int64_t n) : h(x, x + n) {
        const auto count = static_cast<double>(n);
        if (kind == NormKind::layer) {
            double mean = 0;
            for (double v : h) mean += v / count;
            for (double& v : h) v -= mean;
        }
        double squares = 0;
        for (double v : h) squares += v * v;
        factor = 1 / std::sqrt(squares / count + double{kEps});
        for (double& v : h) v *= factor;
    }
    std::vector<double> h;  // (x - mean) / std
    double factor = 0;
};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

TEST(NormBackward, GradientsAreTheSlopes) {
    for_each_isa([] {
        for (const NormKind kind : kKinds) {
            for (const std::int64_t cols : {2, 5, 19}) {
                Problem p(kind, 3, cols);
                const Problem::Result got = p.run(1, {}, 0);
                auto x = widened(p.x.values), w = widened(p.w.values);
                std::vector<double> bias(at(cols), 0.0);
                const auto loss = [&] {
                    double sum = 0;
                    for (std::int64_t r = 0; r < p.rows; ++r) {
                        const Exact exact(kind, &x[at(r * cols)], cols);
                        for (std::int64_t i = 0; i < cols; ++i) {
                            sum += (exact.h[at(i)] * w[at(i)] + bias[at(i)]) * p.dy[r * cols + i];
                        }
                    }
                    return sum;
                };
                for (std::int64_t r = 0; r < p.rows; ++r) {
                    // Two columns may be close together; then 1 / std is large and the curve sharp.
                    const double factor = Exact(kind, &x[at(r * cols)], cols).factor;
                    const double step = std::min(1e-3, 1e-2 / factor);
                    for (std::int64_t i = 0; i < cols; ++i) {
                        const double want = slope(x[at(r * cols + i)], loss, step);
                        EXPECT_NEAR(got.dx[r * cols + i], want, 200 * kRoundoff * (1 + factor * 10))
                            << cols;
                    }
                }
                for (std::int64_t i = 0; i < cols; ++i) {
                    EXPECT_NEAR(got.dw[i], slope(w[at(i)], loss), 200 * kRoundoff);
                    if (kind == NormKind::rms) continue;
                    EXPECT_NEAR(got.db[i], slope(bias[at(i)], loss), 100 * kRoundoff);
                }
            }
        }
    });
}

TEST(NormBackward, MatchesF64AndAddsUp) {
    for_each_isa([] {
        for (const NormKind kind : kKinds) {
            for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{1, 1},
                                             {17, 33},
                                             {50, 64},
                                             {2100, 7},
                                             {3, 1025}}) {
                Problem p(kind, rows, cols, 0.5f);
                Floats residual = Floats::normal({rows, cols}, 4);
                const Problem::Result got = p.run(2, residual, 0.25f);
                const auto x = widened(p.x.values);
                const auto n = static_cast<double>(cols);
                std::vector<double> dw(at(cols), 0.25), dw_size(at(cols), 0.25);
                std::vector<double> db = dw, db_size = dw;
                // Statistics err by (n / 4 + 6) roundoffs of the mean magnitude, and results
                // derived from them by a few roundoffs more.
                const double relative = (n / 4 + 24) * kRoundoff;
                for (std::int64_t r = 0; r < rows; ++r) {
                    const Exact exact(kind, &x[at(r * cols)], cols);
                    double g_mean = 0, gh_mean = 0, g_size = 0, gh_size = 0, x_size = 0;
                    for (std::int64_t i = 0; i < cols; ++i) {
                        const double g = double{p.dy[r * cols + i]} * p.w[i];
                        g_mean += g / n;
                        gh_mean += g * exact.h[at(i)] / n;
                        g_size += std::abs(g) / n;
                        gh_size += std::abs(g * exact.h[at(i)]) / n;
                        x_size += std::abs(x[at(r * cols + i)]) / n;
                    }
                    if (kind == NormKind::rms) g_mean = g_size = x_size = 0;
                    for (std::int64_t i = 0; i < cols; ++i) {
                        const std::int64_t e = r * cols + i;
                        const double h = exact.h[at(i)], dy = p.dy[e], g = dy * p.w[i];
                        // h errs relative to its own size, and by the mean's error in units of std.
                        const double h_error =
                            relative * (std::abs(h) + exact.factor * (x_size + std::abs(x[at(e)])));
                        const double want = (g - g_mean - h * gh_mean) * exact.factor + residual[e];
                        const double bound =
                            exact.factor * (relative * (std::abs(g) + g_size +
                                                        2 * (std::abs(h) + 1) * gh_size) +
                                            h_error * (gh_size + std::abs(gh_mean)) +
                                            h_error * g_size * (std::abs(h) + 1)) +
                            2 * kRoundoff * (std::abs(residual[e]) + std::abs(want));
                        ASSERT_NEAR(got.dx[e], want, bound) << rows << " x " << cols << " at " << e;
                        dw[at(i)] += dy * h;
                        dw_size[at(i)] +=
                            std::abs(dy) * (std::abs(h) + h_error / (relative + kRoundoff));
                        db[at(i)] += dy;
                        db_size[at(i)] += std::abs(dy);
                    }
                }
                const double sums = (static_cast<double>(rows) / 8 + 130) * kRoundoff;
                for (std::int64_t i = 0; i < cols; ++i) {
                    ASSERT_NEAR(got.dw[i], dw[at(i)], (sums + relative) * dw_size[at(i)]);
                    if (kind == NormKind::rms) continue;
                    ASSERT_NEAR(got.db[i], db[at(i)], sums * db_size[at(i)]);
                }
            }
        }
    });
}

TEST(NormBackward, ThreadsAndPlacesChangeNoBits) {
    for_each_isa([] {
        for (const NormKind kind : kKinds) {
            Problem p(kind, 203, 37);
            Floats residual = Floats::normal({203, 37}, 4);
            const Problem::Result want = p.run(1, residual, 1);
            for (const int threads : {2, 3}) {
                const Problem::Result got = p.run(threads, residual, 1);
                EXPECT_TRUE(same_bits(got.dx.values, want.dx.values));
                EXPECT_TRUE(same_bits(got.dw.values, want.dw.values));
                EXPECT_TRUE(same_bits(got.db.values, want.db.values));
            }
            // dx in place of dy, and in place of the residual.
            Bench bench(2, norm_backward_scratch_bytes(203, 37, 2));
            Floats in_dy = p.dy, in_residual = residual, dw({37}, 0);
            norm_backward(bench, {kind, kEps, in_dy, residual, dw, {}, in_dy, p.x, p.w});
            norm_backward(bench, {kind, kEps, in_residual, in_residual, dw, {}, p.dy, p.x, p.w});
            EXPECT_TRUE(same_bits(in_dy.values, want.dx.values));
            EXPECT_TRUE(same_bits(in_residual.values, want.dx.values));
        }
    });
}

TEST(NormBackward, LedgerAndContract) {
    Problem p(NormKind::layer, 3, 8);
    Floats dx({3, 8}), dw({8}, 0), db({8}, 0), narrow({7}, 0), other({8, 3}, 0);
    Bench bench(1, norm_backward_scratch_bytes(3, 8, 1));
    norm_backward(bench, {p.kind, kEps, dx, {}, dw, db, p.dy, p.x, p.w});
    expect_record(bench.ledger.op(OpKind::norm), 1, 192 + 96, 96 + 64, 18 * 24);
    const auto with = [&](Tensor dx_, Tensor dw_, Tensor db_) {
        norm_backward(bench, {p.kind, kEps, dx_, {}, dw_, db_, p.dy, p.x, p.w});
    };
    EXPECT_THROW(with(other, dw, db), ContractError);
    EXPECT_THROW(with(dx, narrow, db), ContractError);
    EXPECT_THROW(with(dx, dw, narrow), ContractError);
    Bench small(1, 8);
    EXPECT_THROW(norm_backward(small, {p.kind, kEps, dx, {}, dw, db, p.dy, p.x, p.w}),
                 ContractError);
}

}  // namespace
}  // namespace mr::ops::norm_backward_test
