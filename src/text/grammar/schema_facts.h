// What the keywords of schemas that hold together ask of a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/grammar/numbers.h"
#include "text/grammar/schema_nodes.h"

namespace mr::text::grammar {

// Schemas that a value must all fit, in the order in which they were met.
using NodeSet = std::vector<NodeId>;

enum TypeBits : std::uint32_t {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kFraction = 8,  // a number is this or an integer
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
    std::vector<Property> properties;  // in the order of the schema
    bool more = true;                  // other properties are written
    NodeSet others;                    // what fits them
};

struct ArrayFacts {
    std::vector<NodeSet> first;  // by place
    NodeSet items;               // behind those
    std::uint32_t least = 0, most = kUnbounded;
};

struct Facts {
    std::uint32_t types = kAnyType;
    std::optional<std::vector<formats::JsonValue>> values;  // of enum and const
    std::uint32_t min_length = 0, max_length = kUnbounded;
    std::optional<NodeId> pattern, format;
    NumberBounds numbers;
    ObjectFacts object;
    ArrayFacts array;
};

// Of schemas without $ref, allOf, anyOf and oneOf, or whose own are dealt with. Nothing where they
// exclude each other.
std::optional<Facts> facts_of(SchemaNodes& nodes, const NodeSet& set);

}  // namespace mr::text::grammar
