// Schemas made by the grammar of schemas, plain cases first of all: bounds that are whole, equal,
// adjacent, negative, zero, huge, with exponents and fractions.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "core/splitmix.h"

namespace mr::text::grammar {

class MadeSchema {
  public:
    explicit MadeSchema(std::uint64_t seed) : seed_(seed) {}

    // The names of definitions that references must encode, as a reference and as JSON.
    static constexpr const char* kNames[][2] = {{"a%20b", "a b"},
                                                {"c~1d", "c/d"},
                                                {"e~0f", "e~f"},
                                                {"g%25h", "g%h"},
                                                {"%C3%BC", "\xC3\xBC"}};

    std::string write() {
        std::string out = schema(3, true);
        out.pop_back();
        if (out.size() > 1) out += ", ";
        out += R"("$defs": {)";
        for (std::size_t i = 0; i < std::size(kNames); ++i) {
            out += fmt::format(R"({}"{}": {})", i ? ", " : "", kNames[i][1], schema(1, false));
        }
        return out + "}}";
    }

    std::uint64_t below(std::uint64_t n) { return splitmix(seed_, n_++) % n; }
    template <std::size_t N>
    const char* one_of(const char* const (&words)[N]) {
        return words[below(N)];
    }

    // A number of JSON below 10^31, of one kind or another.
    std::string number() {
        static const char* const kOdd[] = {"0",
                                           "-0.0",
                                           "0.0",
                                           "1e2",
                                           "25e-1",
                                           "-3E0",
                                           "1E+1",
                                           "12e-3",
                                           "0.1",
                                           "-0.001",
                                           "1.0",
                                           "18446744073709551615",
                                           "18446744073709551616",
                                           "9223372036854775807",
                                           "-9223372036854775808",
                                           "1000000000000000000",
                                           "999999999999999999",
                                           "1e18",
                                           "-1e18",
                                           "1e25",
                                           "-1.5e30",
                                           "100000000000000000000000000001",
                                           "0.000000000000000001",
                                           "-0.0000000000000000010",
                                           "1e-7",
                                           "123456789.123456789",
                                           "10",
                                           "-10",
                                           "100",
                                           "99"};
        const auto whole = static_cast<std::int64_t>(below(13)) - 6;
        switch (below(5)) {
            case 0:
            case 1:
                return fmt::format("{}", whole);
            case 2:
                return fmt::format("{}.{}", whole, below(10));
            case 3:
                return fmt::format("{:.3f}", (static_cast<double>(below(8001)) - 4000) / 1000);
            default:
                return one_of(kOdd);
        }
    }

  private:
    std::string scalar() {
        switch (below(8)) {
            case 0:
            case 1:
            case 2:
            case 3:
                return bounded();
            case 4: {
                static const char* const kLengths[] = {"0", "1", "2", "3", "2.0", "1e0"};
                static const char* const kMost[] = {
                    "0", "1", "2", "3", "1e12", "4294967295", "100000000000000000000"};
                std::string out = R"({"type": "string")";
                if (below(3)) out += fmt::format(R"(, "minLength": {})", one_of(kLengths));
                if (below(3)) out += fmt::format(R"(, "maxLength": {})", one_of(kMost));
                return out + "}";
            }
            case 5:
                return fmt::format(R"({{"enum": ["a", {}, null, {}, [1], "ab"]}})", number(),
                                   number());
            case 6:
                return fmt::format(R"({{"const": {}}})", below(2) ? number() : R"({"k": [true]})");
            default:
                return R"({"type": ["boolean", "null"]})";
        }
    }

    // A number with bounds; of two, the second is often equal to the first or next to it.
    std::string bounded(bool typed = false) {
        static const char* const kTypes[] = {
            R"("type": "number")", R"("type": "integer")", R"("type": ["number", "null"])",
            R"("type": ["integer", "string"])", R"("title": "any")"};
        std::string out = fmt::format("{{{}", kTypes[below(typed ? 4 : 5)]);
        const std::string first = number();
        std::string second = number();
        const bool plain = first.find_first_of(".eE") == std::string::npos && first.size() < 18;
        if (below(3) == 0) second = first;
        if (plain && below(3) == 0) second = fmt::format("{}", std::stoll(first) + 1);
        static const char* const kLow[] = {"minimum", "exclusiveMinimum"};
        static const char* const kHigh[] = {"maximum", "exclusiveMaximum"};
        const auto which = below(10);
        if (which != 0) out += fmt::format(R"(, "{}": {})", one_of(kLow), first);
        if (which == 9) out += fmt::format(R"(, "{}": {})", "exclusiveMaximum", number());
        if (which != 1 && which != 9) {
            out += fmt::format(R"(, "{}": {})", one_of(kHigh), second);
        }
        if (below(60) == 0) out += fmt::format(R"(, "multipleOf": {})", number());
        return out + "}";
    }

    // `refers`: a definition may be used.
    std::string schema(int depth, bool refers) {
        if (depth == 0) return scalar();
        switch (below(8)) {
            case 0:
            case 1:
                return object(depth, refers);
            case 2: {
                static const char* const kLeast[] = {"0", "1", "2"};
                static const char* const kMost[] = {"0", "1",    "2",
                                                    "3", "1e30", "18446744073709551616"};
                std::string out =
                    fmt::format(R"({{"type": "array", "items": {})", schema(depth - 1, refers));
                if (below(2)) out += fmt::format(R"(, "minItems": {})", one_of(kLeast));
                if (below(2)) out += fmt::format(R"(, "maxItems": {})", one_of(kMost));
                if (below(3) == 0) {
                    out += fmt::format(R"(, "prefixItems": [{}])", schema(depth - 1, refers));
                }
                return out + "}";
            }
            case 3:
                return fmt::format(R"({{"anyOf": [{}, {}]}})", schema(depth - 1, refers), scalar());
            case 4:
                return fmt::format(R"({{"allOf": [{}, {}]}})", bounded(true), bounded(true));
            case 5:
                if (refers) {
                    return fmt::format(R"({{"$ref": "#/$defs/{}"}})",
                                       kNames[below(std::size(kNames))][0]);
                }
                return scalar();
            default:
                return scalar();
        }
    }

    // Names in the order of their letters, so that every object that lists some has one order.
    std::string object(int depth, bool refers) {
        std::string properties, required;
        for (const char* name : {"a", "b", "c d"}) {
            if (below(2)) continue;
            properties += fmt::format(R"({}"{}": {})", properties.empty() ? "" : ", ", name,
                                      schema(depth - 1, refers));
            if (below(2)) required += fmt::format(R"({}"{}")", required.empty() ? "" : ", ", name);
        }
        return fmt::format(R"({{"type": "object", "properties": {{{}}}, "required": [{}]{}}})",
                           properties, required,
                           below(2) ? "" : R"(, "additionalProperties": false, "x-order": [1])");
    }

    std::uint64_t seed_, n_ = 0;
};

}  // namespace mr::text::grammar
