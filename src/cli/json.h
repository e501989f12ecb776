// JSON as the commands print it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace mr::cli {

using Json = nlohmann::ordered_json;

// A line, or indented for people to read. Prompts, texts and names may be any bytes and JSON may
// not: what is not UTF-8 becomes U+FFFD.
std::string json_line(const Json& json);
std::string json_text(const Json& json);

}  // namespace mr::cli
