// A plain validator for the tests' schemas, written from the keywords' definitions: it shares
// nothing with the automaton.
#pragma once

#include <regex>
#include <string>
#include <string_view>

#include "core/utf8.h"
#include "formats/json.h"

namespace mr::text::grammar {

class Validator {
  public:
    explicit Validator(formats::JsonValue root) : root_(root) {}

    bool fits(formats::JsonValue value, formats::JsonValue schema) const {
        if (schema.is_boolean()) return schema.get<bool>();
        if (const auto ref = schema.find("$ref")) {
            const std::string name(ref->text().substr(8));  // #/$defs/NAME
            if (!fits(value, root_["$defs"][name.c_str()])) return false;
        }
        return fits_type(value, schema) && fits_values(value, schema) &&
               fits_string(value, schema) && fits_number(value, schema) &&
               fits_array(value, schema) && fits_object(value, schema) && fits_parts(value, schema);
    }

  private:
    using Json = formats::JsonValue;

    static bool any(Json list, const auto& fits_one) {
        for (const Json one : list) {
            if (fits_one(one)) return true;
        }
        return false;
    }

    static bool is(Json value, std::string_view type) {
        if (type == "integer") return value.is_number_integer();
        return type == value.type_name();
    }
    static bool fits_type(Json value, Json schema) {
        const auto type = schema.find("type");
        if (!type) return true;
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
    static bool fits_string(Json value, Json schema) {
        if (!value.is_string()) return true;
        std::size_t length = 0;
        for (std::size_t i = 0; i < value.text().size(); ++length) {
            i += utf8_at(value.text(), i).size;
        }
        if (schema.contains("minLength") && length < schema["minLength"].get<std::size_t>()) {
            return false;
        }
        if (schema.contains("maxLength") && length > schema["maxLength"].get<std::size_t>()) {
            return false;
        }
        if (!schema.contains("pattern")) return true;
        return std::regex_search(value.get<std::string>(),
                                 std::regex(schema["pattern"].get<std::string>()));
    }
    static bool fits_number(Json value, Json schema) {
        if (!value.is_number()) return true;
        const auto number = value.get<double>();
        const auto bound = [&](const char* key) { return schema[key].get<double>(); };
        return (!schema.contains("minimum") || number >= bound("minimum")) &&
               (!schema.contains("maximum") || number <= bound("maximum")) &&
               (!schema.contains("exclusiveMinimum") || number > bound("exclusiveMinimum")) &&
               (!schema.contains("exclusiveMaximum") || number < bound("exclusiveMaximum"));
    }
    bool fits_array(Json value, Json schema) const {
        if (!value.is_array()) return true;
        if (schema.contains("minItems") && value.size() < schema["minItems"].get<std::size_t>()) {
            return false;
        }
        if (schema.contains("maxItems") && value.size() > schema["maxItems"].get<std::size_t>()) {
            return false;
        }
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
            } else if (schema.contains("additionalProperties") &&
                       !fits(item, schema["additionalProperties"])) {
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
};

}  // namespace mr::text::grammar
