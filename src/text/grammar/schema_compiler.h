// Schemas to rules of a network. For what is made of several schemas, such as tool calls, there is
// one compiler with several roots.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "formats/json.h"
#include "text/grammar/network.h"
#include "text/grammar/regex.h"
#include "text/grammar/schema_facts.h"
#include "text/grammar/schema_nodes.h"

namespace mr::text::grammar {

class SchemaCompiler {
  public:
    explicit SchemaCompiler(Network& network) : network_(network) {}

    // The rule of a schema. finish() writes it.
    RuleId add(formats::JsonValue schema, const std::string& path);
    // Of its values the objects.
    RuleId add_object(formats::JsonValue schema, const std::string& path);
    // Writes all rules that were asked for, and those that they ask for.
    void finish();

  private:
    struct Alternative;

    RuleId rule_of(NodeSet set);
    StateId start_of(const NodeSet& set);
    std::vector<NodeSet> alternatives(const NodeSet& set);
    bool take_apart(Alternative& alternative, std::vector<Alternative>& work);
    // The schemas of allOf, anyOf or oneOf.
    std::vector<NodeId> parts_of(NodeId node, const char* keyword);
    // Where a value begins; behind it, its rule ends.
    StateId value(const Facts& facts);
    StateId literal_values(const std::vector<formats::JsonValue>& values);
    StateId string(const Facts& facts);
    StateId object(const ObjectFacts& facts);
    StateId array(const ArrayFacts& facts);
    // A property that is none of those listed.
    StateId others(const ObjectFacts& facts, StateId next);

    Network& network_;
    const formats::JsonDocument any_object_ =
        formats::JsonDocument::parse(R"({"type": "object"})", "any object");
    SchemaNodes nodes_;
    RegexBudget budget_;
    std::map<NodeSet, RuleId> rules_;
    std::map<std::string, StateId> scalars_;  // strings and numbers by what is asked of them
    std::vector<std::pair<RuleId, NodeSet>> todo_;
    // The schemas that led to each other: each with the one before.
    struct Link {
        NodeId node;
        std::uint32_t before, length;
    };
    std::vector<Link> links_;
    NodeId now_ = 0;  // a schema of the rule that is being written, for errors
};

}  // namespace mr::text::grammar
