#include "ops/optimizer/adamw_cuda.h"

#include <cmath>

#include "core/cuda/testing.h"
#include "core/error.h"

namespace mr::cuda {
namespace {

class AdamWTest : public GpuTest {
  protected:
    void SetUp() override {
        GpuTest::SetUp();
        if (!has_gpu()) return;
        give_scratch();
    }
    void give_scratch() {
        const std::size_t bytes = sum_scratch_bytes();
        ctx_.scratch = {memory_.array<std::byte>(bytes), bytes};
        stream_->fill(ctx_.scratch.data(), 0xff, bytes);
    }
    // For blocks of 100 elements.
    void square_sum(double* to, Tensor x) {
        std::vector<std::int64_t> cuts;
        for (std::int64_t at = 0; at < x.shape.count(); at += 100) cuts.push_back(at);
        const auto blocks = std::ssize(cuts);
        cuts.push_back(x.shape.count());
        double* const squares = memory_.array<double>(static_cast<std::size_t>(blocks));
        block_squares(ctx_, squares, x, upload(std::span<const std::int64_t>(cuts)), blocks);
        sum_parts(ctx_, to, squares, blocks);
    }
    double* number(double value) { return upload(std::span<const double>(&value, 1)); }
};

TEST_F(AdamWTest, SumsAreThoseOfF64) {
    for (const std::int64_t count : {1, 2, 255, 1000, 262144, 262145, 1048576 + 77, 3000001}) {
        memory_.reset();
        give_scratch();
        std::vector<float> values = normal(static_cast<std::size_t>(count));
        values[0] = 3e20f;  // its square exceeds f32
        const Tensor x = upload(DType::f32, {count}, values);
        double squares = 0, sum = 0, size = 0;
        for (const float v : values) {
            squares += double{v} * double{v};
            sum += double{v};
            size += std::abs(double{v});
        }
        double* at = number(5.0);
        double* at_again = number(-1.0);
        double* to = number(1000.0);
        square_sum(at, x);
        square_sum(at_again, x);
        add_sum(ctx_, to, x);
        const double roundoff = 0x1p-53 * static_cast<double>(count);
        EXPECT_NEAR(download(at, 1)[0], squares, roundoff * squares) << count;
        EXPECT_EQ(download(at, 1)[0], download(at_again, 1)[0]) << count;
        EXPECT_NEAR(download(to, 1)[0], sum + 1000, roundoff * (size + 1000)) << count;
    }
}

// Three steps, some of which clip; every third size is not a multiple of four.
TEST_F(AdamWTest, StepsAreThoseOfF64) {
    for (const std::int64_t count : {1, 7, 1024, 4096, 10003}) {
        for (const bool clip : {false, true}) {
            memory_.reset();
            give_scratch();
            const auto n = static_cast<std::size_t>(count);
            const std::int64_t decayed = count % 4 == 0 ? count / 2 : count / 3;
            std::vector<float> p = normal(n), m(n), v(n);
            const Tensor params = upload(DType::f32, {count}, p);
            const Tensor first = upload(DType::f32, {count}, m);
            const Tensor second = upload(DType::f32, {count}, v);
            const Tensor copy = poisoned(DType::bf16, {count});
            std::vector<double> want(p.begin(), p.end()), want_m(n), want_v(n);
            for (int step = 1; step <= 3; ++step) {
                std::vector<float> g = normal(n, 0.1f);
                const Tensor grads = upload(DType::f32, {count}, g);
                double squares = 0;
                for (const float each : g) squares += double{each} * double{each};
                double* sum = number(-1);
                square_sum(sum, grads);
                ops::AdamW with;
                with.lr = 0.01f * static_cast<float>(step);
                with.clip = clip ? static_cast<float>(std::sqrt(squares) * 0.7) : 0;
                with.step = step;
                adamw(ctx_, with, params, copy, grads, first, second, decayed, sum);
                for (const float left : download(grads)) ASSERT_EQ(left, 0);
                const double scale = clip ? double{with.clip} / std::sqrt(squares) : 1;
                for (std::size_t i = 0; i < n; ++i) {
                    const double b1 = with.beta1, b2 = with.beta2, each = double{g[i]} * scale;
                    want_m[i] = b1 * want_m[i] + (1 - b1) * each;
                    want_v[i] = b2 * want_v[i] + (1 - b2) * each * each;
                    const double up = want_m[i] / (1 - std::pow(b1, step));
                    const double down =
                        std::sqrt(want_v[i] / (1 - std::pow(b2, step))) + double{with.eps};
                    const double decay =
                        static_cast<std::int64_t>(i) < decayed ? double{with.weight_decay} : 0.0;
                    want[i] -= double{with.lr} * (up / down + decay * want[i]);
                }
                const std::vector<float> got = download(params), got_m = download(first),
                                         got_v = download(second), got_copy = download(copy);
                // Some ten roundoffs per step of what a step adds, and the error of 1 - beta in
                // f32, 2^-24 / (1 - beta): the moments' relative error is less than 2^-24 / 0.05.
                for (std::size_t i = 0; i < n; ++i) {
                    const double relative = 0x1p-24 * 64 * step;
                    ASSERT_NEAR(got_m[i], want_m[i], relative * (std::abs(want_m[i]) + 0.1)) << i;
                    ASSERT_NEAR(got_v[i], want_v[i], relative * (want_v[i] + 1e-3)) << i;
                    ASSERT_NEAR(got[i], want[i],
                                relative * (std::abs(want[i]) + 0.1 * double{with.lr} * 100))
                        << count << " step " << step << " at " << i;
                    ASSERT_EQ(got_copy[i], bf16_to_f32(f32_to_bf16(got[i]))) << i;
                }
            }
        }
    }
}

// bf16 masters: moments and the other parameters as with f32 ones; each master is one of the two
// bf16 next to the f64 result, the one that the step's own draw selects.
TEST_F(AdamWTest, Bf16MastersAreRoundedByTheirDraws) {
    for (const std::int64_t count : {8, 11, 4096, 20003}) {
        memory_.reset();
        give_scratch();
        const auto n = static_cast<std::size_t>(count);
        const std::int64_t decayed = count % 4 == 0 ? count / 2 : count / 2 + 1;
        const auto d = static_cast<std::size_t>(decayed);
        std::vector<float> start = normal(n), g = normal(n, 0.1f);
        for (std::size_t i = 0; i < d; ++i) start[i] = bf16_to_f32(f32_to_bf16(start[i]));
        ops::AdamW with;
        with.lr = 1e-3f;
        with.step = 4;
        with.seed = 9;
        // upload() rounds its argument.
        const auto put = [&](DType dtype, std::vector<float> values) {
            return upload(dtype, {static_cast<std::int64_t>(values.size())}, values);
        };
        const auto moment = [&] { return put(DType::f32, std::vector<float>(n)); };
        // The same step with f32 masters.
        const Tensor all = put(DType::f32, start);
        Tensor m = moment(), v = moment(), grads = put(DType::f32, g);
        double* sum = number(-1);
        square_sum(sum, grads);
        adamw(ctx_, with, all, {}, grads, m, v, decayed, sum);
        const std::vector<float> want = download(all), want_m = download(m), want_v = download(v);

        with.bf16_masters = true;
        const std::vector<float> tail(start.begin() + decayed, start.end());
        std::vector<std::vector<float>> runs;
        for (int run = 0; run < 2; ++run) {
            const Tensor copy = put(DType::bf16, start);
            const std::vector<float> before = download(copy);
            const Tensor rest = put(DType::f32, tail);
            m = moment();
            v = moment();
            grads = put(DType::f32, g);
            adamw(ctx_, with, rest, copy, grads, m, v, decayed, sum);
            for (const float left : download(grads)) ASSERT_EQ(left, 0);
            EXPECT_EQ(download(m), want_m);
            EXPECT_EQ(download(v), want_v);
            EXPECT_EQ(download(rest), std::vector<float>(want.begin() + decayed, want.end()));
            runs.push_back(download(copy));
            for (std::size_t i = 0; i < n; ++i) {
                const std::uint32_t draw = with.draws(static_cast<std::int64_t>(i / 4))[i % 4];
                const float rounded =
                    i < d ? bf16_to_f32(ops::stochastic_bf16(want[i], draw)) : before[i];
                ASSERT_EQ(runs.back()[i], rounded) << count << " at " << i;
            }
        }
        EXPECT_EQ(runs[0], runs[1]);
        // A skipped step changes nothing.
        double* none = number(NAN);
        const Tensor copy = put(DType::bf16, start);
        const Tensor rest = put(DType::f32, tail);
        const std::vector<float> before = download(copy);
        adamw(ctx_, with, rest, copy, grads, m, v, decayed, none);
        EXPECT_EQ(download(copy), before);
        EXPECT_EQ(download(rest), tail);
        EXPECT_THROW(adamw(ctx_, with, all, copy, grads, m, v, decayed, sum), ContractError);
        EXPECT_THROW(adamw(ctx_, with, rest, {}, grads, m, v, decayed, sum), ContractError);
    }
}

TEST_F(AdamWTest, AGradientThatIsNotFiniteChangesNothing) {
    for (const std::int64_t count : {16, 13}) {
        for (const float bad : {NAN, INFINITY}) {
            memory_.reset();
            give_scratch();
            const auto n = static_cast<std::size_t>(count);
            std::vector<float> p = normal(n), m = normal(n), v(n, 0.5f), g = normal(n), old = p;
            g[5] = bad;
            const Tensor params = upload(DType::f32, {count}, p),
                         grads = upload(DType::f32, {count}, g),
                         first = upload(DType::f32, {count}, m),
                         second = upload(DType::f32, {count}, v),
                         copy = upload(DType::bf16, {count}, old);
            double* sum = number(0);
            square_sum(sum, grads);
            adamw(ctx_, {}, params, copy, grads, first, second, 8, sum);
            EXPECT_EQ(download(params), p);
            EXPECT_EQ(download(first), m);
            EXPECT_EQ(download(second), v);
            EXPECT_EQ(download(copy), old);
            for (const float left : download(grads)) EXPECT_EQ(left, 0);
        }
    }
}

TEST_F(AdamWTest, RoundsAndRefuses) {
    for (const std::int64_t count : {4, 5, 4096, 5001}) {
        std::vector<float> values = normal(static_cast<std::size_t>(count));
        const Tensor from = upload(DType::f32, {count}, values);
        const Tensor to = poisoned(DType::bf16, {count});
        round_to_bf16(ctx_, to, from);
        const std::vector<float> got = download(to);
        for (std::size_t i = 0; i < got.size(); ++i) {
            ASSERT_EQ(got[i], bf16_to_f32(f32_to_bf16(values[i])));
        }
    }
    const Tensor four = poisoned(DType::f32, {4}), five = poisoned(DType::f32, {5});
    double* sum = number(1);
    EXPECT_THROW(adamw(ctx_, {}, four, {}, five, four, four, 0, sum), ContractError);
    EXPECT_THROW(adamw(ctx_, {}, four, {}, four, four, four, 5, sum), ContractError);
    EXPECT_THROW(adamw(ctx_, {}, four, four, four, four, four, 0, sum), ContractError);
    EXPECT_THROW(round_to_bf16(ctx_, four, four), ContractError);
    ctx_.scratch = {};
    EXPECT_THROW(sum_parts(ctx_, sum, sum, 1), ContractError);
    EXPECT_THROW(sum_of(ctx_, four, five, four), ContractError);
}

TEST_F(AdamWTest, SumsOfTwo) {
    for (const std::int64_t count : {1, 4, 1027, 40000}) {
        memory_.reset();
        std::vector<float> av = normal(static_cast<std::size_t>(count)),
                           bv = normal(static_cast<std::size_t>(count));
        const Tensor a = upload(DType::f32, {count}, av), b = upload(DType::f32, {count}, bv);
        const Tensor to = poisoned(DType::f32, {count});
        sum_of(ctx_, to, a, b);
        sum_of(ctx_, b, a, b);
        const std::vector<float> got = download(to);
        for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], av[i] + bv[i]);
        EXPECT_EQ(download(b), got);
    }
}

