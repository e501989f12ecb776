#include "text/jinja/value_json.h"

#include "core/error.h"
#include "formats/json.h"

namespace mr::text::jinja {
namespace {

// Recursion is bounded by the reader's depth limit.
Value value_of(formats::JsonValue json, bool user) {
    if (json.is_null()) return None{};
    if (json.is_boolean()) return json.get<bool>();
    if (json.is_string()) return MarkedText(json.get<std::string>(), user);
    if (json.is_number_integer()) {
        if (!json.is_integer_in(INT64_MIN, INT64_MAX)) {
            throw Failure{"has an integer that does not fit into 64 bits"};
        }
        return json.get<std::int64_t>();
    }
    if (json.is_number()) return json.get<double>();
    if (json.is_array()) {
        std::vector<Value> items;
        items.reserve(json.size());
        for (const formats::JsonValue item : json) items.push_back(value_of(item, user));
        return Value::list(std::move(items));
    }
    std::vector<std::pair<Value, Value>> entries;
    entries.reserve(json.size());
    for (const auto& [key, value] : json.items_in_file_order()) {
        entries.emplace_back(MarkedText(std::string(key), user), value_of(value, user));
    }
    return Value::map(std::move(entries));
}

}  // namespace

Value value_of_json(std::string_view json, bool user) {
    formats::JsonDocument document;
    try {
        document = formats::JsonDocument::parse(json, "", "",
                                                {.depth = kMaxValueDepth, .repeated_keys = true});
    } catch (const Error& error) {
        throw Failure{error.what()};
    }
    return value_of(document.root(), user);
}

}  // namespace mr::text::jinja
