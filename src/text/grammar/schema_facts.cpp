#include "text/grammar/schema_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "core/decimal.h"
#include "core/printable.h"
#include "text/grammar/schema.h"

namespace mr::text::grammar {
namespace {

using formats::JsonValue;

struct TypeName {
    std::string_view name;
    std::uint32_t bits;
};
constexpr TypeName kTypes[] = {
    {"null", kNull},   {"boolean", kBoolean}, {"string", kString}, {"number", kInteger | kFraction},
    {"array", kArray}, {"integer", kInteger}, {"object", kObject}};

struct KeywordTypes {
    std::string_view keyword;
    std::uint32_t types;
};
// Keywords that constrain only values of certain types.
constexpr KeywordTypes kOfTypes[] = {
    {"properties", kObject},
    {"required", kObject},
    {"additionalProperties", kObject},
    {"items", kArray},
    {"prefixItems", kArray},
    {"minItems", kArray},
    {"maxItems", kArray},
    {"minLength", kString},
    {"maxLength", kString},
    {"pattern", kString},
    {"format", kString},
    {"minimum", kInteger | kFraction},
    {"maximum", kInteger | kFraction},
    {"exclusiveMinimum", kInteger | kFraction},
    {"exclusiveMaximum", kInteger | kFraction},
};

// Formats of numbers that bound them.
struct IntegerFormat {
    std::string_view name, low, high;
};
constexpr IntegerFormat kIntegerFormats[] = {
    {"int8", "-128", "127"},
    {"int16", "-32768", "32767"},
    {"int32", "-2147483648", "2147483647"},
    {"int64", "-9223372036854775808", "9223372036854775807"},
    {"uint8", "0", "255"},
    {"uint16", "0", "65535"},
    {"uint32", "0", "4294967295"},
    {"uint64", "0", "18446744073709551615"}};

std::uint32_t type_of(JsonValue value) {
    if (value.is_null()) return kNull;
    if (value.is_boolean()) return kBoolean;
    if (value.is_number()) {
        return read_decimal(value.dump()).fraction_size() == 0 ? kInteger : kFraction;
    }
    return value.is_string() ? kString : value.is_array() ? kArray : kObject;
}

class FactReader {
  public:
    FactReader(SchemaNodes& nodes, const NodeSet& set) : nodes_(nodes), set_(set) {}

    std::optional<Facts> read() {
        std::uint32_t hinted = 0;
        for (const NodeId id : set_) {
            const JsonValue schema = nodes_.value(id);
            nodes_.spend(1);
            if (schema.is_boolean()) {
                if (!schema.get<bool>()) return std::nullopt;
                continue;
            }
            read_type(id, schema);
            read_values(id, schema);
            read_string(id, schema);
            read_bounds(id, schema);
            for (const auto& [keyword, types] : kOfTypes) {
                if (schema.contains(keyword)) hinted |= types;
            }
        }
        if (facts_.values) {
            refuse_beside_values();
            std::erase_if(*facts_.values,
                          [&](JsonValue value) { return !(type_of(value) & facts_.types); });
            if (facts_.values->empty()) return std::nullopt;
            return std::move(facts_);
        }
        // Without a type, keywords for objects imply an object, and so on.
        if (facts_.types == kAnyType && hinted != 0) facts_.types = hinted;
        if (facts_.types & kObject) read_object();
        if (facts_.types & kArray) read_array();
        if (facts_.types == 0) return std::nullopt;
        return std::move(facts_);
    }

  private:
    void read_type(NodeId id, JsonValue schema) {
        const auto type = schema.find("type");
        const auto nullable = schema.find("nullable");
        if (nullable && !nullable->is_boolean()) {
            throw nodes_.error_at(id, "nullable", "is neither true nor false");
        }
        if (!type) {
            if (nullable && nullable->get<bool>()) {
                throw nodes_.error_at(id, "nullable", "wants a type beside it");
            }
            return;
        }
        const auto bits_of = [&](JsonValue name) {
            for (const auto& [known, bits] : kTypes) {
                if (name == known) return bits;
            }
            throw nodes_.error_at(id, "type",
                                  fmt::format("{} is not a type", printable(name.shown(), 100)));
        };
        std::uint32_t types = 0;
        if (type->is_array()) {
            for (const JsonValue name : *type) types |= bits_of(name);
            if (types == 0) throw nodes_.error_at(id, "type", "is an empty list");
        } else {
            types = bits_of(*type);
        }
        if (nullable && nullable->get<bool>()) types |= kNull;
        facts_.types &= types;
    }

