// JSON to the values of templates: tools, documents and whatever else a template is given.
#pragma once

#include <string_view>

#include "text/jinja/value.h"

namespace mr::text::jinja {

// `user`: its texts are people's. Objects keep the order of their keys. Throws Failure for what is
// no JSON, or nests too deep.
Value value_of_json(std::string_view json, bool user);

}  // namespace mr::text::jinja
