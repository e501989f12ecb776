// Numbers between bounds, compared with arithmetic.
#include <fmt/format.h>

#include "comma_locale.h"
#include "core/splitmix.h"
#include "grammar_cases.h"

namespace mr::text::grammar {
namespace {

TEST(GrammarNumber, Syntax) {
    expect_texts(R"({"type": "integer"})", {"0", "7", "-7", "10", "999999999999999999"},
                 {"", "-", "-0", "00", "01", "1.0", "1e3", "+1", "1000000000000000000"});
    expect_texts(R"({"type": "number"})",
                 {"0", "-0", "1.5", "-0.25", "10e5", "1E-07", "2.5e+10", "0.000000000000000001"},
                 {"", ".5", "1.", "1e", "1e+", "1e100", "01.5", "--1", "0x1"});
}

// Every integer near the bounds, by the automaton and by comparing.
void check_integers(std::int64_t low, std::int64_t high) {
    const Network network =
        compiled(fmt::format(R"({{"type": "integer", "minimum": {}, "maximum": {}}})", low, high));
    const auto check = [&](std::int64_t value) {
        EXPECT_EQ(matches(network, fmt::format("{}", value)), value >= low && value <= high)
            << value << " in " << low << ".." << high;
    };
    for (std::int64_t i = -12; i <= 12; ++i) {
        for (const std::int64_t base : {low, high, std::int64_t{0}, low / 10, high / 10}) {
            check(base + i);
        }
    }
    for (std::int64_t i = 1; i < 100'000'000'000; i *= 10) check(i), check(-i), check(i - 1);
}

TEST(GrammarNumber, IntegersBetweenBounds) {
    const std::int64_t bounds[][2] = {{0, 0},      {0, 9},     {1, 100},         {-5, 5},
                                      {-1, -1},    {95, 1234}, {-1000, -1},      {7, 7},
                                      {999, 1001}, {-3, 0},    {123456, 987654}, {100, 199}};
    for (const auto& [low, high] : bounds) check_integers(low, high);
    for (std::uint64_t i = 0; i < 20; ++i) {
        const auto a = static_cast<std::int64_t>(splitmix(7, i) >> (splitmix(8, i) % 50 + 10));
        const auto b = static_cast<std::int64_t>(splitmix(9, i) >> (splitmix(8, i) % 50 + 10));
        check_integers(std::min(a, b) - std::abs(a - b) / 2, std::max(a, b));
    }
    expect_texts(R"({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5})", {"4"},
                 {"3", "5"});
    expect_texts(R"({"type": "integer", "minimum": 1.5, "maximum": 3.5})", {"2", "3"}, {"1", "4"});
    expect_texts(R"({"type": "integer", "minimum": 5})", {"5", "999999999999999999"}, {"4", "-5"});
    expect_texts(R"({"type": "integer", "maximum": -5})", {"-5", "-60"}, {"-4", "0", "5"});
    expect_texts(R"({"type": "integer", "minimum": -9223372036854775808, "maximum":
                     18446744073709551615})",
                 {"-123456789012345678", "0"}, {});
    expect_refused(R"({"type": "integer", "minimum": 1000000000000000000})", "schema.minimum",
                   "18 digits");
    expect_refused(R"({"type": "integer", "minimum": 3, "maximum": 2})", "schema", "no value");
    expect_refused(R"({"type": "integer", "exclusiveMinimum": 2, "maximum": 2})", "schema",
                   "no value");
    expect_refused(R"({"type": "integer", "exclusiveMinimum": true})", "schema.exclusiveMinimum",
                   "not a number");
    expect_refused(R"({"type": "integer", "multipleOf": 2})", "schema.multipleOf", "not supported");
}

TEST(GrammarNumber, BoundsAreReadWithPointsInEveryLocale) {
    // Smaller than the smallest normal number: more digits than a bound may have.
    expect_refused(R"({"type": "number", "minimum": 5e-324})", "schema.minimum", "18 digits");
    const test::CommaLocale locale;
    MR_NEED_COMMAS(locale);
    expect_texts(R"({"type": "number", "minimum": 1.5, "maximum": 2.5})", {"1.5", "2", "2.5"},
                 {"1.4", "2.6", "3"});
}

// Bounds in thousandths; texts in ten-thousandths, with and without trailing zeros.
TEST(GrammarNumber, FractionsBetweenBounds) {
    std::int64_t inside = 0, outside = 0;
    for (std::uint64_t i = 0; i < 60; ++i) {
        auto low = static_cast<std::int64_t>(splitmix(1, i) % 4000) - 2000;
        auto high = static_cast<std::int64_t>(splitmix(2, i) % 4000) - 2000;
        if (low > high) std::swap(low, high);
        const bool open_low = splitmix(3, i) % 2, open_high = splitmix(4, i) % 2;
        if (low == high) continue;
        const Network network = compiled(fmt::format(
            R"({{"type": "number", "{}": {:.3f}, "{}": {:.3f}}})",
            open_low ? "exclusiveMinimum" : "minimum", static_cast<double>(low) / 1000,
            open_high ? "exclusiveMaximum" : "maximum", static_cast<double>(high) / 1000));
        const auto check = [&](std::int64_t value) {  // in ten-thousandths
            const bool fits = (open_low ? value > low * 10 : value >= low * 10) &&
                              (open_high ? value < high * 10 : value <= high * 10);
            ++(fits ? inside : outside);
            std::string text = fmt::format("{}{}.{:04}", value < 0 ? "-" : "",
                                           std::abs(value) / 10000, std::abs(value) % 10000);
            for (; text.back() == '0' && text[text.size() - 2] != '.'; text.pop_back()) {
                EXPECT_EQ(matches(network, text), fits) << text << ' ' << low << ' ' << high;
            }
            EXPECT_EQ(matches(network, text), fits) << text << ' ' << low << ' ' << high;
            if (text.ends_with(".0")) {
                text.resize(text.size() - 2);
                EXPECT_EQ(matches(network, text), fits) << text << ' ' << low << ' ' << high;
            }
        };
        for (std::uint64_t k = 0; k < 20; ++k) {
            check(static_cast<std::int64_t>(splitmix(5, i * 100 + k) % 50000) - 25000);
        }
        for (std::int64_t k = -11; k <= 11; ++k) check(low * 10 + k), check(high * 10 + k);
        for (std::int64_t k = -2; k <= 2; ++k) check(k * 10000);
    }
    EXPECT_GT(inside, 500);
    EXPECT_GT(outside, 500);
    expect_texts(R"({"type": "number", "minimum": 0, "maximum": 1})",
                 {"0", "1", "0.5", "1.000", "0.0"}, {"-0.5", "1.01", "2", "-0", "1e0"});
    expect_texts(R"({"type": "number", "minimum": 1e-7})", {"0.0000001", "1"},
                 {"0", "0.00000009", "0.0"});
    expect_texts(R"({"type": "number", "exclusiveMinimum": 0})", {"0.1", "5"},
                 {"0", "0.0", "-1", "0.000000000000000000"});
    expect_refused(R"({"type": "number", "minimum": 1e-30})", "schema.minimum", "18 digits");
}

}  // namespace
}  // namespace mr::text::grammar