    void read_values(NodeId id, JsonValue schema) {
        if (const auto values = schema.find("enum")) {
            if (!values->is_array()) throw nodes_.error_at(id, "enum", "is not a list");
            if (values->size() > kMostEnumValues) {
                throw nodes_.error_at(id, "enum",
                                      fmt::format("has more than {} values", kMostEnumValues));
            }
            if (values->empty()) throw nodes_.error_at(id, "enum", "has no value");
            nodes_.spend(values->size());
            std::vector<JsonValue> all;
            for (const JsonValue value : *values) all.push_back(value);
            keep(all);
        }
        if (const auto value = schema.find("const")) keep({*value});
    }
    // Keeps only these values; of values already given, those that are among these.
    void keep(const std::vector<JsonValue>& values) {
        if (!facts_.values) {
            facts_.values = values;
            return;
        }
        const auto written = [&](JsonValue value) {
            std::string text = value.dump();
            nodes_.spend(1 + text.size() / 16);
            return text;
        };
        std::set<std::string> texts;
        for (const JsonValue value : values) texts.insert(written(value));
        std::erase_if(*facts_.values,
                      [&](JsonValue value) { return !texts.contains(written(value)); });
    }
    void refuse_beside_values() const {
        for (const NodeId id : set_) {
            for (const auto& [keyword, types] : kOfTypes) {
                if (nodes_.has(id, keyword)) {
                    throw nodes_.error_at(id, keyword, "is not supported beside enum or const",
                                          "leave the values out that do not fit");
                }
            }
        }
    }

    std::optional<std::uint32_t> count(NodeId id, JsonValue schema, std::string_view keyword) {
        const auto value = schema.find(keyword);
        if (!value) return std::nullopt;
        const std::optional<Decimal> size =
            value->is_number() ? std::optional(read_decimal(value->dump())) : std::nullopt;
        if (!size || size->fraction_size() > 0 || (size->negative && !size->zero())) {
            throw nodes_.error_at(id, keyword, "must be an integer of at least 0");
        }
        constexpr std::uint32_t kMost = kUnbounded - 1;
        const std::string digits = size->whole_size() <= 10 ? size->whole() : std::string(11, '9');
        const std::uint64_t count = digits.empty() ? 0 : std::stoull(digits);
        if (count > kMost && keyword.starts_with("min")) {
            throw nodes_.error_at(id, keyword, fmt::format("is over {}", kMost));
        }
        return static_cast<std::uint32_t>(std::min<std::uint64_t>(count, kMost));
    }

    void read_string(NodeId id, JsonValue schema) {
        facts_.min_length = std::max(facts_.min_length, count(id, schema, "minLength").value_or(0));
        facts_.max_length =
            std::min(facts_.max_length, count(id, schema, "maxLength").value_or(kUnbounded));
        const auto one = [&](std::string_view keyword, std::optional<NodeId>& place) {
            const auto value = schema.find(keyword);
            if (!value) return;
            if (!value->is_string()) throw nodes_.error_at(id, keyword, "is not a text");
            const bool again =
                place && nodes_.value(*place)[keyword.data()].text() != value->text();
            if (again)
                throw nodes_.error_at(id, keyword,
                                      "holds beside another one, which is not supported");
            place = id;
        };
        one("pattern", facts_.pattern);
        one("format", facts_.format);
    }

    void read_bounds(NodeId id, JsonValue schema) {
        const auto keep_bound = [&](const Decimal& value, bool included, bool is_low) {
            auto& kept = is_low ? facts_.numbers.low : facts_.numbers.high;
            const int order = kept ? compare(value, kept->value) * (is_low ? 1 : -1) : 1;
            if (order > 0 || (order == 0 && !included)) kept = {value, included};
        };
        const auto bound = [&](std::string_view keyword, bool included, bool is_low) {
            const auto value = schema.find(keyword);
            if (!value) return;
            if (!value->is_number()) throw nodes_.error_at(id, keyword, "is not a number");
            const Decimal decimal = read_decimal(value->dump());
            if (decimal.whole_size() > kMostBoundDigits ||
                decimal.fraction_size() > kMostBoundDigits) {
                throw nodes_.error_at(id, keyword,
                                      fmt::format("has more than {} digits before or after the "
                                                  "point",
                                                  kMostBoundDigits));
            }
            keep_bound(decimal, included, is_low);
        };
        bound("minimum", true, true);
        bound("exclusiveMinimum", false, true);
        bound("maximum", true, false);
        bound("exclusiveMaximum", false, false);
        for (const IntegerFormat& format : kIntegerFormats) {
            if (!(schema["format"] == format.name)) continue;
            keep_bound(read_decimal(format.low), true, true);
            keep_bound(read_decimal(format.high), true, false);
        }
    }

