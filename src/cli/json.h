// JSON as the commands print it, and as they hear it from the programs that they ask.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace mr::cli {

using Json = nlohmann::ordered_json;

// A line, or indented for people to read. Prompts, texts and names may be any bytes and JSON may
// not: what is not UTF-8 becomes U+FFFD.
std::string json_line(const Json& json);
std::string json_text(const Json& json);

// The object that a line holds, as a tree to be printed again; none where it holds none.
std::optional<Json> object_of_line(std::string_view line);

}  // namespace mr::cli
