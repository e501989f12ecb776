#include "ops/activation/activation_backward_cuda.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/cuda/testing.h"
#include "core/error.h"
#include "ops/linear/linear_train_cuda.h"

namespace mr::cuda {
namespace {

using ops::Activation;
constexpr Activation kKinds[] = {Activation::silu, Activation::gelu, Activation::gelu_tanh,
                                 Activation::relu};

double act(Activation kind, double x) {
    switch (kind) {
        case Activation::silu:
            return x / (1 + std::exp(-x));
        case Activation::gelu:
            return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
        case Activation::gelu_tanh:
            return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        case Activation::relu:
            return x > 0 ? x : 0;
    }
    return 0;
}
// By finite differences: the kernel's formulas are not reused. The error is about h².
double slope(Activation kind, double x) {
    if (kind == Activation::relu) return x > 0 ? 1 : 0;
    constexpr double kStep = 1e-5;
    return (act(kind, x + kStep) - act(kind, x - kStep)) / (2 * kStep);
}

class ActivationBackwardTest : public GpuTest {
  protected:
    // The slopes are f32 with fast exponentials: some ulp of f32, relative to terms of at most 1 +
    // |x| and to the exponent's argument; then the result is rounded.
    static double error(double want, double dy, double x) {
        return 0x1p-8 * std::abs(want) + 1e-5 * std::abs(dy) * (1 + std::abs(x));
    }
    std::vector<float> inputs(std::size_t count) {
        std::vector<float> x = normal(count, 3);
        x[0] = 0;
        if (count > 6) {
            x[1] = 80;
            x[2] = -80;
            x[3] = -100;
            x[4] = 1e30f;
            x[5] = -1e30f;
        }
        return x;
    }
};

TEST_F(ActivationBackwardTest, MatchesDifferences) {
    for (const Activation kind : kKinds) {
        for (const std::int64_t cols : {1, 7, 8, 129, 1024, 3072}) {
            for (const std::int64_t rows : {1, 3, 34}) {
                for (int place = 0; place < 3; ++place) {
                    memory_.reset();
                    const auto count = static_cast<std::size_t>(rows * cols);
                    std::vector<float> xs = inputs(count), ds = normal(count);
                    const Tensor x = upload(DType::bf16, {rows, cols}, xs);
                    const Tensor dy = upload(DType::bf16, {rows, cols}, ds);
                    const Tensor own = poisoned(DType::bf16, {rows, cols});
                    const Tensor dx = place == 0 ? own : place == 1 ? dy : x;
                    activation_backward(ctx_, dx, dy, x, kind);
                    const std::vector<float> got = download(dx);
                    for (std::size_t i = 0; i < count; ++i) {
                        const double want = double{ds[i]} * slope(kind, xs[i]);
                        if (std::abs(xs[i]) > 1e6f) {
                            ASSERT_EQ(got[i], xs[i] > 0 ? ds[i] : 0) << static_cast<int>(kind);
                            continue;
                        }
                        ASSERT_NEAR(got[i], want, error(want, ds[i], xs[i]))
                            << static_cast<int>(kind) << " cols " << cols << " x " << xs[i];
                    }
                }
            }
        }
    }
}

TEST_F(ActivationBackwardTest, GatesMatchDifferences) {
    for (const Activation kind : kKinds) {
        for (const std::int64_t hidden : {1, 7, 8, 172, 2056}) {
            for (const bool in_place : {false, true}) {
                memory_.reset();
                const std::int64_t rows = 5;
                const auto width = static_cast<std::size_t>(hidden);
                std::vector<float> gs = normal(static_cast<std::size_t>(rows) * 2 * width, 2),
                                   ds = normal(static_cast<std::size_t>(rows) * width);
                const Tensor gate_up = upload(DType::bf16, {rows, 2 * hidden}, gs);
                const Tensor dy = upload(DType::bf16, {rows, hidden}, ds);
                const Tensor d = in_place ? gate_up : poisoned(DType::bf16, {rows, 2 * hidden});
                gated_activation_backward(ctx_, d, dy, gate_up, kind);
                const std::vector<float> got = download(d);
                for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
                    for (std::size_t i = 0; i < width; ++i) {
                        const double gate = gs[r * 2 * width + i], up = gs[(2 * r + 1) * width + i];
                        const double dyi = ds[r * width + i];
                        const double dgate = dyi * up * slope(kind, gate);
                        const double dup = dyi * act(kind, gate);
                        ASSERT_NEAR(got[r * 2 * width + i], dgate, error(dgate, dyi * up, gate))
                            << static_cast<int>(kind) << " hidden " << hidden;
                        ASSERT_NEAR(got[(2 * r + 1) * width + i], dup, error(dup, dyi, gate))
                            << static_cast<int>(kind) << " hidden " << hidden;
                    }
                }
            }
        }
    }
}

TEST_F(ActivationBackwardTest, ForwardMatchesF64) {
    struct Size {
        std::int64_t rows, cols;
    };
    // A thread has several rows: all possible numbers of remaining rows, alone and after others.
    constexpr Size kSizes[] = {{5, 1},   {5, 7},   {1, 8},   {2, 8},     {3, 8},    {4, 8},
                               {5, 264}, {6, 264}, {8, 264}, {19, 3072}, {5, 5632}, {7, 5632}};
    for (const Activation kind : kKinds) {
        for (const auto [rows, cols] : kSizes) {
            for (const bool gated : {false, true}) {
                memory_.reset();
                const auto width = static_cast<std::size_t>(cols);
                const std::size_t stride = (gated ? 2 : 1) * width;
                std::vector<float> bs = normal(width);
                std::vector<float> xs = inputs(static_cast<std::size_t>(rows) * stride);
                for (float& x : xs) x = std::clamp(x, -200.0f, 200.0f);
                const Tensor x = upload(DType::bf16, {rows, static_cast<std::int64_t>(stride)}, xs);
                const Tensor all = poisoned(DType::bf16, {rows + 1, cols});
                const Tensor bias = upload(DType::f32, {cols}, bs);
                activation_train(ctx_, all.slice_rows(0, rows), x, gated ? Tensor{} : bias, kind,
                                 gated);
                const std::vector<float> got = download(all);
                for (std::size_t i = 0; i < got.size(); ++i) {
                    const std::size_t r = i / width, c = i % width;
                    if (r == static_cast<std::size_t>(rows)) {
                        ASSERT_TRUE(std::isnan(got[i])) << "behind the end";
                        continue;
                    }
                    const double v = xs[r * stride + c] + (gated ? 0.0f : bs[c]);  // in f32
                    const double up = gated ? double{xs[r * stride + width + c]} : 1.0;
                    const double want = act(kind, v) * up;
                    ASSERT_NEAR(got[i], want, error(want, up, v))
                        << static_cast<int>(kind) << " " << rows << " x " << cols << ", x " << v;
                }
            }
        }
    }
}

// dx has the same bits as without a bias, and dbias is the sum of dx.
TEST_F(ActivationBackwardTest, WithTheBias) {
    for (const Activation kind : kKinds) {
        for (const std::int64_t cols : {1, 7, 8, 264, 1024, 3072}) {
            for (const std::int64_t rows : {1, 3, 701}) {
                memory_.reset();
                const std::size_t bytes = linear_train_scratch_bytes(cols);
                ctx_.scratch = {memory_.array<std::byte>(bytes), bytes};
                stream_->fill(ctx_.scratch.data(), 0xff, bytes);
                const auto count = static_cast<std::size_t>(rows * cols);
                std::vector<float> xs = inputs(count), ds = normal(count),
                                   bs = normal(static_cast<std::size_t>(cols));
                const Tensor x = upload(DType::bf16, {rows, cols}, xs);
                const Tensor dy = upload(DType::bf16, {rows, cols}, ds);
                const Tensor dbias = upload(DType::f32, {cols}, bs);
                const Tensor want = poisoned(DType::bf16, {rows, cols});
                activation_backward(ctx_, want, dy, x, kind);
                activation_backward(ctx_, x, dbias, dy, x, {}, kind);
                const std::vector<float> dx = download(want), sums = download(dbias);
                ASSERT_EQ(download(x), dx) << static_cast<int>(kind) << " cols " << cols;
                for (std::size_t c = 0; c < sums.size(); ++c) {
                    double sum = bs[c], size = std::abs(bs[c]);
                    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
                        sum += double{dx[r * sums.size() + c]};
                        size += std::abs(double{dx[r * sums.size() + c]});
                    }
                    ASSERT_NEAR(sums[c], sum, 0x1p-24 * 64 * size) << "cols " << cols << " " << c;
                }
            }
        }
    }
}

