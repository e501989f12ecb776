#include "core/read_double.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "comma_locale.h"

namespace mr {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLeast = std::numeric_limits<double>::denorm_min();

void reads_numbers() {
    EXPECT_EQ(read_double("0.6"), 0.6);
    EXPECT_EQ(read_double("-12.5e-3"), -0.0125);
    EXPECT_EQ(read_double("+7"), 7.0);
    EXPECT_EQ(read_double("1E+2"), 100.0);
    EXPECT_EQ(read_double(".5"), 0.5);
    EXPECT_EQ(read_double("inf"), kInfinity);
    EXPECT_EQ(read_double("-Infinity"), -kInfinity);
    EXPECT_TRUE(std::isnan(read_double("nan").value_or(0)));
    EXPECT_EQ(read_double("5e-324"), kLeast);
    for (const char* text : {"", "+", "-", "+-1", "++1", " 1", "1 ", "0,6", "1.5x", "0x10", "e5"}) {
        EXPECT_EQ(read_double(text), std::nullopt) << text;
    }
    EXPECT_EQ(shortest_double(1e-5f), 1e-5);
    EXPECT_EQ(shortest_double(0.6f), 0.6);
    EXPECT_EQ(shortest_double(-kInfinity), -kInfinity);
}

TEST(ReadDouble, ReadsNumbers) { reads_numbers(); }

TEST(ReadDouble, HasAPointInEveryLocale) {
    const test::CommaLocale locale;
    MR_NEED_COMMAS(locale);
    reads_numbers();
}

TEST(ReadDouble, BeyondTheRange) {
    const std::string zeros(400, '0');
    EXPECT_EQ(read_double("1e999"), kInfinity);
    EXPECT_EQ(read_double("-1e+999"), -kInfinity);
    EXPECT_EQ(read_double("1" + zeros), kInfinity);
    EXPECT_EQ(read_double("1e99999999999999999999"), kInfinity);
    EXPECT_EQ(read_double("0." + zeros + "1e999"), kInfinity);  // 1e598
    const auto zero = [](const std::string& text, bool negative) {
        const auto value = read_double(text);
        ASSERT_TRUE(value) << text;
        EXPECT_EQ(*value, 0.0) << text;
        EXPECT_EQ(std::signbit(*value), negative) << text;
    };
    zero("1e-999", false);
    zero("-1e-999", true);
    zero("0." + zeros + "1", false);
    zero("1" + zeros + "e-999", false);  // 1e-599
    zero("1e-99999999999999999999", false);
    zero("0e99999999999999999999", false);
    zero("-0", true);
}

}  // namespace
}  // namespace mr
