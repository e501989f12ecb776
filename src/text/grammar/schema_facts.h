// What a set of schemas together requires of a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/grammar/numbers.h"
#include "text/grammar/schema_nodes.h"

namespace mr::text::grammar {

// Schemas that a value must satisfy all, in order of appearance.
using NodeSet = std::vector<NodeId>;

enum TypeBits : std::uint32_t {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kFraction = 8,  // a number is a fraction or an integer
    kString = 16,
    kArray = 32,
    kObject = 64,
    kAnyType = 127,
};

struct ObjectFacts {
    struct Property {
        std::string name;
        NodeSet value;
        bool required = false;
    };
    std::vector<Property> properties;  // in schema order
    bool more = true;                  // other properties are allowed
    NodeSet others;                    // the schemas of their values
};

struct ArrayFacts {
    std::vector<NodeSet> first;  // by position
    NodeSet items;               // after those
    std::uint32_t least = 0, most = kUnbounded;
};

struct Facts {
    std::uint32_t types = kAnyType;
    std::optional<std::vector<formats::JsonValue>> values;  // from enum and const
    std::uint32_t min_length = 0, max_length = kUnbounded;
    std::optional<NodeId> pattern, format;
    NumberBounds numbers;
    ObjectFacts object;
    ArrayFacts array;
};

// For schemas without $ref, allOf, anyOf and oneOf, or with these already expanded. Empty if the
// schemas exclude each other.
std::optional<Facts> facts_of(SchemaNodes& nodes, const NodeSet& set);

}  // namespace mr::text::grammar
