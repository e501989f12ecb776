// JSON as it came, for readers to whom the order of keys means something.
#pragma once

#include <string>

#include "formats/json.h"

namespace mr::formats {

// Without spaces, with the keys in the order in which they came.
std::string dump_in_file_order(JsonValue value);

}  // namespace mr::formats
