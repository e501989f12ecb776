#include "ops/sample/logprobs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace mr::ops::logprobs_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Logprobs, AreTheLogarithmOfTheSoftmax) {
    // Large logits: the sum must not overflow.
    std::vector<float> logits(300);
    double sum = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        logits[i] = 1000 + 3 * std::sin(static_cast<float>(i));
        sum += std::exp(static_cast<double>(logits[i]) - 1000);
    }
    const DrawnLogprobs got = logprobs_of(logits, 17, 20);
    EXPECT_NEAR(got.logprob, logits[17] - 1000.0 - std::log(sum), 1e-12);
    ASSERT_EQ(got.top.size(), 20u);
    for (std::size_t i = 0; i < got.top.size(); ++i) {
        const auto id = static_cast<std::size_t>(got.top[i].id);
        EXPECT_NEAR(got.top[i].logprob, logits[id] - 1000.0 - std::log(sum), 1e-12);
        if (i > 0) {
            EXPECT_LE(got.top[i].logprob, got.top[i - 1].logprob);
        }
    }
    const DrawnLogprobs all = logprobs_of(logits, 0, 300);
    double whole = 0;
    for (const TokenLogprob& token : all.top) whole += std::exp(token.logprob);
    EXPECT_NEAR(whole, 1, 1e-12);
}

TEST(Logprobs, TiesGoToTheLowestIdAndNoneIsAskedForWithZero) {
    const std::vector<float> logits = {1, 2, 2, 0, 2};
    const DrawnLogprobs got = logprobs_of(logits, 3, 3);
    ASSERT_EQ(got.top.size(), 3u);
    EXPECT_EQ(got.top[0].id, 1);
    EXPECT_EQ(got.top[1].id, 2);
    EXPECT_EQ(got.top[2].id, 4);
    EXPECT_LT(got.logprob, got.top[2].logprob);
    EXPECT_TRUE(logprobs_of(logits, 3, 0).top.empty());
    EXPECT_EQ(logprobs_of(logits, 3, 99).top.size(), 5u);  // as many as there are
}

TEST(Logprobs, OfWhatIsImpossibleAndOfWhatIsCertain) {
    const DrawnLogprobs some = logprobs_of(std::vector<float>{-kInf, 0, -kInf, 0}, 1, 4);
    EXPECT_NEAR(some.logprob, std::log(0.5), 1e-12);
    ASSERT_EQ(some.top.size(), 2u);
    EXPECT_EQ(some.top[1].id, 3);
    const DrawnLogprobs sure = logprobs_of(std::vector<float>{5, kInf, 3, kInf}, 3, 4);
    EXPECT_NEAR(sure.logprob, std::log(0.5), 1e-12);
    EXPECT_EQ(sure.top.size(), 2u);
}

}  // namespace
}  // namespace mr::ops::logprobs_test
