// The schemas inside of schemas, by number, each with the way to it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "formats/json.h"

namespace mr::text::grammar {

using NodeId = std::uint32_t;

class SchemaNodes {
  public:
    // The schema that is the root of "#/..." for all below it.
    NodeId add_root(formats::JsonValue value, std::string path);
    // Of a list, `step` is the number as text. It must be there.
    NodeId child(NodeId parent, std::string_view step);
    NodeId child(NodeId parent, std::size_t index) { return child(parent, std::to_string(index)); }
    bool has(NodeId id, std::string_view key) const { return value(id).contains(key); }

    formats::JsonValue value(NodeId id) const { return nodes_[id].value; }
    // What a "$ref" of this node means.
    NodeId target(NodeId id);
    // "response_format.json_schema.schema.properties.x"
    std::string path(NodeId id) const;
    Error error(NodeId id, std::string problem, std::string remedy = {}) const;
    // Of one of its keywords.
    Error error_at(NodeId id, std::string_view keyword, std::string problem,
                   std::string remedy = {}) const;

    // Whether every value fits, as seen at once: true, or an object of annotations.
    bool is_anything(NodeId id) const;
    // Counts work that grows with a schema: members looked at, bytes written. Throws Error where it
    // is more than kMostWork.
    void spend(std::size_t work);
    // Once for each node: a schema, whose keywords are all known.
    void check(NodeId id);

  private:
    struct Node {
        formats::JsonValue value;
        NodeId parent, root;
        std::string step;
        bool checked = false;
    };
    std::vector<Node> nodes_;
    std::size_t work_ = 0;
    std::map<std::pair<NodeId, std::string>, NodeId> children_;
};

}  // namespace mr::text::grammar
