// OpenAI's "response_format" as a network.
#pragma once

#include <optional>
#include <string>

#include "formats/json.h"
#include "text/grammar/network.h"

namespace mr::text::grammar {

// {"type": "text"}, or null: nothing. {"type": "json_object"}: any object. {"type": "json_schema",
// "json_schema": {"name", "schema", "strict", "description"}}: the schema's values, whether
// "strict" is set or not. Throws Error (input) with the path of the fault.
std::optional<Network> network_of_response_format(formats::JsonValue format,
                                                  const std::string& path = "response_format");

}  // namespace mr::text::grammar
