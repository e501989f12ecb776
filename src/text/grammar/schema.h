// A JSON schema as a network: the JSON texts of all values that fit it. docs/structured-output.md
// lists the keywords and says how values are written.
#pragma once

#include <string>

#include "formats/json.h"
#include "text/grammar/network.h"

namespace mr::text::grammar {

inline constexpr std::size_t kMostSchemaNodes = 20'000;  // nested schemas, in all
inline constexpr std::size_t kMostRules = 10'000;        // of schemas, and of sets joined by allOf
inline constexpr std::size_t kMostAlternatives = 128;    // per value
inline constexpr std::size_t kMostOptional = 128;        // consecutive optional properties
inline constexpr std::size_t kMostNameBytes = 1024;      // per property name
inline constexpr std::size_t kMostEnumValues = 10'000;
inline constexpr std::size_t kMostReferences = 100;  // in a chain
inline constexpr std::size_t kMostWork = 1'000'000;  // steps to read a whole schema

// Throws Error (input), whose field is the path of the fault; `path` is the schema's own, such as
// "response_format.json_schema.schema". The document of `schema` need not outlive the call.
Network network_of_schema(formats::JsonValue schema, const std::string& path);

// Any JSON object.
Network network_of_any_object();

}  // namespace mr::text::grammar