// act(x + bias) has the bits of act(y) if y = x + bias is exact in bf16: whole numbers.
TEST_F(ActivationBackwardTest, TheBiasBefore) {
    for (const Activation kind : kKinds) {
        for (const std::int64_t cols : {1, 7, 8, 264, 3072}) {
            for (const std::int64_t rows : {1, 11, 700}) {
                memory_.reset();
                const std::size_t bytes = linear_train_scratch_bytes(cols);
                ctx_.scratch = {memory_.array<std::byte>(bytes), bytes};
                const auto count = static_cast<std::size_t>(rows * cols);
                const auto width = static_cast<std::size_t>(cols);
                std::vector<float> xs = normal(count, 4), ds = normal(count), ys(count), bs(width),
                                   zeros(width);
                for (std::size_t c = 0; c < width; ++c) bs[c] = static_cast<float>(c % 5) - 2;
                for (std::size_t i = 0; i < count; ++i) {
                    xs[i] = std::round(xs[i]);
                    ys[i] = xs[i] + bs[i % width];
                }
                const Tensor x = upload(DType::bf16, {rows, cols}, xs);
                const Tensor y = upload(DType::bf16, {rows, cols}, ys);
                const Tensor dy = upload(DType::bf16, {rows, cols}, ds);
                const Tensor bias = upload(DType::f32, {cols}, bs);
                const Tensor a = poisoned(DType::bf16, {rows, cols});
                const Tensor b = poisoned(DType::bf16, {rows, cols});
                activation_train(ctx_, a, x, bias, kind, false);
                activation_train(ctx_, b, y, {}, kind, false);
                ASSERT_EQ(download(a), download(b)) << static_cast<int>(kind) << " cols " << cols;
                const Tensor da = upload(DType::f32, {cols}, zeros);
                const Tensor db = upload(DType::f32, {cols}, zeros);
                activation_backward(ctx_, a, da, dy, x, bias, kind);
                activation_backward(ctx_, b, db, dy, y, {}, kind);
                ASSERT_EQ(download(a), download(b)) << static_cast<int>(kind) << " cols " << cols;
                ASSERT_EQ(download(da), download(db)) << static_cast<int>(kind) << " cols " << cols;
            }
        }
    }
}

TEST_F(ActivationBackwardTest, Contract) {
    const Tensor x = poisoned(DType::bf16, {4, 8}), f = poisoned(DType::f32, {4, 8});
    EXPECT_THROW(activation_backward(ctx_, x, x, f, Activation::silu), ContractError);
    EXPECT_THROW(activation_backward(ctx_, x, x, poisoned(DType::bf16, {4, 16}), Activation::silu),
                 ContractError);
    EXPECT_THROW(gated_activation_backward(ctx_, x, x, x, Activation::silu), ContractError);
}

}  // namespace
}  // namespace mr::cuda
