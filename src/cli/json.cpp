// A separate file: the writer behind dump() takes longer to compile than most commands.
#include "cli/json.h"

#include <fmt/format.h>

#include "core/error.h"
#include "core/printable.h"
#include "core/utf8.h"
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

// Writes \\u202e in place of characters that a terminal would obey, which means the same in JSON.
// They occur only in strings, except for the newlines between.
std::string shown(std::string json) {
    std::string out;
    std::size_t done = 0;
    for (std::size_t i = 0; i < json.size();) {
        const Utf8Char c = utf8_at(json, i);
        if (c.code >= 0x7F && is_unprintable(c.code)) {
            out.append(json, done, i - done);
            if (c.code > 0xFFFF) {  // a surrogate pair
                const std::uint32_t rest = static_cast<std::uint32_t>(c.code) - 0x10000;
                out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10),
                                   0xDC00 + (rest & 0x3FF));
            } else {
                out += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c.code));
            }
            done = i + c.size;
        }
        i += c.size;
    }
    if (done == 0) return json;
    return out.append(json, done);
}

}  // namespace

std::string json_line(const Json& json) {
    return shown(json.dump(-1, ' ', false, Json::error_handler_t::replace)) + "\n";
}
std::string json_text(const Json& json) {
    return shown(json.dump(2, ' ', false, Json::error_handler_t::replace)) + "\n";
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
