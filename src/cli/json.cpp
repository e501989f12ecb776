// In a file of its own: the writer behind dump() takes longer to compile than most commands.
#include "cli/json.h"

#include "core/error.h"
#include "formats/json.h"

namespace mr::cli {
namespace {

Json tree_of(formats::JsonValue value) {
    if (value.is_null()) return nullptr;
    if (value.is_boolean()) return value.get<bool>();
    if (value.is_string()) return value.text();
    if (value.is_number_unsigned()) return value.get<std::uint64_t>();
    if (value.is_number_integer()) return value.get<std::int64_t>();
    if (value.is_number()) return value.get<double>();
    if (value.is_array()) {
        Json list = Json::array();
        for (const formats::JsonValue item : value) list.push_back(tree_of(item));
        return list;
    }
    Json object = Json::object();
    for (const auto& [key, item] : value.items_in_file_order()) {
        object[std::string(key)] = tree_of(item);
    }
    return object;
}

}  // namespace

std::string json_line(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}
std::string json_text(const Json& json) {
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<Json> object_of_line(std::string_view line) {
    try {
        const auto document = formats::JsonDocument::parse(line, "");
        if (!document.root().is_object()) return std::nullopt;
        return tree_of(document.root());
    } catch (const Error&) {
        return std::nullopt;
    }
}

}  // namespace mr::cli
