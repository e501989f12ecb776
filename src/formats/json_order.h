// JSON in its original key order, for consumers to whom the order matters.
#pragma once

#include <string>

#include "formats/json.h"

namespace mr::formats {

// Compact JSON with the keys in file order.
std::string dump_in_file_order(JsonValue value);

}  // namespace mr::formats