// A part of the parameters has the same bits as in the whole.
TEST_F(AdamWTest, PartsHaveTheBitsOfTheWhole) {
    constexpr std::int64_t kCount = 4096, kDecayed = 2048;
    for (const bool masters : {false, true}) {
        memory_.reset();
        give_scratch();
        std::vector<float> p = normal(kCount), g = normal(kCount), zeros(kCount);
        ops::AdamW with;
        with.clip = 0.5f;
        with.bf16_masters = masters;
        with.seed = 3;
        double* const sum = number(900.0);
        std::vector<float> got[2][3];
        for (const bool in_parts : {false, true}) {
            const Tensor params = upload(DType::f32, {kCount}, p);
            std::vector<float> rounded = p;  // upload() rounds its argument
            const Tensor copy = upload(DType::bf16, {kCount}, rounded);
            const Tensor grads = upload(DType::f32, {kCount}, g);
            const Tensor m = upload(DType::f32, {kCount}, zeros),
                         v = upload(DType::f32, {kCount}, zeros);
            const auto cut = [](Tensor t, std::int64_t begin, std::int64_t end) {
                const std::size_t bytes = dtype_bytes(t.dtype, static_cast<std::size_t>(begin));
                return Tensor(static_cast<std::byte*>(t.data) + bytes, t.dtype, {end - begin});
            };
            for (std::int64_t begin = 0; begin < kCount;) {
                const std::int64_t end = in_parts ? begin + 1024 : kCount;
                const std::int64_t decayed =
                    std::clamp<std::int64_t>(kDecayed - begin, 0, end - begin);
                with.first = begin;
                const Tensor whole = cut(params, std::max(begin, masters ? kDecayed : 0),
                                         std::max(end, masters ? kDecayed : 0));
                adamw(ctx_, with, whole, cut(copy, begin, end), cut(grads, begin, end),
                      cut(m, begin, end), cut(v, begin, end), decayed, sum);
                begin = end;
            }
            got[in_parts][0] = download(params);
            got[in_parts][1] = download(copy);
            got[in_parts][2] = download(v);
        }
        for (int i = 0; i < 3; ++i) EXPECT_EQ(got[0][i], got[1][i]) << masters << " " << i;
    }
}

}  // namespace
}  // namespace mr::cuda
