// Numbers all nested schemas, each with its path.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
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
    // Adds a schema as the root of "#/..." references below it.
    NodeId add_root(formats::JsonValue value, std::string path);
    // For a list, `step` is the index as text. The child must exist.
    NodeId child(NodeId parent, std::string_view step);
    NodeId child(NodeId parent, std::size_t index) { return child(parent, std::to_string(index)); }
    bool has(NodeId id, std::string_view key) const { return value(id).contains(key); }

    formats::JsonValue value(NodeId id) const { return nodes_[id].value; }
    // The schema that this node's "$ref" points to.
    NodeId target(NodeId id);
    // "response_format.json_schema.schema.properties.x"
    std::string path(NodeId id) const;
    Error error(NodeId id, std::string problem, std::string remedy = {}) const;
    // An error about one of its keywords.
    Error error_at(NodeId id, std::string_view keyword, std::string problem,
                   std::string remedy = {}) const;

    // Whether it obviously accepts every value: true, or an object of annotations only.
    bool is_anything(NodeId id) const;
    // Counts work that grows with a schema: members read, bytes written. Throws Error if it exceeds
    // kMostWork.
    void spend(std::size_t work);
    // Once for each node: checks that it is a schema and all its keywords are known.
    void check(NodeId id);

  private:
    // The schema at a JSON pointer below a root, if there is one.
    std::optional<NodeId> follow(NodeId root, std::string_view pointer);

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
