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
    expect_refused(R"({"type": "integer", "minimum": 3, "maximum": 2})", "schema", "no value");
    expect_refused(R"({"type": "integer", "exclusiveMinimum": 2, "maximum": 2})", "schema",
                   "no value");
    expect_refused(R"({"type": "integer", "exclusiveMinimum": true})", "schema.exclusiveMinimum",
                   "not a number");
    expect_refused(R"({"type": "integer", "multipleOf": 2})", "schema.multipleOf", "not supported");
}

TEST(GrammarNumber, BoundsAreReadWithPointsInEveryLocale) {
    // Smaller than the smallest normal number.
    expect_texts(R"({"type": "number", "minimum": 5e-324})", {"1", "0.000000000000000001"},
                 {"0", "0.0", "-1"});
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
    expect_texts(R"({"type": "number", "minimum": 1e-30, "maximum": 2e-30})",
                 {"0.000000000000000000000000000001", "0.0000000000000000000000000000015"},
                 {"0", "0.0", "0.000000000000000000000000000003"});
    expect_refused(R"({"type": "number", "minimum": 1e-401})", "schema.minimum", "400 digits");
}

// Whole numbers as bounds that a number with a fraction must not reach.
TEST(GrammarNumber, WholeBoundsThatAreExcluded) {
    for (const char* type : {R"("type": "number", )", ""}) {
        const auto schema = [&](std::string_view rest) {
            return fmt::format("{{{}{}}}", type, rest);
        };
        expect_texts(schema(R"("exclusiveMaximum": 3)"), {"2", "2.999", "0", "-1", "-7.5"},
                     {"3", "3.0", "3.1", "4", "30"});
        expect_texts(schema(R"("exclusiveMaximum": 0)"), {"-1", "-0.1"},
                     {"0", "0.0", "-0", "-0.0", "1", "0.1"});
        expect_texts(schema(R"("exclusiveMinimum": -1)"), {"-0.999", "0", "5"},
                     {"-1", "-1.0", "-1.1", "-2"});
        expect_texts(schema(R"("minimum": 0, "exclusiveMaximum": 1)"),
                     {"0", "0.0", "0.999999999999999999"}, {"1", "1.0", "-0.1", "2"});
        expect_texts(schema(R"("minimum": 2, "maximum": 2)"), {"2", "2.0", "2.000"},
                     {"2.001", "1.999", "20"});
        expect_texts(schema(R"("exclusiveMinimum": 1, "exclusiveMaximum": 2)"), {"1.5", "1.001"},
                     {"1", "2", "1.0", "2.0", "1.", "0.5"});
        expect_refused(schema(R"("exclusiveMinimum": 2, "maximum": 2)"), "schema", "no value");
        expect_refused(schema(R"("exclusiveMinimum": -2, "exclusiveMaximum": -2)"), "schema",
                       "no value");
        expect_refused(schema(R"("minimum": 1, "maximum": -1)"), "schema", "no value");
    }
    expect_refused(R"({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2})", "schema",
                   "no value");
}

