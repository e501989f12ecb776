#include "ops/optimizer/adamw.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/half.h"
#include "ops/simd/testing.h"

namespace mr::ops::adamw_test {
namespace {

using namespace testing;

// The step in f64, as adamw.h writes it.
struct Exact {
    explicit Exact(const Floats& params)
        : p(params.values.begin(), params.values.end()), m(p.size()), v(p.size()) {}
    void step(const AdamW& with, const std::vector<float>& grads, std::int64_t decayed) {
        double squares = 0;
        for (float g : grads) squares += double{g} * g;
        const double norm = std::sqrt(squares);
        const double b1 = with.beta1, b2 = with.beta2, lr = with.lr;
        const double scale = with.clip > 0 ? std::min(1.0, with.clip / norm) : 1.0;
        const auto t = static_cast<double>(with.step);
        for (std::size_t i = 0; i < p.size(); ++i) {
            const double g = grads[i] * scale;
            m[i] = b1 * m[i] + (1 - b1) * g;
            v[i] = b2 * v[i] + (1 - b2) * g * g;
            const double decay = static_cast<std::int64_t>(i) < decayed ? with.weight_decay : 0;
            p[i] -= lr * (m[i] / (1 - std::pow(b1, t)) /
                              (std::sqrt(v[i] / (1 - std::pow(b2, t))) + double{with.eps}) +
                          decay * p[i]);
        }
    }
    std::vector<double> p, m, v;
};

// For blocks of 5 elements, which no size here is a multiple of.
double square_sum(const Context& ctx, Floats& x) {
    std::vector<std::int64_t> cuts;
    const auto count = static_cast<std::int64_t>(x.size());
    for (std::int64_t at = 0; at < count; at += 5) cuts.push_back(at);
    cuts.push_back(count);
    std::vector<double> squares(cuts.size() - 1);
    block_squares(ctx, squares, x, cuts);
    double sum = 0;
    for (const double one : squares) sum += one;
    return sum;
}

struct State {
    explicit State(const Floats& params, int threads = 1)
        : p(params), m({p.size()}, 0), v({p.size()}, 0), bench(threads) {}
    double step(const AdamW& with, Floats& grads, std::int64_t decayed) {
        double squares = -1;
        squares = square_sum(bench, grads);
        adamw(bench, with, p, grads, m, v, decayed, &squares);
        return squares;
    }
    Floats p, m, v;
    Bench bench;
};

TEST(AdamW, SeveralStepsMatchF64) {
    for (const std::int64_t count : {1, 7, 1000}) {
        for (const float clip : {0.0f, 1e-2f, 1e9f}) {
            const std::int64_t decayed = count / 3;
            Floats params = Floats::normal({count}, 1, 0.1f);
            State state(params);
            Exact exact(params);
            AdamW with;
            with.clip = clip;
            constexpr int kSteps = 6;
            for (int step = 1; step <= kSteps; ++step) {
                with.step = step;
                with.lr = 1e-2f / static_cast<float>(step);
                Floats grads = Floats::normal({count}, static_cast<unsigned>(10 + step), 0.3f);
                state.step(with, grads, decayed);
                exact.step(with, grads.values, decayed);
            }
            for (std::int64_t i = 0; i < count; ++i) {
                const auto at = static_cast<std::size_t>(i);
                // A step rounds a parameter once, and moves it by at most lr * (5 + decay): with
                // these betas |m| / sqrt(v) stays below 5 once corrected. A move errs by some 20
                // roundoffs of that.
                const double bound = kSteps * kRoundoff * (std::abs(exact.p[at]) + 0.1) +
                                     20 * kRoundoff * 5 * 1e-2 * 2.5;
                ASSERT_NEAR(state.p[i], exact.p[at], bound) << "clip " << clip;
                // Moments: sums of terms of either sign, none beyond 1.2 (4 deviations).
                const double g = clip == 1e-2f ? 1e-2 : 1.2;
                ASSERT_NEAR(state.m[i], exact.m[at], 6 * kSteps * kRoundoff * g);
                ASSERT_NEAR(state.v[i], exact.v[at], 6 * kSteps * kRoundoff * exact.v[at] + 1e-30);
            }
        }
    }
}

// Decay is lr * weight_decay * p, however small compared with 1.
TEST(AdamW, SmallDecayIsNotLost) {
    Floats params({2}, 1), grads({2}, 0);
    State state(params);
    AdamW with;
    with.lr = 1e-5f;
    with.weight_decay = 0.1f;
    for (int step = 1; step <= 4; ++step) {
        with.step = step;
        state.step(with, grads, 1);
    }
    EXPECT_NEAR(state.p[0], 1 - 4e-6, 4 * kRoundoff);
    EXPECT_EQ(state.p[1], 1);  // not decayed
}

TEST(AdamW, NothingChangesWhereGradientsAreNotFinite) {
    const float inf = std::numeric_limits<float>::infinity();
    for (const float bad : {kPoison, inf, -inf}) {
        Floats params = Floats::normal({40}, 1), grads = Floats::normal({40}, 2);
        State state(params);
        AdamW with;
        with.clip = 1;
        state.step(with, grads, 20);
        const Floats p = state.p, m = state.m, v = state.v;
        grads[39] = bad;
        with.step = 2;
        EXPECT_FALSE(std::isfinite(state.step(with, grads, 20)));
        EXPECT_TRUE(same_bits(state.p.values, p.values));
        EXPECT_TRUE(same_bits(state.m.values, m.values));
        EXPECT_TRUE(same_bits(state.v.values, v.values));
    }
}

TEST(AdamW, ThreadsChangeNoBits) {
    const std::int64_t count = 100003;
    Floats params = Floats::normal({count}, 1), grads = Floats::normal({count}, 2);
    AdamW with;
    with.clip = 0.5f;
    State one(params, 1);
    const double squares = one.step(with, grads, 5001);
    double exact = 0;
    for (float g : grads.values) exact += double{g} * g;
    EXPECT_NEAR(squares, exact, 1e-16 * count * exact);
    for (const int threads : {2, 3}) {
        State more(params, threads);
        EXPECT_EQ(more.step(with, grads, 5001), squares);
        EXPECT_TRUE(same_bits(more.p.values, one.p.values));
        EXPECT_TRUE(same_bits(more.m.values, one.m.values));
        EXPECT_TRUE(same_bits(more.v.values, one.v.values));
    }
}

TEST(AdamW, RoundingByChanceIsFairAndOneOfTwoNeighbours) {
    const auto round = [](float value, std::uint32_t draw) {
        return bf16_to_f32(stochastic_bf16(value, draw));
    };
    for (const float value : {1.0f, -1.0f, 0.3f, -7.77e-5f, 3.1e30f, 0x1.8p-130f, 0.0f}) {
        const float down = round(value, 0), up = round(value, 0xffff);
        EXPECT_LE(std::abs(down), std::abs(value));
        EXPECT_GE(std::abs(up), std::abs(value));
        // Over all draws the mean is the value itself.
        double sum = 0;
        for (std::uint32_t draw = 0; draw < 65536; ++draw) {
            const float got = round(value, draw | 0xabcd0000u);
            ASSERT_TRUE(got == down || got == up) << value;
            sum += double{got};
        }
        EXPECT_NEAR(sum / 65536, value, 1e-15 * std::abs(value)) << value;
    }
    const float inf = std::numeric_limits<float>::infinity();
    EXPECT_EQ(round(inf, 0xffff), inf);
    EXPECT_EQ(round(-inf, 0xffff), -inf);
    EXPECT_TRUE(std::isnan(round(std::numeric_limits<float>::quiet_NaN(), 0xffff)));
}

// Steps of a quarter of bf16's last bit: rounding to nearest would lose all of them.
TEST(AdamW, Bf16MastersKeepSmallStepsOnAverage) {
    const std::int64_t count = 40000, decayed = 30001;
    Floats params({count}, 1.5f), grads({count}, 1.0f);
    AdamW with;
    with.lr = 0x1p-9f;  // bf16's last bit is 2^-7 at 1.5
    with.weight_decay = 0;
    with.bf16_masters = true;
    with.seed = 3;
    State state(params, 2), f32(params);
    AdamW plain = with;
    plain.bf16_masters = false;
    constexpr int kSteps = 8;
    for (int step = 1; step <= kSteps; ++step) {
        with.step = plain.step = step;
        state.step(with, grads, decayed);
        f32.step(plain, grads, decayed);
        double sum = 0;
        for (std::int64_t i = 0; i < decayed; ++i) {
            ASSERT_EQ(state.p[i], bf16_to_f32(f32_to_bf16(state.p[i]))) << i;
            sum += double{state.p[i]};
        }
        // A step's rounding has a deviation of at most half of 2^-7; six deviations of the mean.
        EXPECT_NEAR(sum / decayed, f32.p[0], 6 * 0x1p-8 * std::sqrt(step / double(decayed)));
        for (std::int64_t i = decayed; i < count; ++i) ASSERT_EQ(state.p[i], f32.p[i]) << i;
    }
    EXPECT_TRUE(same_bits(state.m.values, f32.m.values));
    EXPECT_NE(*std::min_element(&state.p[0], &state.p[0] + decayed),
              *std::max_element(&state.p[0], &state.p[0] + decayed));
}

TEST(AdamW, TheChancesOfAStepAreItsOwnAndRepeat) {
    const std::int64_t count = 10007;
    Floats params = Floats::normal({count}, 1), grads = Floats::normal({count}, 2);
    AdamW with;
    with.bf16_masters = true;
    with.seed = 5;
    const auto after = [&](int threads) {
        State state(params, threads);
        state.step(with, grads, count - 7);
        return state.p.values;
    };
    const auto once = after(1);
    EXPECT_TRUE(same_bits(after(3), once));
    with.seed = 6;
    EXPECT_FALSE(same_bits(after(1), once));
    with.seed = 5;
    EXPECT_NE(with.draws(0), with.draws(1));
    const auto first = with.draws(7);
    with.step = 2;
    EXPECT_NE(with.draws(7), first);
}

TEST(AdamW, LedgerAndContract) {
    Floats params({10}, 1), grads({10}, 1), few({9}, 0);
    State state(params);
    AdamW with;
    state.step(with, grads, 5);
    expect_record(state.bench.ledger.op(OpKind::optimizer), 2, 40 + 160, 16 + 120, 20 + 140);
    const double squares = 10;
    const auto run = [&](Tensor g, std::int64_t decayed, std::int64_t step, const double* sum) {
        with.step = step;
        adamw(state.bench, with, state.p, g, state.m, state.v, decayed, sum);
    };
    EXPECT_THROW(run(few, 5, 1, &squares), ContractError);
    EXPECT_THROW(run(grads, 11, 1, &squares), ContractError);
    EXPECT_THROW(run(grads, 5, 0, &squares), ContractError);
    EXPECT_THROW(run(grads, 5, 1, nullptr), ContractError);
    EXPECT_THROW(run(grads, 5, 1, nullptr), ContractError);
    with.first = 2;  // half of a draw
    EXPECT_THROW(run(grads, 5, 1, &squares), ContractError);
    std::vector<double> two(2);
    const std::vector<std::int64_t> cuts{0, 4, 11}, one{0, 4};
    EXPECT_THROW(block_squares(state.bench, two, grads, cuts), ContractError);
    EXPECT_THROW(block_squares(state.bench, two, grads, one), ContractError);
    EXPECT_THROW(sum_of(state.bench, grads, few, grads), ContractError);
}

// A step over parts equals the step over all, also with stochastic rounding.
TEST(AdamW, PartsHaveTheBitsOfTheWhole) {
    constexpr std::int64_t kCount = 1000, kDecayed = 640;
    for (const bool bf16 : {false, true}) {
        AdamW with;
        with.clip = 0.5f;
        with.bf16_masters = bf16;
        with.seed = 5;
        const Floats params = Floats::normal({kCount}, 1, 0.1f);
        Floats grads = Floats::normal({kCount}, 2, 1.0f);
        State whole(params), parts(params, 2);
        for (with.step = 1; with.step <= 3; ++with.step) {
            with.first = 0;
            const double squares = whole.step(with, grads, kDecayed);
            for (const auto& [begin, end] : {std::pair{0, 300}, {300, 640}, {640, 1000}}) {
                with.first = begin;
                const auto of = [&](Floats& x) {
                    return Tensor(x.values.data() + begin, DType::f32, {end - begin});
                };
                const std::int64_t decayed =
                    std::clamp<std::int64_t>(kDecayed - begin, 0, end - begin);
                adamw(parts.bench, with, of(parts.p), of(grads), of(parts.m), of(parts.v), decayed,
                      &squares);
            }
        }
        EXPECT_EQ(whole.p.values, parts.p.values);
        EXPECT_EQ(whole.m.values, parts.m.values);
        EXPECT_EQ(whole.v.values, parts.v.values);
    }
}

TEST(AdamW, SumsOfTwo) {
    Floats a = Floats::normal({40001}, 1, 1.0f), b = Floats::normal({40001}, 2, 1.0f),
           to({40001}, 0);
    Bench bench(2);
    sum_of(bench, to, a, b);
    for (std::size_t i = 0; i < to.values.size(); ++i)
        ASSERT_EQ(to.values[i], a.values[i] + b.values[i]);
    sum_of(bench, a, a, b);
    EXPECT_EQ(a.values, to.values);
}

}  // namespace
}  // namespace mr::ops::adamw_test
