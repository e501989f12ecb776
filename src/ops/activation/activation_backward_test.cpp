#include "ops/activation/activation_backward.h"

#include <cmath>

#include "ops/activation/activation.h"
#include "ops/simd/slopes.h"
#include "ops/simd/testing.h"

namespace mr::ops {
namespace {

using namespace testing;

constexpr Activation kKinds[] = {Activation::silu, Activation::gelu, Activation::gelu_tanh,
                                 Activation::relu};
const double kPi = std::acos(-1.0);

double exact(Activation kind, double x) {
    switch (kind) {
        case Activation::silu:
            return x / (1 + std::exp(-x));
        case Activation::gelu:
            return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
        case Activation::gelu_tanh:
            return x / (1 + std::exp(-2 * std::sqrt(2 / kPi) * (x + 0.044715 * x * x * x)));
        case Activation::relu:
            return x > 0 ? x : 0;
    }
    return 0;
}

// act'(x), and the sum of the magnitudes of its terms.
struct ExactSlope {
    double value, size;
};
ExactSlope exact_slope(Activation kind, double x) {
    switch (kind) {
        case Activation::silu: {
            const double e = std::exp(-std::abs(x));
            const double s = (x < 0 ? e : 1) / (1 + e), rest = (x < 0 ? 1 : e) / (1 + e);
            return {s * (1 + x * rest), s * (1 + std::abs(x) * rest)};
        }
        case Activation::gelu: {
            const double share = 0.5 * std::erfc(-x * std::sqrt(0.5));
            const double density = std::exp(-x * x / 2) / std::sqrt(2 * kPi);
            return {share + x * density, share + std::abs(x) * density};
        }
        case Activation::gelu_tanh: {
            const double u = 2 * std::sqrt(2 / kPi) * (x + 0.044715 * x * x * x);
            const double du = 2 * std::sqrt(2 / kPi) * (1 + 3 * 0.044715 * x * x);
            const double e = std::exp(-std::abs(u));
            const double s = (x < 0 ? e : 1) / (1 + e), rest = (x < 0 ? 1 : e) / (1 + e);
            return {s * (1 + x * rest * du), s * (1 + std::abs(x) * rest * du)};
        }
        case Activation::relu:
            return {x > 0 ? 1.0 : 0.0, x > 0 ? 1.0 : 0.0};
    }
    return {};
}

// As in the forward: an exponential of an argument y errs by a few roundoffs times (1 + |y|).
double relative(Activation kind, double x) {
    double argument = std::abs(x);
    if (kind == Activation::gelu) argument = x * x / 2;
    if (kind == Activation::gelu_tanh) argument = 1.6 * std::abs(x + 0.044715 * x * x * x);
    return (16 + 6 * argument) * kRoundoff;
}

TEST(ActivationBackward, TheExactSlopesAreSlopes) {
    for (const Activation kind : kKinds) {
        for (double x = -9.05; x < 9; x += 0.1) {
            double point = x;
            const double want = slope(point, [&] { return exact(kind, point); });
            ASSERT_NEAR(exact_slope(kind, x).value, want, 1e-10) << activation_name(kind) << x;
        }
    }
}

TEST(ActivationBackward, MatchesF64) {
    for_each_isa([] {
        std::vector<float> points;
        for (int i = -3000; i <= 3000; ++i) points.push_back(static_cast<float>(i) * 0.04f);
        for (float x : {0.0f, 1e-30f, -1e-30f, 1e4f, -1e4f, 1e30f, -1e30f}) points.push_back(x);
        const auto n = static_cast<std::int64_t>(points.size());
        Floats x({n}), dy = Floats::normal({n}, 2), dx({n});
        x.values = points;
        Bench bench(2);
        for (const Activation kind : kKinds) {
            std::fill(dx.values.begin(), dx.values.end(), kPoison);
            activation_backward(bench, dx, dy, x, kind);
            for (std::int64_t i = 0; i < n; ++i) {
                const ExactSlope want = exact_slope(kind, x[i]);
                const double size = std::abs(double{dy[i]});
                // Beyond 100 the slope is 0 or 1 in f32, and huge x must not inflate the bound.
                const double share = std::abs(x[i]) > 100 ? 0 : relative(kind, x[i]);
                const double bound = share * want.size + 300 * 0x1p-126;
                ASSERT_NEAR(dx[i], want.value * dy[i], size * (bound + kRoundoff * want.size))
                    << activation_name(kind) << " x = " << x[i];
            }
        }
    });
}

TEST(ActivationBackward, GatedMatchesF64) {
    for_each_isa([] {
        for (const auto& [tokens, hidden] :
             {std::pair<std::int64_t, std::int64_t>{1, 1}, {3, 7}, {2, 64}, {40, 133}}) {
            for (const Activation kind : kKinds) {
                Floats gate_up = Floats::normal({tokens, 2 * hidden}, 1, 2);
                Floats dy = Floats::normal({tokens, hidden}, 2);
                Floats y({tokens, hidden}), d({tokens, 2 * hidden});
                Bench bench(2);
                gated_activation(bench, y, gate_up, kind);
                gated_activation_backward(bench, d, dy, gate_up, kind);
                for (std::int64_t i = 0; i < y.size(); ++i) {
                    const std::int64_t g = i / hidden * 2 * hidden + i % hidden, u = g + hidden;
                    const double gate = gate_up[g], up = gate_up[u], act = exact(kind, gate);
                    const double error = relative(kind, gate) + 3 * kRoundoff;
                    const ExactSlope s = exact_slope(kind, gate);
                    ASSERT_NEAR(y[i], act * up, error * std::abs(act * up));
                    ASSERT_NEAR(d[u], dy[i] * act, error * std::abs(dy[i] * act));
                    ASSERT_NEAR(d[g], dy[i] * up * s.value, error * std::abs(dy[i] * up) * s.size)
                        << activation_name(kind);
                }
            }
        }
    });
}

TEST(ActivationBackward, ThreadsAndPlacesChangeNoBits) {
    for_each_isa([] {
        const std::int64_t tokens = 90, hidden = 301;
        Floats gate_up = Floats::normal({tokens, 2 * hidden}, 1);
        Floats dy = Floats::normal({tokens, hidden}, 2), x = Floats::normal({tokens, hidden}, 3);
        for (const Activation kind : kKinds) {
            Bench one(1);
            Floats d({tokens, 2 * hidden}), dx({tokens, hidden});
            gated_activation_backward(one, d, dy, gate_up, kind);
            activation_backward(one, dx, dy, x, kind);
            for (const int threads : {1, 2, 3}) {
                Bench bench(threads);
                Floats in_place = gate_up, in_x = x, in_dy = dy;
                gated_activation_backward(bench, in_place, dy, in_place, kind);
                activation_backward(bench, in_x, dy, in_x, kind);
                activation_backward(bench, in_dy, in_dy, x, kind);
                EXPECT_TRUE(same_bits(in_place.values, d.values));
                EXPECT_TRUE(same_bits(in_x.values, dx.values));
                EXPECT_TRUE(same_bits(in_dy.values, dx.values));
            }
        }
    });
}

TEST(ActivationBackward, LedgerAndContract) {
    Floats gate_up({2, 6}, 1), y({2, 3}, 1), d({2, 6}, 0);
    Bench bench;
    gated_activation(bench, y, gate_up, Activation::silu);
    expect_record(bench.ledger.op(OpKind::activation), 1, 48, 24, 6 * 5);
    gated_activation_backward(bench, d, y, gate_up, Activation::silu);
    expect_record(bench.ledger.op(OpKind::activation), 2, 48 + 72, 24 + 48, 6 * 5 + 6 * 11);
    activation_backward(bench, y, y, y, Activation::relu);
    EXPECT_EQ(bench.ledger.op(OpKind::activation).calls, 3u);
    EXPECT_THROW(gated_activation(bench, gate_up, gate_up, Activation::silu), ContractError);
    EXPECT_THROW(gated_activation_backward(bench, y, y, gate_up, Activation::silu), ContractError);
    EXPECT_THROW(activation_backward(bench, d, y, y, Activation::silu), ContractError);
}

}  // namespace
}  // namespace mr::ops
