// A JSON schema as a network: the texts of the values that fit it. docs/structured-output.md says
// which keywords there are and how values are written.
#pragma once

#include <string>

#include "formats/json.h"
#include "text/grammar/network.h"

namespace mr::text::grammar {

inline constexpr std::size_t kMostSchemaNodes = 20'000;  // schemas inside of schemas
inline constexpr std::size_t kMostRules = 10'000;        // schemas, and joined ones
inline constexpr std::size_t kMostAlternatives = 128;    // of one value
inline constexpr std::size_t kMostOptional = 128;        // properties in a row that may be left out
inline constexpr std::size_t kMostNameBytes = 1024;      // of a property
inline constexpr std::size_t kMostEnumValues = 10'000;
inline constexpr std::size_t kMostReferences = 100;  // that lead to each other
inline constexpr std::size_t kMostWork = 1'000'000;  // steps to read all of a schema

// Throws Error (input), whose field is the path of what is wrong: `path` is the schema's own, such
// as "response_format.json_schema.schema". The document of `schema` may be gone afterwards.
Network network_of_schema(formats::JsonValue schema, const std::string& path);

// Any JSON object.
Network network_of_any_object();

}  // namespace mr::text::grammar
