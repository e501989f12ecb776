#include "ops/norm/norm.h"

#include "ops/simd/testing.h"

namespace mr::ops::norm_test {
namespace {

using namespace testing;

constexpr std::int64_t kCols[] = {1, 2, 5, 15, 16, 17, 64, 257, 288, 4096};
constexpr float kEps = 1e-5f;

// A sum of n positive squares in at least four chains errs by at most (n / 4 + 5) roundoffs, halved
// by the root; then the factor and two products, each rounded once.
double rms_bound(std::int64_t n) {
    return (0.5 * (static_cast<double>(n) / 4 + 5) + 4) * kRoundoff;
}

TEST(RmsNorm, MatchesF64) {
    for_each_isa([] {
        for (std::int64_t n : kCols) {
            for (float size : {1.0f, 1e-4f, 1e4f}) {
                const std::int64_t rows = 5;
                Floats x = Floats::normal({rows, n}, 1, size), w = Floats::normal({n}, 2);
                Floats out({rows, n});
                Bench bench;
                rmsnorm(bench, out, x, w, kEps);
                for (std::int64_t r = 0; r < rows; ++r) {
                    double squares = 0;
                    for (std::int64_t i = 0; i < n; ++i) {
                        squares += double{x[r * n + i]} * double{x[r * n + i]};
                    }
                    const double factor =
                        1 / std::sqrt(squares / static_cast<double>(n) + double{kEps});
                    for (std::int64_t i = 0; i < n; ++i) {
                        const double want = x[r * n + i] * factor * w[i];
                        ASSERT_NEAR(out[r * n + i], want, rms_bound(n) * std::abs(want))
                            << "cols " << n << " at " << i;
                    }
                }
            }
        }
    });
}

TEST(LayerNorm, MatchesF64) {
    for_each_isa([] {
        for (std::int64_t n : kCols) {
            for (float mean_of :
                 {0.0f, 100.0f}) {  // a mean far from 0 must not swallow the variance
                for (bool with_bias : {false, true}) {
                    const std::int64_t rows = 3;
                    Floats x = Floats::normal({rows, n}, 1, 1, mean_of);
                    Floats w = Floats::normal({n}, 2), b = Floats::normal({n}, 3);
                    Floats out({rows, n});
                    Bench bench;
                    layernorm(bench, out, x, w, with_bias ? b.tensor() : Tensor{}, kEps);
                    for (std::int64_t r = 0; r < rows; ++r) {
                        double sum = 0, magnitude = 0, squares = 0;
                        for (std::int64_t i = 0; i < n; ++i) {
                            sum += double{x[r * n + i]};
                            magnitude += std::abs(double{x[r * n + i]});
                        }
                        const auto count = static_cast<double>(n);
                        const double mean = sum / count;
                        for (std::int64_t i = 0; i < n; ++i) {
                            squares += std::pow(x[r * n + i] - mean, 2);
                        }
                        const double variance = squares / count + double{kEps};
                        const double factor = 1 / std::sqrt(variance);
                        // The mean errs by (n / 4 + 6) roundoffs of the mean magnitude, which
                        // shifts every centred value; it enters the variance only squared, since
                        // the sum of the centred values is 0.
                        const double mean_error = (count / 4 + 6) * kRoundoff * magnitude / count;
                        const double relative =
                            rms_bound(n) + 3 * kRoundoff + mean_error * mean_error / variance;
                        for (std::int64_t i = 0; i < n; ++i) {
                            const double centred = x[r * n + i] - mean;
                            const double bias = with_bias ? b[i] : 0.0f;
                            const double want = centred * factor * w[i] + bias;
                            // A centred value near mean_error also affects the variance's terms.
                            const double error =
                                std::abs(factor * w[i]) *
                                    (mean_error + relative * (std::abs(centred) + mean_error) +
                                     kRoundoff * std::abs(mean)) +
                                2 * kRoundoff * (std::abs(want) + std::abs(bias));
                            ASSERT_NEAR(out[r * n + i], want, error)
                                << "cols " << n << " at " << i << " mean " << mean_of;
                        }
                    }
                }
            }
        }
    });
}

TEST(Norm, InPlaceAndThreadsGiveTheSameBits) {
    for_each_isa([] {
        for (std::int64_t n : {7, 288, 5000}) {
            const std::int64_t rows = 23;
            Floats x = Floats::normal({rows, n}, 5), w = Floats::normal({n}, 6);
            Floats b = Floats::normal({n}, 7);
            Floats rms({rows, n}), layer({rows, n});
            Bench one(1);
            rmsnorm(one, rms, x, w, kEps);
            layernorm(one, layer, x, w, b, kEps);
            for (int threads : {1, 2, 3}) {
                Bench bench(threads);
                Floats in_rms = x, in_layer = x;
                rmsnorm(bench, in_rms, in_rms, w, kEps);
                layernorm(bench, in_layer, in_layer, w, b, kEps);
                EXPECT_TRUE(same_bits(rms.values, in_rms.values));
                EXPECT_TRUE(same_bits(layer.values, in_layer.values));
            }
            Floats alone({1, n});  // a row's bits do not depend on the others
            rmsnorm(one, alone, x.tensor().slice_rows(22, 1), w, kEps);
            EXPECT_TRUE(std::equal(alone.values.begin(), alone.values.end(), rms.values.end() - n));
        }
    });
}

TEST(Norm, LedgerAndContract) {
    Floats x({3, 8}, 1), w({8}, 1), b({8}, 0), short_w({7}, 1), other({8, 3}, 0);
    Bench bench;
    rmsnorm(bench, x, x, w, kEps);
    expect_record(bench.ledger.op(OpKind::norm), 1, 96 + 32, 96, 4 * 24);
    layernorm(bench, x, x, w, b, kEps);
    expect_record(bench.ledger.op(OpKind::norm), 2, 2 * 96 + 96, 192, 12 * 24);
    EXPECT_THROW(rmsnorm(bench, x, x, short_w, kEps), ContractError);
    EXPECT_THROW(rmsnorm(bench, other, x, w, kEps), ContractError);
    EXPECT_THROW(layernorm(bench, x, x, w, short_w, kEps), ContractError);
    EXPECT_THROW(layernorm(bench, x, x, Tensor{}, b, kEps), ContractError);
}

}  // namespace
}  // namespace mr::ops::norm_test
