#include "ops/activation/activation.h"

#include <cmath>

#include "ops/simd/testing.h"

namespace mr::ops::activation_test {
namespace {

using namespace testing;

constexpr Activation kKinds[] = {Activation::silu, Activation::gelu, Activation::gelu_tanh,
                                 Activation::relu};

double exact(Activation kind, double x) {
    switch (kind) {
        case Activation::silu:
            return x / (1 + std::exp(-x));
        case Activation::gelu:
            return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
        case Activation::gelu_tanh: {
            const double u = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
            return x / (1 + std::exp(-2 * u));
        }
        case Activation::relu:
            return x > 0 ? x : 0;
    }
    return 0;
}

// e^ errs by 2 ulp and its argument y by a few roundoffs, so that the result errs by a few
// roundoffs times (1 + |y|); y is x, x² / 2 or 2u. Results below the smallest normal count as 0.
double tolerance(Activation kind, double x, double want) {
    double argument = 0;
    if (kind == Activation::silu) argument = std::abs(x);
    if (kind == Activation::gelu) argument = x * x / 2;
    if (kind == Activation::gelu_tanh) argument = 1.6 * std::abs(x + 0.044715 * x * x * x);
    // On the positive side the exponential is the difference to 1: its error does not grow.
    if (x > 0) argument = 1;
    if (kind == Activation::relu) return 0;
    return (10 + 6 * argument) * kRoundoff * std::abs(want) + 100 * 0x1p-126;
}

TEST(Activation, MatchesF64) {
    for_each_isa([] {
        std::vector<float> points;
        for (int i = -12000; i <= 12000; ++i) points.push_back(static_cast<float>(i) * 0.01f);
        for (int e = -140; e < 7; ++e) {
            points.push_back(std::ldexp(1.37f, e));
            points.push_back(-std::ldexp(1.37f, e));
        }
        for (float x : {0.0f, -0.0f, 1e30f, -1e30f, 1e4f, -1e4f}) points.push_back(x);
        const auto n = static_cast<std::int64_t>(points.size());
        Floats x({n}), out({n});
        x.values = points;
        Bench bench(2);
        for (Activation kind : kKinds) {
            SCOPED_TRACE(activation_name(kind));
            std::fill(out.values.begin(), out.values.end(), kPoison);
            activation(bench, out, x, kind);
            for (std::int64_t i = 0; i < n; ++i) {
                const double want = exact(kind, x[i]);
                ASSERT_NEAR(out[i], want, tolerance(kind, x[i], want)) << "x = " << x[i];
            }
        }
    });
}

TEST(Activation, NanStaysNan) {
    for_each_isa([] {
        Floats x({5}, kPoison), out({5}, 0);
        Bench bench;
        for (Activation kind : kKinds) {
            activation(bench, out, x, kind);
            for (float y : out.values) EXPECT_TRUE(std::isnan(y)) << activation_name(kind);
        }
    });
}

TEST(Activation, GatedIsTheProduct) {
    for_each_isa([] {
        for (std::int64_t n : {1, 2, 5, 31, 64, 9001}) {
            for (Activation kind : kKinds) {
                Floats gate = Floats::normal({1, n}, 3), up = Floats::normal({1, n}, 4);
                Floats act({1, n}), out({1, n});
                Bench one(1), three(3);
                activation(one, act, gate, kind);
                gated_activation(one, out, gate, up, kind);
                for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(out[i], act[i] * up[i]);
                Floats threads({1, n}), in_gate = gate, in_up = up;
                gated_activation(three, threads, gate, up, kind);
                gated_activation(one, in_gate, in_gate, up, kind);
                gated_activation(one, in_up, gate, in_up, kind);
                EXPECT_TRUE(same_bits(out.values, threads.values));
                EXPECT_TRUE(same_bits(out.values, in_gate.values));
                EXPECT_TRUE(same_bits(out.values, in_up.values));
            }
        }
    });
}

// The result of an element must not depend on its position in a vector.
TEST(Activation, PlaceInTheRowDoesNotMatter) {
    for_each_isa([] {
        for (Activation kind : kKinds) {
            Floats x = Floats::normal({67}, 8, 4), out({67}), alone({1});
            Bench bench;
            activation(bench, out, x, kind);
            for (std::int64_t i = 0; i < 67; ++i) {
                activation(bench, alone, Tensor(&x[i], DType::f32, {1}), kind);
                ASSERT_EQ(alone[0], out[i]) << activation_name(kind) << " " << i;
            }
        }
    });
}

TEST(Activation, LedgerAndContract) {
    Floats x({2, 6}, 1), up({2, 6}, 2), other({6, 2}, 1);
    Bench bench;
    activation(bench, x, x, Activation::silu);
    expect_record(bench.ledger.op(OpKind::activation), 1, 48, 48, 48);
    gated_activation(bench, x, x, up, Activation::silu);
    expect_record(bench.ledger.op(OpKind::activation), 2, 48 + 96, 96, 48 + 60);
    EXPECT_THROW(activation(bench, other, x, Activation::relu), ContractError);
    EXPECT_THROW(gated_activation(bench, x, x, other, Activation::relu), ContractError);
    EXPECT_THROW(gated_activation(bench, x, x, Tensor{}, Activation::relu), ContractError);
}

}  // namespace
}  // namespace mr::ops::activation_test
