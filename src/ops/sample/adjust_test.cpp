#include "ops/sample/adjust.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"

namespace mr::ops::adjust_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Adjust, BiasThenPenaltiesThenTheMask) {
    std::vector<float> logits(70, 1.0f);
    const Adjustments adjust{
        .bias = {{3, 2.0f}, {4, -kInf}, {64, -0.5f}}, .presence = 0.5f, .frequency = 0.25f};
    std::vector<std::uint32_t> mask(3, ~std::uint32_t{0});
    mask[0] &= ~(1u << 5);
    mask[2] &= ~(1u << 1);
    adjust_logits(logits, adjust, {{3, 1}, {6, 4}, {65, 2}}, mask);
    for (std::size_t i = 0; i < logits.size(); ++i) {
        const float want = i == 3    ? 1 + 2 - 0.75f
                           : i == 4  ? -kInf
                           : i == 5  ? -kInf
                           : i == 6  ? 1 - 1.5f
                           : i == 64 ? 0.5f
                           : i == 65 ? -kInf
                                     : 1.0f;
        EXPECT_EQ(logits[i], want) << i;
    }
}

TEST(Adjust, NothingAskedForChangesNothing) {
    std::vector<float> logits = {1, -kInf, 3};
    adjust_logits(logits, {}, {}, {});
    EXPECT_EQ(logits, (std::vector<float>{1, -kInf, 3}));
    EXPECT_FALSE(Adjustments{});
    EXPECT_TRUE(Adjustments{.presence = -1});
}

TEST(Adjust, WhatIsOutOfRangeIsRefused) {
    const auto refused = [](const Adjustments& adjust) {
        EXPECT_THROW(check_adjustments(adjust, 10), Error);
    };
    refused({.bias = {{10, 1.0f}}});
    refused({.bias = {{-1, 1.0f}}});
    refused({.bias = {{1, 1.0f}, {1, 2.0f}}});
    refused({.bias = {{1, std::nanf("")}}});
    refused({.bias = {{1, kInf}}});
    refused({.presence = kInf});
    refused({.frequency = std::nanf("")});
    refused({.bias = std::vector<LogitBias>(kMostBiases + 1)});
    check_adjustments({.bias = {{9, -kInf}, {0, 100}}, .presence = -2, .frequency = 2}, 10);
}

}  // namespace
}  // namespace mr::ops::adjust_test
