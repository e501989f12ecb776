#include "ops/activation/activation_cuda.h"

#include <cmath>

#include "core/cuda/testing.h"
#include "ops/activation/activation.h"

namespace mr::cuda::activation_cuda_test {
namespace {

using ops::Activation;

constexpr Activation kKinds[] = {Activation::silu, Activation::gelu, Activation::gelu_tanh,
                                 Activation::relu};
constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr double kRoundoff = 0x1p-24;

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

// expf errs by 2 ulp (4 roundoffs), normcdff by 5 ulp (10), and the argument y of the exponential
// by a few roundoffs, so that the result errs by a few roundoffs times (1 + |y|); y is x, x² / 2 or
// 2u. On the positive side the exponential is the difference to 1. Results below the smallest
// normal count as 0. Then the type's rounding.
double tolerance(Activation kind, double x, double want, DType type) {
    double argument = 0;
    if (kind == Activation::silu) argument = std::abs(x);
    if (kind == Activation::gelu) argument = x * x / 2;
    if (kind == Activation::gelu_tanh) argument = 1.6 * std::abs(x + 0.044715 * x * x * x);
    if (x > 0) argument = 1;
    double error = 0;
    if (kind != Activation::relu) {
        error = (14 + 6 * argument) * kRoundoff * std::abs(want) + 100 * 0x1p-126;
    }
    if (type == DType::f32) return error;
    const double smallest = type == DType::f16 ? 0x1p-25 : 0x1p-134;  // half a subnormal's step
    return error + epsilon(type) * (std::abs(want) + error) + smallest;
}

class ActivationTest : public GpuTest {};

TEST_F(ActivationTest, MatchesF64) {
    std::vector<float> points;
    for (int i = -12000; i <= 12000; ++i) points.push_back(static_cast<float>(i) * 0.01f);
    for (int e = -140; e < 7; ++e) {
        points.push_back(std::ldexp(1.37f, e));
        points.push_back(-std::ldexp(1.37f, e));
    }
    for (const float x : {0.0f, -0.0f, 1e4f, -1e4f}) points.push_back(x);
    while (points.size() % 4 != 0) points.push_back(1.0f);
    const auto n = static_cast<std::int64_t>(points.size());
    for (const DType in : kTypes) {
        for (const DType to : kTypes) {
            for (const Activation kind : kKinds) {
                memory_.reset();
                std::vector<float> values = points;
                if (in == DType::f32 && to == DType::f32) {
                    values[0] = 1e30f;
                    values[1] = -1e30f;
                }
                const Tensor x = upload(in, {1, n}, values);
                const Tensor out = poisoned(to, {1, n});
                activation(ctx_, out, x, {}, kind);
                const std::vector<float> got = download(out);
                for (std::size_t i = 0; i < got.size(); ++i) {
                    const double v = values[i], want = exact(kind, v);
                    ASSERT_NEAR(got[i], want, tolerance(kind, v, want, to))
                        << ops::activation_name(kind) << " " << dtype_name(in) << " -> "
                        << dtype_name(to) << " of " << v;
                }
            }
        }
    }
}

TEST_F(ActivationTest, NanStaysNan) {
    for (const std::int64_t n : {8, 5}) {
        for (const Activation kind : kKinds) {
            const Tensor x = poisoned(DType::f32, {1, n});
            std::vector<float> zeros(static_cast<std::size_t>(n), 0.0f);
            const Tensor out = upload(DType::f32, {1, n}, zeros);
            activation(ctx_, out, x, {}, kind);
            for (const float v : download(out)) EXPECT_TRUE(std::isnan(v));
        }
    }
}

// act(gate) * up and act(x + bias) have the bits of separate operations in f32.
TEST_F(ActivationTest, GatedAndBiasAreTheirParts) {
    for (const std::int64_t hidden : {1, 7, 64, 172, 255, 256, 2560, 11008}) {
        for (const std::int64_t rows : {1, 3, 33}) {
            for (const DType type : kTypes) {
                for (const Activation kind : kKinds) {
                    memory_.reset();
                    const auto count = static_cast<std::size_t>(rows * hidden);
                    std::vector<float> both = normal(2 * count, 2);
                    const Tensor gate_up = upload(type, {rows, 2 * hidden}, both);
                    std::vector<float> gate(count), up(count);
                    for (std::size_t i = 0; i < count; ++i) {
                        const auto width = static_cast<std::size_t>(hidden);
                        const std::size_t at = i / width * 2 * width + i % width;
                        gate[i] = both[at];
                        up[i] = both[at + width];
                    }
                    const Tensor act = poisoned(DType::f32, {rows, hidden});
                    activation(ctx_, act, upload(type, {rows, hidden}, gate), {}, kind);
                    std::vector<float> want = download(act);
                    for (std::size_t i = 0; i < count; ++i) want[i] *= up[i];
                    upload(type, {rows, hidden}, want);  // rounds them to the type
                    const Tensor out = poisoned(type, {rows, hidden});
                    gated_activation(ctx_, out, gate_up, kind);
                    ASSERT_EQ(download(out), want)
                        << ops::activation_name(kind) << " " << rows << " x " << hidden;

                    std::vector<float> bias = normal(static_cast<std::size_t>(hidden));
                    const Tensor b = upload(DType::f32, {hidden}, bias);
                    const Tensor x = upload(type, {rows, hidden}, gate);
                    std::vector<float> sums(count);
                    for (std::size_t i = 0; i < count; ++i) {
                        sums[i] = gate[i] + bias[i % static_cast<std::size_t>(hidden)];
                    }
                    const Tensor sum = upload(DType::f32, {rows, hidden}, sums);
                    const Tensor apart = poisoned(type, {rows, hidden});
                    activation(ctx_, apart, sum, {}, kind);
                    activation(ctx_, x, x, b, kind);  // in place
                    ASSERT_EQ(download(x), download(apart))
                        << ops::activation_name(kind) << " " << rows << " x " << hidden;
                }
            }
        }
    }
}

TEST_F(ActivationTest, LedgerAndContract) {
    const Tensor x = poisoned(DType::f16, {2, 6}), out = poisoned(DType::f16, {2, 3});
    const Tensor bias = poisoned(DType::f32, {5});
    gated_activation(ctx_, out, x, Activation::silu);
    EXPECT_EQ(ledger_.op(OpKind::activation).bytes_read, 24u);
    EXPECT_EQ(ledger_.op(OpKind::activation).bytes_written, 12u);
    EXPECT_EQ(ledger_.op(OpKind::activation).flops, 6u * 5);
    EXPECT_THROW(gated_activation(ctx_, x, x, Activation::silu), ContractError);
    EXPECT_THROW(activation(ctx_, out, x, {}, Activation::silu), ContractError);
    EXPECT_THROW(activation(ctx_, x, x, bias, Activation::silu), ContractError);
    const Tensor overlaid(x.data, DType::bf16, {2, 6});
    EXPECT_THROW(activation(ctx_, overlaid, x, {}, Activation::silu), ContractError);
}

}  // namespace
}  // namespace mr::cuda::activation_cuda_test
