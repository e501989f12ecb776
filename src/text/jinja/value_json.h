// Converts JSON to template values: tools, documents and other variables.
#pragma once

#include <string_view>

#include "text/jinja/value.h"

namespace mr::text::jinja {

// `user`: its strings count as user text. Objects keep the order of their keys. Throws Failure if
// it is not JSON or nests too deep.
Value value_of_json(std::string_view json, bool user);

}  // namespace mr::text::jinja
