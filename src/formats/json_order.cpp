#include "formats/json_order.h"

#include <utility>

namespace mr::formats {
namespace {

// Recursion is bounded by the reader's depth limit.
void write(JsonValue value, std::string& out) {
    const char* comma = "";
    if (value.is_array()) {
        out += '[';
        for (const JsonValue item : value) {
            out += std::exchange(comma, ",");
            write(item, out);
        }
        out += ']';
    } else if (value.is_object()) {
        out += '{';
        for (const auto& [key, item] : value.items_in_file_order()) {
            out += std::exchange(comma, ",");
            out += json_quoted(key) + ':';
            write(item, out);
        }
        out += '}';
    } else {
        out += value.dump();
    }
}

}  // namespace

std::string dump_in_file_order(JsonValue value) {
    std::string out;
    write(value, out);
    return out;
}

}  // namespace mr::formats
