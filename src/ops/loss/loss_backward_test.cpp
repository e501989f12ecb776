#include "ops/loss/loss_backward.h"

#include <cmath>

#include "core/error.h"
#include "ops/simd/slopes.h"
#include "ops/simd/testing.h"

namespace mr::ops {
namespace {

using namespace testing;

double exact_loss(const double* row, std::int64_t n, std::int32_t target) {
    double top = row[0], sum = 0;
    for (std::int64_t i = 0; i < n; ++i) top = std::max(top, row[i]);
    for (std::int64_t i = 0; i < n; ++i) sum += std::exp(row[i] - top);
    return std::log(sum) + top - row[target];
}

// The exponential: 4 roundoffs, and the rounding of its argument, at most its size (terms below
// e^-20 weigh nothing); sums of 8 in f32; then two factors.
constexpr double kBound = (4 + 20 + 10 + 4) * kRoundoff;

TEST(CrossEntropyBackward, MatchesF64) {
    for_each_isa([] {
        for (std::int64_t vocab : {1, 2, 3, 31, 65, 512, 2049}) {
            for (float size : {0.01f, 3.0f, 50.0f}) {
                const std::int64_t tokens = 3;
                const float scale = 0.125f;
                Floats logits = Floats::normal({tokens, vocab}, 3, size, 7);
                const Floats before = logits;
                std::vector<std::int32_t> targets;
                for (std::int64_t t = 0; t < tokens; ++t) {
                    targets.push_back(static_cast<std::int32_t>((t * 7919) % vocab));
                }
                std::vector<float> loss(3, kPoison), loss3(3, kPoison), alone(3, kPoison);
                Floats logits3 = logits;
                Bench one(1), three(3);
                cross_entropy_losses(three, alone.data(), logits, targets.data());
                EXPECT_TRUE(same_bits(logits.values, before.values));
                cross_entropy_backward(one, loss.data(), logits, targets.data(), scale);
                cross_entropy_backward(three, loss3.data(), logits3, targets.data(), scale);
                EXPECT_TRUE(same_bits(loss, loss3));
                EXPECT_TRUE(same_bits(loss, alone));
                EXPECT_TRUE(same_bits(logits.values, logits3.values));
                for (std::int64_t t = 0; t < tokens; ++t) {
                    const auto at = static_cast<std::size_t>(t);
                    const std::vector<double> row(before.values.begin() + t * vocab,
                                                  before.values.begin() + (t + 1) * vocab);
                    const double want = exact_loss(row.data(), vocab, targets[at]);
                    ASSERT_NEAR(loss[at], want, kBound + kRoundoff * want);
                    double norm = 0, top = row[0];
                    for (double x : row) top = std::max(top, x);
                    for (double x : row) norm += std::exp(x - top);
                    for (std::int64_t v = 0; v < vocab; ++v) {
                        // The argument is rounded: if it is large, that dominates the error.
                        const double argument = row[static_cast<std::size_t>(v)] - top;
                        const double p = std::exp(argument) / norm;
                        const double one_hot = v == targets[at] ? 1 : 0;
                        ASSERT_NEAR(
                            logits[t * vocab + v], scale * (p - one_hot),
                            scale * (kBound * (p + one_hot) - argument * kRoundoff * p) + 0x1p-126)
                            << "vocab " << vocab << " size " << size << " at " << v;
                    }
                }
            }
        }
    });
}

TEST(CrossEntropyBackward, GradientIsTheSlope) {
    const std::int64_t vocab = 7;
    Floats logits = Floats::normal({2, vocab}, 9);
    auto exact = widened(logits.values);
    const std::vector<std::int32_t> targets{4, 0};
    const double scale = 0.5;
    const auto loss = [&] {
        return scale * (exact_loss(exact.data(), vocab, 4) + exact_loss(&exact[7], vocab, 0));
    };
    std::vector<float> got(2);
    Bench bench;
    cross_entropy_backward(bench, got.data(), logits, targets.data(), 0.5f);
    for (std::int64_t i = 0; i < logits.size(); ++i) {
        EXPECT_NEAR(logits[i], slope(exact[static_cast<std::size_t>(i)], loss), kBound);
    }
}

TEST(CrossEntropyBackward, RowsThatDoNotCountAndRowsThatAreNotFinite) {
    for_each_isa([] {
        const float inf = std::numeric_limits<float>::infinity();
        const std::int64_t vocab = 37;
        Floats logits({6, vocab}, 0);
        logits[36] = kPoison;              // does not count: 0 for any content
        logits[1 * vocab + 36] = kPoison;  // in the row's tail
        logits[2 * vocab + 3] = inf;
        logits[3 * vocab + 3] = -inf;
        logits[4 * vocab + 5] = 1e30f;  // certain and correct
        const std::vector<std::int32_t> targets{-1, 0, 3, 5, 5, 1};
        std::vector<float> loss(6, kPoison);
        Bench bench;
        cross_entropy_losses(bench, loss.data(), logits, targets.data());
        for (std::size_t t : {0, 4}) EXPECT_EQ(loss[t], 0) << t;
        for (std::size_t t : {1, 2, 3}) EXPECT_TRUE(std::isnan(loss[t])) << t;
        cross_entropy_backward(bench, loss.data(), logits, targets.data(), 2);
        const auto row = [&](std::int64_t t, std::int64_t v) { return logits[t * vocab + v]; };
        EXPECT_EQ(loss[0], 0);
        EXPECT_EQ(loss[4], 0);
        EXPECT_NEAR(loss[5], std::log(37.0), 8 * kRoundoff);
        for (std::int64_t v = 0; v < vocab; ++v) {
            EXPECT_EQ(row(0, v), 0);
            for (std::int64_t t : {1, 2, 3}) EXPECT_TRUE(std::isnan(row(t, v))) << t;
            EXPECT_EQ(row(4, v), 0);
            EXPECT_NEAR(row(5, v), 2 * (1.0 / 37 - (v == 1 ? 1 : 0)), 16 * kRoundoff);
        }
        for (std::size_t t : {1, 2, 3}) EXPECT_TRUE(std::isnan(loss[t])) << t;
    });
}

TEST(CrossEntropyBackward, LedgerAndContract) {
    Floats logits({3, 11}, 0);
    std::vector<float> loss(3);
    const std::vector<std::int32_t> targets{0, 10, -1}, wild{0, 11, 0};
    Bench bench;
    cross_entropy_backward(bench, loss.data(), logits, targets.data(), 1);
    expect_record(bench.ledger.op(OpKind::loss), 1, 132 + 12, 132 + 12, 5 * 33);
    Bench losses;
    cross_entropy_losses(losses, loss.data(), logits, targets.data());
    expect_record(losses.ledger.op(OpKind::loss), 1, 132 + 12, 12, 4 * 33);
    EXPECT_THROW(cross_entropy_losses(losses, loss.data(), logits, wild.data()), ContractError);
    EXPECT_THROW(cross_entropy_backward(bench, loss.data(), logits, wild.data(), 1), ContractError);
    EXPECT_THROW(cross_entropy_backward(bench, loss.data(), logits, nullptr, 1), ContractError);
}

// For rows with weights and a token without probability: the loss without that column, times the
// weight.
TEST(MaskedCrossEntropy, IsTheLossWithoutTheMask) {
    for_each_isa([] {
        const std::int64_t tokens = 4, vocab = 67;
        const float scale = 0.25f;
        for (const std::int32_t mask : {0, 31, 66}) {
            Floats logits = Floats::normal({tokens, vocab}, 5, 3), without({tokens, vocab - 1});
            // Any content.
            logits[mask] = 80, logits[vocab + mask] = NAN;
            logits[2 * vocab + mask] = INFINITY, logits[3 * vocab + mask] = -INFINITY;
            const Floats before = logits;
            std::vector<std::int32_t> targets, shorter;
            for (std::int64_t t = 0; t < tokens; ++t) {
                const auto target = static_cast<std::int32_t>((mask + 1 + t * 5) % vocab);
                targets.push_back(t == 2 ? -1 : target);
                shorter.push_back(t == 2 ? -1 : target - (target > mask ? 1 : 0));
                for (std::int64_t v = 0, to = 0; v < vocab; ++v) {
                    if (v != mask) without[t * (vocab - 1) + to++] = logits[t * vocab + v];
                }
            }
            const std::vector<float> weights{1.0f, 4.0f, 2.0f, 1.25f};
            const MaskedLoss of{weights.data(), mask};
            std::vector<float> loss(4, kPoison), alone(4, kPoison), want(4, kPoison);
            Bench bench;
            masked_cross_entropy(bench, alone.data(), logits, targets.data(), of, std::nullopt);
            EXPECT_TRUE(same_bits(logits.values, before.values));
            masked_cross_entropy(bench, loss.data(), logits, targets.data(), of, scale);
            EXPECT_TRUE(same_bits(loss, alone));
            cross_entropy_backward(bench, want.data(), without, shorter.data(), scale);
            for (std::int64_t t = 0; t < tokens; ++t) {
                const auto at = static_cast<std::size_t>(t);
                ASSERT_NEAR(loss[at], weights[at] * want[at],
                            kBound * (1 + weights[at] * want[at]));
                for (std::int64_t v = 0, from = 0; v < vocab; ++v) {
                    if (v == mask) {
                        ASSERT_EQ(logits[t * vocab + v], 0);
                        continue;
                    }
                    const double slope = weights[at] * without[t * (vocab - 1) + from++];
                    ASSERT_NEAR(logits[t * vocab + v], slope, 2 * kBound * scale * weights[at]);
                }
            }
        }
    });
}

TEST(MaskedCrossEntropy, NoTargetIsTheMask) {
    Floats logits = Floats::normal({1, 5}, 5);
    const float weight = 1;
    float loss = 0;
    const std::int32_t target = 3;
    Bench bench;
    for (const std::int32_t mask : {3, 5, -1}) {
        EXPECT_THROW(masked_cross_entropy(bench, &loss, logits, &target, {&weight, mask}, 1.0f),
                     ContractError);
    }
}

}  // namespace
}  // namespace mr::ops