    void read_object();
    void read_array();

    SchemaNodes& nodes_;
    const NodeSet& set_;
    Facts facts_;
};

void FactReader::read_object() {
    ObjectFacts& object = facts_.object;
    std::map<std::string_view, std::size_t> places;
    bool listed = false, said = false;
    for (const NodeId id : set_) {
        const auto properties = nodes_.value(id).find("properties");
        if (!properties) continue;
        if (!properties->is_object()) throw nodes_.error_at(id, "properties", "is not an object");
        listed = true;
        nodes_.spend(properties->size());
        for (const auto& [name, value] : properties->items_in_file_order()) {
            if (name.size() > kMostNameBytes) {
                throw nodes_.error_at(
                    id, "properties",
                    fmt::format("has a name of more than {} bytes", kMostNameBytes));
            }
            if (places.emplace(name, object.properties.size()).second) {
                object.properties.push_back({std::string(name), {}});
            }
        }
    }
    // Every schema constrains every property, whether it lists it or not.
    for (const NodeId id : set_) {
        const JsonValue schema = nodes_.value(id);
        const auto properties = schema.find("properties");
        const auto others = schema.find("additionalProperties");
        const bool shut = others && others->is_boolean() && !others->get<bool>();
        if (others) {
            said = true;
            object.more = object.more && !shut;
            object.others.push_back(nodes_.child(id, "additionalProperties"));
        }
        nodes_.spend(object.properties.size());
        for (auto& property : object.properties) {
            if (properties && properties->contains(property.name)) {
                property.value.push_back(
                    nodes_.child(nodes_.child(id, "properties"), property.name));
            } else if (others) {
                property.value.push_back(nodes_.child(id, "additionalProperties"));
            }
        }
    }
    if (listed && !said) object.more = false;
    for (const NodeId id : set_) {
        const auto required = nodes_.value(id).find("required");
        if (!required) continue;
        if (!required->is_array()) throw nodes_.error_at(id, "required", "is not a list");
        nodes_.spend(required->size());
        for (const JsonValue name : *required) {
            if (!name.is_string()) throw nodes_.error_at(id, "required", "has what is not a text");
            const auto [at, fresh] = places.emplace(name.text(), object.properties.size());
            if (fresh) {
                if (name.text().size() > kMostNameBytes) {
                    throw nodes_.error_at(
                        id, "required",
                        fmt::format("has a name of more than {} bytes", kMostNameBytes));
                }
                if (said && !object.more) {
                    throw nodes_.error_at(
                        id, "required",
                        fmt::format(
                            "'{}' is not a property, and additionalProperties allows no other",
                            printable(name.text(), 100)));
                }
                object.properties.push_back({std::string(name.text()), object.others});
            }
            object.properties[at->second].required = true;
        }
    }
}

void FactReader::read_array() {
    ArrayFacts& array = facts_.array;
    std::size_t places = 0;
    for (const NodeId id : set_) {
        const JsonValue schema = nodes_.value(id);
        array.least = std::max(array.least, count(id, schema, "minItems").value_or(0));
        array.most = std::min(array.most, count(id, schema, "maxItems").value_or(kUnbounded));
        if (schema["items"].is_array()) {
            throw nodes_.error_at(id, "items", "is a list", "write prefixItems");
        }
        const auto first = schema.find("prefixItems");
        if (!first) continue;
        if (!first->is_array()) throw nodes_.error_at(id, "prefixItems", "is not a list");
        places = std::max(places, first->size());
    }
    array.first.resize(places);
    for (const NodeId id : set_) {
        const std::size_t own = nodes_.value(id)["prefixItems"].size();
        nodes_.spend(places);
        for (std::size_t i = 0; i < places; ++i) {
            if (i < own) {
                array.first[i].push_back(nodes_.child(nodes_.child(id, "prefixItems"), i));
            } else if (nodes_.has(id, "items")) {
                array.first[i].push_back(nodes_.child(id, "items"));
            }
        }
        if (nodes_.has(id, "items")) array.items.push_back(nodes_.child(id, "items"));
    }
}

}  // namespace

std::optional<Facts> facts_of(SchemaNodes& nodes, const NodeSet& set) {
    return FactReader(nodes, set).read();
}

}  // namespace mr::text::grammar
