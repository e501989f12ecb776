// A plain validator for the tests' schemas, written from the keywords' definitions: it shares
// nothing with the automaton.
#pragma once

#include <algorithm>
#include <regex>
#include <string>
#include <string_view>
#include <utility>

#include "core/utf8.h"
#include "formats/json.h"

namespace mr::text::grammar {

// A number of less than 10^36 in units of 10^-30, the sign apart. Larger ones lose their first
// digits, and smaller parts count as one unit.
class ExactNumber {
  public:
    __extension__ using Units = __int128;

    explicit ExactNumber(std::string_view text) {
        negative_ = text.starts_with('-');
        const std::size_t e = text.find_first_of("eE");
        int exponent = 0;
        if (e != std::string_view::npos) exponent = std::stoi(std::string(text.substr(e + 1)));
        int place = exponent;  // of the digit before the point
        const std::string_view digits = text.substr(0, e).substr(negative_);
        const std::size_t point = std::min(digits.find('.'), digits.size());
        place += static_cast<int>(point) - 1;
        for (const char c : digits) {
            if (c == '.') continue;
            if (place >= 0 && place < 36) {
                whole_ += (c - '0') * power(place);
            } else if (place < 0 && c != '0') {
                behind_ += place < -30 ? 1 : (c - '0') * power(place + 30);
            }
            --place;
        }
    }
    bool whole() const { return behind_ == 0; }
    bool operator<(const ExactNumber& other) const {
        const auto key = [](const ExactNumber& n) {
            const int sign = n.negative_ ? -1 : 1;
            return std::pair(sign * n.whole_, sign * n.behind_);
        };
        return key(*this) < key(other);
    }

  private:
    static Units power(int ten) {
        Units out = 1;
        for (; ten > 0; --ten) out *= 10;
        return out;
    }
    bool negative_ = false;
    Units whole_ = 0, behind_ = 0;
};

class Validator {
  public:
    // `closed`, as docs/structured-output.md has it: objects that list properties, and say nothing
    // of others, have no others; bounds without a type mean a number.
    explicit Validator(formats::JsonValue root, bool closed = false)
        : root_(root), closed_(closed) {}

    bool fits(formats::JsonValue value, formats::JsonValue schema) const {
        if (schema.is_boolean()) return schema.get<bool>();
        if (const auto ref = schema.find("$ref")) {
            const std::string name = pointed(ref->text().substr(8));  // #/$defs/NAME
            if (!fits(value, root_["$defs"][name.c_str()])) return false;
        }
        return fits_type(value, schema) && fits_values(value, schema) &&
               fits_string(value, schema) && fits_number(value, schema) &&
               fits_array(value, schema) && fits_object(value, schema) && fits_parts(value, schema);
    }

  private:
    using Json = formats::JsonValue;

    static std::string pointed(std::string_view step) {
        std::string out(step);
        const std::pair<std::string_view, std::string_view> coded[] = {
            {"%20", " "}, {"%C3%BC", "\xC3\xBC"}, {"%25", "%"}, {"~1", "/"}, {"~0", "~"}};
        for (const auto& [from, to] : coded) {
            for (std::size_t at = 0; (at = out.find(from, at)) != std::string::npos; ++at) {
                out.replace(at, from.size(), to);
            }
        }
        return out;
    }

    static bool any(Json list, const auto& fits_one) {
        for (const Json one : list) {
            if (fits_one(one)) return true;
        }
        return false;
    }

    static bool is(Json value, std::string_view type) {
        if (type == "integer") return value.is_number() && ExactNumber(value.dump()).whole();
        return type == value.type_name();
    }
    static bool bounds(Json schema) {
        return schema.contains("minimum") || schema.contains("maximum") ||
               schema.contains("exclusiveMinimum") || schema.contains("exclusiveMaximum");
    }
    bool fits_type(Json value, Json schema) const {
        const auto type = schema.find("type");
        if (!type) return !closed_ || !bounds(schema) || value.is_number();
        if (schema["nullable"].is_boolean() && schema["nullable"].get<bool>() && value.is_null()) {
            return true;
        }
        if (type->is_string()) return is(value, type->text());
        return any(*type, [&](Json name) { return is(value, name.text()); });
    }
    static bool fits_values(Json value, Json schema) {
        if (schema.contains("const") && schema["const"].dump() != value.dump()) return false;
        if (!schema.contains("enum")) return true;
        const Json values = schema["enum"];
        return any(values, [&](Json one) { return one.dump() == value.dump(); });
    }
    static bool count_fits(std::size_t count, Json schema, const char* least, const char* most) {
        const ExactNumber number(std::to_string(count));
        return (!schema.contains(least) || !(number < ExactNumber(schema[least].dump()))) &&
               (!schema.contains(most) || !(ExactNumber(schema[most].dump()) < number));
    }
    static bool fits_string(Json value, Json schema) {
        if (!value.is_string()) return true;
        std::size_t length = 0;
        for (std::size_t i = 0; i < value.text().size(); ++length) {
            i += utf8_at(value.text(), i).size;
        }
        if (!count_fits(length, schema, "minLength", "maxLength")) return false;
        if (!schema.contains("pattern")) return true;
        return std::regex_search(value.get<std::string>(),
                                 std::regex(schema["pattern"].get<std::string>()));
    }
    static bool fits_number(Json value, Json schema) {
        if (!value.is_number()) return true;
        const ExactNumber number(value.dump());
        const auto bound = [&](const char* key) { return ExactNumber(schema[key].dump()); };
        return (!schema.contains("minimum") || !(number < bound("minimum"))) &&
               (!schema.contains("maximum") || !(bound("maximum") < number)) &&
               (!schema.contains("exclusiveMinimum") || bound("exclusiveMinimum") < number) &&
               (!schema.contains("exclusiveMaximum") || number < bound("exclusiveMaximum"));
    }
    bool fits_array(Json value, Json schema) const {
        if (!value.is_array()) return true;
        if (!count_fits(value.size(), schema, "minItems", "maxItems")) return false;
        const Json first = schema["prefixItems"];
        for (std::size_t i = 0; i < value.size(); ++i) {
            if (i < first.size()) {
                if (!fits(value[i], first[i])) return false;
            } else if (schema.contains("items") && !fits(value[i], schema["items"])) {
                return false;
            }
        }
        return true;
    }
    bool fits_object(Json value, Json schema) const {
        if (!value.is_object()) return true;
        for (const Json name : schema["required"]) {
            if (!value.contains(name.text())) return false;
        }
        const Json properties = schema["properties"];
        for (const auto& [key, item] : value.items()) {
            if (const auto own = properties.find(key)) {
                if (!fits(item, *own)) return false;
            } else if (schema.contains("additionalProperties")) {
                if (!fits(item, schema["additionalProperties"])) return false;
            } else if (closed_ && schema.contains("properties")) {
                return false;
            }
        }
        return true;
    }
    bool fits_parts(Json value, Json schema) const {
        const auto fits_it = [&](Json part) { return fits(value, part); };
        const auto fits_not = [&](Json part) { return !fits(value, part); };
        return !any(schema["allOf"], fits_not) &&
               (!schema.contains("anyOf") || any(schema["anyOf"], fits_it)) &&
               (!schema.contains("oneOf") || any(schema["oneOf"], fits_it));
    }

    Json root_;
    bool closed_;
};

}  // namespace mr::text::grammar
