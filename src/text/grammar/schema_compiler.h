// Compiles schemas to rules of a network. Tool calls consist of several schemas: they use one
// compiler with several roots.
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

    // The rule of a schema; finish() defines it.
    RuleId add(formats::JsonValue schema, const std::string& path);
    // The rule of the schema's objects alone.
    RuleId add_object(formats::JsonValue schema, const std::string& path);
    // Defines all rules that were requested, and those that they use.
    void finish();

  private:
    struct Alternative;

    RuleId rule_of(NodeSet set);
    StateId start_of(const NodeSet& set);
    std::vector<NodeSet> alternatives(const NodeSet& set);
    bool take_apart(Alternative& alternative, std::vector<Alternative>& work);
    // The schemas of allOf, anyOf or oneOf.
    std::vector<NodeId> parts_of(NodeId node, const char* keyword);
    // The start state of a value; its rule ends after it.
    StateId value(const Facts& facts);
    StateId literal_values(const std::vector<formats::JsonValue>& values);
    StateId string(const Facts& facts);
    StateId object(const ObjectFacts& facts);
    StateId array(const ArrayFacts& facts);
    // A property that is not listed.
    StateId others(const ObjectFacts& facts, StateId next);

    Network& network_;
    const formats::JsonDocument any_object_ =
        formats::JsonDocument::parse(R"({"type": "object"})", "any object");
    SchemaNodes nodes_;
    RegexBudget budget_;
    std::map<NodeSet, RuleId> rules_;
    std::map<std::string, StateId> scalars_;  // strings and numbers, by their constraints
    std::vector<std::pair<RuleId, NodeSet>> todo_;
    // Chains of schemas that led to each other; each link knows the one before.
    struct Link {
        NodeId node;
        std::uint32_t before, length;
    };
    std::vector<Link> links_;
    NodeId now_ = 0;  // a schema of the current rule, for errors
};

}  // namespace mr::text::grammar
