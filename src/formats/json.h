// JSON from a file that nobody vouches for: bounded depth, no duplicate keys, errors with offsets.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace mr::formats {

// Throws Error (input) naming `file`, and `field` where one is given, for anything but one valid
// JSON value nested at most `max_depth` deep in which no object has a key twice.
nlohmann::json parse_json(std::string_view text, const std::string& file, std::string_view field,
                          int max_depth = 64);

}  // namespace mr::formats