TEST(GrammarNumber, BoundsBeyond64Bits) {
    expect_texts(R"({"type": "integer", "minimum": 1000000000000000000})",
                 {"1000000000000000000", "1234567890123456789", "99999999999999999999"},
                 {"0", "-1", "999999999999999999", "100000000000000000000"});
    expect_texts(R"({"type": "integer", "minimum": -9223372036854775808, "maximum":
                     9223372036854775807})",
                 {"9223372036854775807", "-9223372036854775808", "0", "1730000000000000000"},
                 {"9223372036854775808", "-9223372036854775809", "10000000000000000000"});
    // One more than 64 bits hold, and the same with an exponent.
    for (const char* bound : {"18446744073709551616", "1.8446744073709551616e19"}) {
        for (const char* type : {"integer", "number"}) {
            const auto schema = [&](std::string_view keyword) {
                return fmt::format(R"({{"type": "{}", "{}": {}}})", type, keyword, bound);
            };
            expect_texts(schema("maximum"), {"18446744073709551616", "18446744073709551615", "-5"},
                         {"18446744073709551617", "20000000000000000000", "1e30", "10800e62",
                          "100000000000000000000"});
            expect_texts(schema("exclusiveMaximum"), {"18446744073709551615"},
                         {"18446744073709551616", "18446744073709551616.0"});
            expect_texts(schema("minimum"),
                         {"18446744073709551616", "18446744073709551617", "100000000000000000000"},
                         {"18446744073709551615", "1", "-18446744073709551616"});
            expect_texts(schema("exclusiveMinimum"), {"18446744073709551617"},
                         {"18446744073709551616", "18446744073709551615"});
        }
    }
    // Neighbours that no double tells apart.
    expect_texts(R"({"type": "number", "minimum": 123456789012345678901234567890.25,
                     "maximum": 123456789012345678901234567890.5})",
                 {"123456789012345678901234567890.25", "123456789012345678901234567890.375",
                  "123456789012345678901234567890.50"},
                 {"123456789012345678901234567890", "123456789012345678901234567890.24",
                  "123456789012345678901234567890.51", "123456789012345678901234567891"});
    expect_texts(R"({"type": "number", "exclusiveMaximum": -1e300})",
                 {"-1" + std::string(301, '0'), "-1" + std::string(299, '0') + "1"},
                 {"-1" + std::string(300, '0'), "-1" + std::string(299, '0'), "-1", "0", "1"});
    expect_texts(R"({"type": "number", "maximum": 1.7976931348623157e308})",
                 {"0", "-3.5", "12345678901234567890"}, {"1e99", "100000000000000000000"});
    EXPECT_THROW(json(R"({"maximum": 1e400})"), Error);  // more than a double holds
}

TEST(GrammarNumber, HugeCountsAreObeyedOrRefused) {
    for (const char* huge :
         {"4294967296", "18446744073709551615", "18446744073709551616", "1e30"}) {
        SCOPED_TRACE(huge);
        const auto schema = [&](std::string_view type, std::string_view keyword) {
            return fmt::format(R"({{"type": "{}", "{}": {}}})", type, keyword, huge);
        };
        expect_texts(schema("string", "maxLength"), {"\"\"", "\"ab\""}, {"1"});
        expect_texts(schema("array", "maxItems"), {"[]", "[1,2]"}, {"1"});
        expect_refused(schema("string", "minLength"), "schema.minLength", "is over 4294967294");
        expect_refused(schema("array", "minItems"), "schema.minItems", "is over 4294967294");
        expect_refused(schema("number", "multipleOf"), "schema.multipleOf", "not supported");
    }
    expect_texts(R"({"type": "string", "minLength": 2.0, "maxLength": 20e-1})", {"\"ab\""},
                 {"\"a\"", "\"abc\""});
    expect_refused(R"({"type": "string", "maxLength": -1e30})", "schema.maxLength",
                   "must be an integer");
}

TEST(GrammarNumber, LongNumbersOfAnEnumAreAsTheyWereWritten) {
    expect_texts(R"({"enum": [12345678901234567890123, 0.12345678901234567890123, 1.0]})",
                 {"12345678901234567890123", "0.12345678901234567890123", "1.0"},
                 {"12345678901234567890124", "1.2345678901234568e+22"});
    expect_texts(R"({"type": "integer", "enum": [12345678901234567890123, 1.5, 2.0]})",
                 {"12345678901234567890123", "2.0"}, {"1.5"});
}

TEST(GrammarNumber, FormatsOfIntegersBoundThem) {
    expect_texts(R"({"type": "integer", "format": "int32"})", {"2147483647", "-2147483648"},
                 {"2147483648", "-2147483649"});
    expect_texts(R"({"type": "integer", "format": "uint8", "maximum": 300})", {"0", "255"},
                 {"-1", "256"});
    expect_texts(R"({"type": "integer", "format": "uint64"})", {"18446744073709551615"},
                 {"18446744073709551616", "-1"});
    expect_texts(R"({"type": "number", "format": "double"})", {"1.5", "1e30"}, {"x"});
}

}  // namespace
}  // namespace mr::text::grammar
