// JSON as the commands print it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace mr::cli {

using Json = nlohmann::ordered_json;

// A line, or indented for people to read. Prompts, texts and names may be any bytes and JSON may
// not: what is not UTF-8 becomes U+FFFD.
inline std::string json_line(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}
inline std::string json_text(const Json& json) {
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace mr::cli
