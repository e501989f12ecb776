#include "core/philox.h"

#include <gtest/gtest.h>

namespace mr {
namespace {

using Words = std::array<std::uint32_t, 4>;

// The known answers that Random123 publishes for philox4x32, 10 rounds.
TEST(Philox, KnownAnswers) {
    EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
              (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    constexpr std::uint32_t ones = 0xffffffff;
    EXPECT_EQ(philox4x32({ones, ones, ones, ones}, {ones, ones}),
              (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(
        philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
        (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, SeedIndexAndStreamFillCounterAndKey) {
    EXPECT_EQ(
        philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
        philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}));
    EXPECT_NE(philox(1, 2, 3), philox(1, 3, 2));
    EXPECT_NE(philox(1, 2), philox(2, 1));
}

TEST(Philox, UnitFloatsAreInTheHalfOpenInterval) {
    EXPECT_EQ(unit_float(0), 0.0f);
    EXPECT_EQ(unit_float(0xff), 0.0f);
    EXPECT_EQ(unit_float(0x100), 0x1p-24f);
    EXPECT_LT(unit_float(0xffffffff), 1.0f);
    double sum = 0, squares = 0;
    const int draws = 100000;
    for (int i = 0; i < draws; ++i) {
        const double u = unit_float(philox(42, static_cast<std::uint64_t>(i))[0]);
        sum += u;
        squares += u * u;
    }
    // Five standard deviations: sqrt(1/12/n) for the mean, sqrt(4/45/n) for the squares.
    EXPECT_NEAR(sum / draws, 0.5, 5 * 0.2887 / 316.2);
    EXPECT_NEAR(squares / draws, 1.0 / 3, 5 * 0.2982 / 316.2);
}

}  // namespace
}  // namespace mr
