#include "core/decimal.h"

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

namespace mr {
namespace {

TEST(DecimalNumber, DigitsOfEverySpelling) {
    const std::tuple<const char*, const char*, const char*> cases[] = {
        {"0", "", ""},
        {"-0.0e7", "", ""},
        {"7", "7", ""},
        {"1200", "1200", ""},
        {"0.0120", "", "012"},
        {"12.50", "12", "5"},
        {"1e3", "1000", ""},
        {"1.25E+1", "12", "5"},
        {"25e-1", "2", "5"},
        {"1e-3", "", "001"},
        {"0.001e3", "1", ""},
        {"-100e-4", "", "01"},
        {"1e18", "1000000000000000000", ""}};
    for (const auto& [text, whole, fraction] : cases) {
        const Decimal decimal = read_decimal(text);
        EXPECT_EQ(decimal.whole(), whole) << text;
        EXPECT_EQ(decimal.fraction(), fraction) << text;
        EXPECT_EQ(decimal.whole_size(), decimal.whole().size()) << text;
        EXPECT_EQ(decimal.fraction_size(), decimal.fraction().size()) << text;
        EXPECT_EQ(decimal.negative, text[0] == '-') << text;
    }
    EXPECT_EQ(read_decimal("18446744073709551616").whole(), "18446744073709551616");
    EXPECT_EQ(read_decimal("1e99999999999999999999").point, 1'000'000'001);
    EXPECT_EQ(read_decimal("1.0"), read_decimal("10e-1"));
}

// In order; each line holds spellings of one number.
TEST(DecimalNumber, AreComparedByValue) {
    const std::vector<std::vector<const char*>> order = {
        {"-1e30"},
        {"-12", "-1.2e1"},
        {"-0.5", "-5e-1"},
        {"-0.05"},
        {"0", "-0", "0.0", "0e9"},
        {"1e-30"},
        {"0.05"},
        {"0.5", "0.50"},
        {"0.51"},
        {"1", "1.0", "10e-1"},
        {"9"},
        {"10"},
        {"18446744073709551615"},
        {"18446744073709551616", "1.8446744073709551616e19"},
        {"1e20"}};
    for (std::size_t i = 0; i < order.size(); ++i) {
        for (std::size_t k = 0; k < order.size(); ++k) {
            for (const char* a : order[i]) {
                for (const char* b : order[k]) {
                    const int got = compare(read_decimal(a), read_decimal(b));
                    EXPECT_EQ(got, i < k ? -1 : i > k ? 1 : 0) << a << ' ' << b;
                }
            }
        }
    }
}

}  // namespace
}  // namespace mr
