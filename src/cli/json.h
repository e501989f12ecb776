// JSON output of the commands, and answers of the programs they run.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace mr::cli {

using Json = nlohmann::ordered_json;

// One line, or indented for people. Prompts, texts and names may have any bytes, but JSON needs
// UTF-8: invalid bytes become U+FFFD.
std::string json_line(const Json& json);
std::string json_text(const Json& json);

// The object in a line, as a tree to print again; none if it holds none.
std::optional<Json> object_of_line(std::string_view line);

}  // namespace mr::cli
