#include "ops/denoise/denoise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"

namespace mr::ops {
namespace {

struct Row {
    std::vector<float> logits;
    ThreadPool pool{1};
    std::vector<std::byte> scratch{};

    Guess guess(const SampleParams& sampling, const DenoiseParams& how, std::int32_t mask,
                std::uint64_t position = 0, std::uint64_t step = 0, std::int32_t truth = -1) {
        scratch.resize(sample_scratch_bytes(std::ssize(logits)));
        Context ctx;
        ctx.pool = &pool;
        ctx.scratch = scratch;
        std::vector<float> copy = logits;
        return ops::guess(ctx, Tensor(copy.data(), DType::f32, {std::ssize(copy)}), sampling, how,
                          mask, position, step, truth);
    }
};

SampleParams plain() {
    SampleParams out;
    out.temperature = 1;
    out.top_k = 0;
    out.top_p = 1;
    out.min_p = 0;
    return out;
}

std::vector<int> chosen(const DenoiseParams& how, const std::vector<Guess>& guesses, int n) {
    std::vector<std::uint8_t> settled(guesses.size(), 2);
    const int count = choose(how, guesses, n, settled);
    std::vector<int> out;
    for (std::size_t i = 0; i < settled.size(); ++i) {
        EXPECT_LT(settled[i], 2);
        if (settled[i]) out.push_back(static_cast<int>(i));
    }
    EXPECT_EQ(std::ssize(out), count);
    return out;
}

TEST(Denoise, StatisticsAreThoseOfTheWholeDistributionWithoutTheMask) {
    // Probabilities 0.5, 0.25, 0.25 without the mask, which has by far the largest logit.
    Row row{{std::log(0.5f), 9.0f, std::log(0.25f), std::log(0.25f)}};
    const DenoiseParams how{.remask = Remask::entropy};
    const Guess got = row.guess(plain(), how, 1, 3, 0, 2);
    EXPECT_EQ(got.id, 2);
    EXPECT_NEAR(got.confidence, 0.5f, 1e-6);
    EXPECT_NEAR(got.entropy, 1.5f * std::log(2.0f), 1e-6);
    EXPECT_NEAR(got.logprob, std::log(0.25f), 1e-6);
    for (std::uint64_t step = 0; step < 200; ++step) {
        EXPECT_NE(row.guess(plain(), how, 1, 3, step).id, 1);
    }
}

TEST(Denoise, FiltersAndTemperatureDoNotChangeConfidence) {
    Row row{{1.0f, 0.5f, 0.25f, 0.0f, -1.0f}};
    const float confidence = row.guess(plain(), {}, 4).confidence;
    SampleParams one = plain();
    one.top_k = 1;
    EXPECT_EQ(row.guess(one, {}, 4).confidence, confidence);
    SampleParams greedy = plain();
    greedy.temperature = 0;
    const Guess got = row.guess(greedy, {}, 4);
    EXPECT_EQ(got.id, 0);
    EXPECT_EQ(got.confidence, confidence);
    EXPECT_TRUE(std::isfinite(got.logprob));
    // The published rule: the drawn token's share of what the filters left.
    EXPECT_EQ(row.guess(one, {.drawn = true}, 4).confidence, 1.0f);
}

TEST(Denoise, DrawsAreKeyedBySeedPositionAndStep) {
    Row row{std::vector<float>(50, 0.0f)};
    const auto draws = [&](std::uint64_t seed, std::uint64_t position) {
        std::vector<std::int32_t> out;
        SampleParams sampling = plain();
        sampling.seed = seed;
        for (std::uint64_t step = 0; step < 20; ++step) {
            out.push_back(row.guess(sampling, {}, 49, position, step).id);
        }
        return out;
    };
    EXPECT_EQ(draws(1, 2), draws(1, 2));
    EXPECT_NE(draws(1, 2), draws(1, 3));
    EXPECT_NE(draws(1, 2), draws(2, 2));
    const std::vector<std::int32_t> steps = draws(1, 2);
    EXPECT_NE(std::vector<std::int32_t>(20, steps[0]), steps);
}

TEST(Denoise, RowsThatAreNotNumbersAreRefused) {
    Row nan{{0.0f, std::nanf(""), 0.0f}};
    EXPECT_THROW(nan.guess(plain(), {}, 2), Error);
    const float inf = std::numeric_limits<float>::infinity();
    Row only_mask{{-inf, -inf, 1.0f}};
    EXPECT_THROW(only_mask.guess(plain(), {}, 2), Error);
    Row infinite{{inf, 0.0f, inf, 1.0f}};
    const Guess got = infinite.guess(plain(), {.remask = Remask::entropy}, 3);
    EXPECT_EQ(got.confidence, 0.5f);
    EXPECT_NEAR(got.entropy, std::log(2.0f), 1e-6);
}

TEST(Denoise, TheScheduleSumsToTheBlock) {
    for (int block = 1; block <= 40; ++block) {
        for (int steps = 1; steps <= block; ++steps) {
            int sum = 0;
            for (int pass = 0; pass < steps; ++pass) {
                const int n = scheduled(block, steps, pass);
                EXPECT_GE(n, 1);
                EXPECT_LE(pass > 0 ? n : 0, scheduled(block, steps, std::max(pass - 1, 0)));
                sum += n;
            }
            EXPECT_EQ(sum, block);
        }
        EXPECT_EQ(scheduled(block, 0, 3), 1);
    }
}

TEST(Denoise, EveryStrategyChoosesByItsRule) {
    const auto guess = [](float confidence, float entropy) {
        return Guess{.confidence = confidence, .entropy = entropy};
    };
    const std::vector<Guess> g = {guess(0.2f, 2.0f), guess(0.95f, 0.1f), guess(0.5f, 1.0f),
                                  guess(0.95f, 0.2f), guess(0.91f, 0.3f)};
    EXPECT_EQ(chosen({.remask = Remask::sequential}, g, 2), (std::vector{0, 1}));
    EXPECT_EQ(chosen({.remask = Remask::fixed}, g, 1), (std::vector{1}));  // the earlier of a tie
    EXPECT_EQ(chosen({.remask = Remask::fixed}, g, 4), (std::vector{1, 2, 3, 4}));
    EXPECT_EQ(chosen({.remask = Remask::dynamic, .threshold = 0.9f}, g, 1), (std::vector{1, 3, 4}));
    EXPECT_EQ(chosen({.remask = Remask::dynamic, .threshold = 0.95f}, g, 1), (std::vector{1}));
    EXPECT_EQ(chosen({.remask = Remask::dynamic, .threshold = 0.99f}, g, 4),
              (std::vector{1, 2, 3, 4}));
    EXPECT_EQ(chosen({.remask = Remask::entropy, .entropy_bound = 0.35f}, g, 1),
              (std::vector{1, 3}));
    EXPECT_EQ(chosen({.remask = Remask::entropy, .entropy_bound = 0.0f}, g, 3), (std::vector{1}));
    EXPECT_EQ(chosen({.remask = Remask::entropy, .entropy_bound = 100}, g, 1),
              (std::vector{0, 1, 2, 3, 4}));
    EXPECT_EQ(chosen({.remask = Remask::fixed}, {g[0]}, 3), (std::vector{0}));
}

}  // namespace
}  // namespace mr::ops
