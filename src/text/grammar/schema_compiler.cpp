#include "text/grammar/schema_compiler.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/grammar/schema.h"

namespace mr::text::grammar {
namespace {

using formats::JsonValue;

constexpr std::uint32_t kNoLink = ~std::uint32_t{0};

}  // namespace

RuleId SchemaCompiler::add(JsonValue schema, const std::string& path) {
    return rule_of({nodes_.add_root(schema, path)});
}

RuleId SchemaCompiler::add_object(JsonValue schema, const std::string& path) {
    const NodeId own = nodes_.add_root(schema, path);
    return rule_of({own, nodes_.add_root(any_object_.root(), path)});
}

RuleId SchemaCompiler::rule_of(NodeSet set) {
    nodes_.spend(1 + set.size());
    // Schemas that accept everything add nothing.
    std::erase_if(set, [&](NodeId id) { return nodes_.is_anything(id); });
    std::sort(set.begin(), set.end());  // node numbers follow the order of the schema
    set.erase(std::unique(set.begin(), set.end()), set.end());
    const auto [at, fresh] = rules_.try_emplace(std::move(set), RuleId{0});
    if (!fresh) return at->second;
    if (rules_.size() > kMostRules) {
        throw nodes_.error(
            0, fmt::format("has more than {} schemas, alone or joined by allOf", kMostRules));
    }
    at->second = network_.add_rule();
    todo_.emplace_back(at->second, at->first);
    return at->second;
}

void SchemaCompiler::finish() {
    for (std::size_t i = 0; i < todo_.size(); ++i) {
        const auto [rule, set] = todo_[i];
        network_.define(rule, start_of(set));
    }
    todo_.clear();
}

StateId SchemaCompiler::start_of(const NodeSet& set) {
    now_ = set.empty() ? 0 : set.front();
    std::vector<StateId> starts;
    for (const NodeSet& alternative : alternatives(set)) {
        const auto facts = facts_of(nodes_, alternative);
        if (facts) starts.push_back(value(*facts));
    }
    return network_.split(starts);
}

// One way to satisfy a set of schemas: those
// already expanded, and those still to be expanded.
struct SchemaCompiler::Alternative {
    struct Todo {
        NodeId node;
        enum class Part : std::uint8_t { own, any_of, one_of } part;
        std::uint32_t within;  // the chain of schemas that led here, in links_
    };
    NodeSet done;
    std::vector<Todo> todo;
};

std::vector<NodeId> SchemaCompiler::parts_of(NodeId node, const char* keyword) {
    const auto list = nodes_.value(node).find(keyword);
    std::vector<NodeId> out;
    if (!list) return out;
    if (!list->is_array() || list->empty()) {
        throw nodes_.error_at(node, keyword, "is not a list of schemas");
    }
    if (list->size() > kMostAlternatives) {
        throw nodes_.error_at(node, keyword,
                              fmt::format("has more than {} schemas", kMostAlternatives));
    }
    const NodeId parent = nodes_.child(node, keyword);
    for (std::size_t i = 0; i < list->size(); ++i) out.push_back(nodes_.child(parent, i));
    return out;
}

// Expands one schema of the alternative. Returns false if it became several alternatives, which are
// added to `work`.
bool SchemaCompiler::take_apart(Alternative& alternative, std::vector<Alternative>& work) {
    using Part = Alternative::Todo::Part;
    const Alternative::Todo todo = alternative.todo.back();
    alternative.todo.pop_back();
    nodes_.spend(1);
    std::uint32_t within = todo.within;
    if (todo.part == Part::own) {
        for (std::uint32_t at = within; at != kNoLink; at = links_[at].before) {
            if (links_[at].node != todo.node) continue;
            throw nodes_.error(todo.node, "refers to itself without an object or a list between");
        }
        const std::uint32_t length = within == kNoLink ? 1 : links_[within].length + 1;
        if (length > kMostReferences) {
            throw nodes_.error(
                todo.node, fmt::format("more than {} schemas lead to each other", kMostReferences));
        }
        links_.push_back({todo.node, within, length});
        within = static_cast<std::uint32_t>(links_.size() - 1);
    }
    const JsonValue schema = nodes_.value(todo.node);
    const auto inside = [&](NodeId node) { return Alternative::Todo{node, Part::own, within}; };
    if (todo.part == Part::own) {
        nodes_.check(todo.node);
        if (std::find(alternative.done.begin(), alternative.done.end(), todo.node) !=
            alternative.done.end()) {
            return true;
        }
        alternative.done.push_back(todo.node);
        if (schema.contains("anyOf")) alternative.todo.push_back({todo.node, Part::any_of, within});
        if (schema.contains("oneOf")) alternative.todo.push_back({todo.node, Part::one_of, within});
        const std::vector<NodeId> all = parts_of(todo.node, "allOf");
        for (std::size_t i = all.size(); i-- > 0;) alternative.todo.push_back(inside(all[i]));
        if (schema.contains("$ref")) alternative.todo.push_back(inside(nodes_.target(todo.node)));
        return true;
    }
    const std::vector<NodeId> parts =
        parts_of(todo.node, todo.part == Part::any_of ? "anyOf" : "oneOf");
    nodes_.spend(parts.size() * (1 + alternative.done.size() + alternative.todo.size()));
    for (std::size_t i = parts.size(); i-- > 0;) {
        work.push_back(alternative);
        work.back().todo.push_back(inside(parts[i]));
    }
    return false;
}

std::vector<NodeSet> SchemaCompiler::alternatives(const NodeSet& set) {
    links_.clear();
    Alternative whole;
    for (std::size_t i = set.size(); i-- > 0;) {
        whole.todo.push_back({set[i], Alternative::Todo::Part::own, kNoLink});
    }
    std::vector<Alternative> work = {std::move(whole)};
    std::vector<NodeSet> out;
    while (!work.empty()) {
        Alternative alternative = std::move(work.back());
        work.pop_back();
        bool one = true;
        while (one && !alternative.todo.empty()) one = take_apart(alternative, work);
        if (one) out.push_back(std::move(alternative.done));
        if (out.size() + work.size() > 2 * kMostAlternatives || out.size() > kMostAlternatives) {
            throw nodes_.error(now_,
                               fmt::format("has more than {} alternatives", kMostAlternatives),
                               "use fewer of anyOf and oneOf inside of each other");
        }
    }
    return out;
}

Network network_of_schema(JsonValue schema, const std::string& path) {
    Network network(path);
    SchemaCompiler compiler(network);
    const RuleId rule = compiler.add(schema, path);
    network.define(Network::kMain, network.call(rule, Network::kEnd));
    compiler.finish();
    network.finish();
    return network;
}

Network network_of_any_object() {
    const auto schema = formats::JsonDocument::parse(R"({"type": "object"})", "any object");
    return network_of_schema(schema.root(), "response_format");
}

}  // namespace mr::text::grammar
