#include "core/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace mr {
namespace {

// By the definition of the formats.
double f16_value(std::uint16_t bits) {
    const int exponent = (bits >> 10) & 0x1f;
    const int mantissa = bits & 0x3ff;
    const double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == 0) return sign * std::ldexp(mantissa, -24);
    return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

double bf16_value(std::uint16_t bits) {
    const int exponent = (bits >> 7) & 0xff;
    const int mantissa = bits & 0x7f;
    const double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == 0) return sign * std::ldexp(mantissa, -133);
    return sign * std::ldexp(128 + mantissa, exponent - 134);
}

TEST(Half, EveryF16) {
    for (int i = 0; i < 65536; ++i) {
        const auto bits = static_cast<std::uint16_t>(i);
        const float value = f16_to_f32(bits);
        if ((bits & 0x7c00) == 0x7c00) {
            EXPECT_EQ(std::isnan(value), (bits & 0x3ff) != 0);
            EXPECT_EQ(std::isinf(value), (bits & 0x3ff) == 0);
            if (std::isnan(value)) {
                EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value))));
                continue;
            }
        } else {
            ASSERT_EQ(double{value}, f16_value(bits)) << i;
        }
        ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << i;
        ASSERT_EQ(f32_to_f16(value), bits) << i;
    }
}

TEST(Half, EveryBf16) {
    for (int i = 0; i < 65536; ++i) {
        const auto bits = static_cast<std::uint16_t>(i);
        const float value = bf16_to_f32(bits);
        if ((bits & 0x7f80) == 0x7f80) {
            EXPECT_EQ(std::isnan(value), (bits & 0x7f) != 0);
            if (std::isnan(value)) {
                EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(value))));
                continue;
            }
        } else {
            ASSERT_EQ(double{value}, bf16_value(bits)) << i;
        }
        ASSERT_EQ(f32_to_bf16(value), bits) << i;
    }
}

// Between every two neighbours: below, at and above the midpoint; the midpoint rounds to even.
TEST(Half, RoundsToNearestEven) {
    const float inf = std::numeric_limits<float>::infinity();
    for (int i = 0; i < 0x7bff; ++i) {
        const auto low = static_cast<std::uint16_t>(i), high = static_cast<std::uint16_t>(i + 1);
        const float middle = (f16_to_f32(low) + f16_to_f32(high)) / 2;  // exact in f32
        ASSERT_EQ(f32_to_f16(middle), i % 2 ? high : low) << i;
        ASSERT_EQ(f32_to_f16(std::nextafterf(middle, 0)), low) << i;
        ASSERT_EQ(f32_to_f16(std::nextafterf(middle, inf)), high) << i;
        ASSERT_EQ(f32_to_f16(-middle), 0x8000 | (i % 2 ? high : low)) << i;
    }
    for (int i = 0; i < 0x7f7f; ++i) {
        const auto low = static_cast<std::uint16_t>(i), high = static_cast<std::uint16_t>(i + 1);
        const auto middle = std::bit_cast<float>((static_cast<std::uint32_t>(i) << 16) | 0x8000u);
        ASSERT_EQ(f32_to_bf16(middle), i % 2 ? high : low) << i;
        ASSERT_EQ(f32_to_bf16(std::nextafterf(middle, 0)), low) << i;
        ASSERT_EQ(f32_to_bf16(std::nextafterf(middle, inf)), high) << i;
    }
}

TEST(Half, Ends) {
    const float inf = std::numeric_limits<float>::infinity();
    EXPECT_EQ(f32_to_f16(65504.0f), 0x7bff);
    EXPECT_EQ(f32_to_f16(65519.99f), 0x7bff);
    EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
    EXPECT_EQ(f32_to_f16(1e30f), 0x7c00);
    EXPECT_EQ(f32_to_f16(-inf), 0xfc00);
    EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);  // the midpoint of 0 and the smallest
    EXPECT_EQ(f32_to_f16(std::nextafterf(0x1p-25f, 1)), 0x0001);
    EXPECT_EQ(f32_to_f16(-0.0f), 0x8000);
    EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
    EXPECT_EQ(f32_to_bf16(inf), 0x7f80);
    // The NaN whose payload would be rounded away.
    EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
    EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace mr
