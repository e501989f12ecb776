// Random schemas for the tests of grammars, from a seed.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "core/splitmix.h"

namespace mr::text::grammar {

class RandomSchema {
  public:
    explicit RandomSchema(std::uint64_t seed) : seed_(seed) {}

    // With definitions that refer to each other, and to themselves.
    std::string write() {
        std::string out = schema(3);
        out.pop_back();
        out += out.size() > 1 ? ", " : "";
        out += R"("$defs": {)";
        for (int i = 0; i < 3; ++i) {
            // References pass through a list or an object, and may end.
            out += fmt::format(
                R"({}"d{}": {{"anyOf": [{}, {{"type": "object", "properties": {{"r": {{"$ref": )"
                R"("#/$defs/d{}"}}, "s": {}}}, "required": ["s"]}}]}})",
                i ? ", " : "", i, scalar(), below(3), schema(1));
        }
        return out + "}}";
    }
    std::uint64_t below(std::uint64_t n) { return splitmix(seed_, n_++) % n; }

  private:
    std::string scalar() {
        switch (below(11)) {
            case 0:
                return R"({"type": "null"})";
            case 1:
                return R"({"type": ["boolean", "null"]})";
            case 2: {
                const auto low = static_cast<std::int64_t>(below(2000)) - 1000;
                return fmt::format(
                    R"({{"type": "integer", "minimum": {}, "exclusiveMaximum": {}}})", low,
                    low + 1 + static_cast<std::int64_t>(below(5000)));
            }
            case 3: {
                const double low = static_cast<double>(below(4000)) / 8 - 250;
                return fmt::format(R"({{"type": "number", "minimum": {}, "maximum": {}}})", low,
                                   low + static_cast<double>(1 + below(100)) / 16);
            }
            case 4:
                return R"({"type": "number"})";
            case 5: {
                const auto least = below(5);
                return fmt::format(R"({{"type": "string", "minLength": {}, "maxLength": {}}})",
                                   least, least + below(40));
            }
            case 6:
                return R"({"enum": ["a", "abc", "é\"\n", 1, 2.5, null, [1, "x"], {"k": false}]})";
            case 7:
                return R"({"const": "fixed value"})";
            case 8: {
                const char* patterns[] = {"^[a-c]+x?$", "^[0-9]{2,4}-[A-Z]{3}$", "^(ab|cd)*$",
                                          "^(foo|bar)+(,[a-z]{1,5})*$", "^\\\\w+ \\\\w+$"};
                return fmt::format(R"({{"type": "string", "pattern": "{}"}})", patterns[below(5)]);
            }
            case 9:
                return R"({"type": "string", "nullable": true})";
            default:
                return R"({"type": "string"})";
        }
    }

    std::string schema(int depth) {
        if (depth == 0) return scalar();
        switch (below(9)) {
            case 0:
            case 1:
            case 2:
                return object(depth);
            case 3: {
                const auto least = below(3);
                return fmt::format(
                    R"({{"type": "array", "items": {}, "minItems": {}, "maxItems": {}}})",
                    schema(depth - 1), least, least + below(4));
            }
            case 4:
                return fmt::format(R"({{"type": "array", "prefixItems": [{}, {}], "items": {}}})",
                                   schema(depth - 1), scalar(), below(2) ? "false" : scalar());
            case 5:
                return fmt::format(R"({{"anyOf": [{}, {}, {}]}})", schema(depth - 1), object(depth),
                                   scalar());
            case 6:
                return fmt::format(R"({{"allOf": [{}, {}]}})", object(depth), object(depth));
            case 7:
                return fmt::format(R"({{"$ref": "#/$defs/d{}"}})", below(3));
            default:
                return scalar();
        }
    }

    // Names differ between objects, so that objects joined by allOf are compatible.
    std::string object(int depth) {
        std::string properties, required;
        const auto count = below(4);
        for (std::uint64_t i = 0; i < count; ++i) {
            const std::string name =
                fmt::format("{}{}", below(2) ? "na\xC3\xAFme " : "k", names_++);
            properties += fmt::format(R"({}"{}": {})", i ? ", " : "", name, schema(depth - 1));
            if (below(2)) required += fmt::format(R"({}"{}")", required.empty() ? "" : ", ", name);
        }
        const char* others[] = {"", R"(, "additionalProperties": {"type": ["integer", "object"]})",
                                R"(, "additionalProperties": true)"};
        return fmt::format(R"({{"type": "object", "properties": {{{}}}, "required": [{}]{}}})",
                           properties, required, others[below(3)]);
    }

    std::uint64_t seed_, n_ = 0;
    int names_ = 0;
};

}  // namespace mr::text::grammar
