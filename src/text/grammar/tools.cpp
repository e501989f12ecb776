#include "text/grammar/tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/printable.h"
#include "text/grammar/schema_compiler.h"
#include "text/grammar/store.h"

namespace mr::text::grammar {
namespace {

using formats::JsonValue;

Error wrong(std::string path, std::string problem, std::string remedy = {}) {
    return Error::input(
        {.field = std::move(path), .problem = std::move(problem), .remedy = std::move(remedy)});
}

bool good_name(std::string_view name) {
    const auto good = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_' || c == '-';
    };
    return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), good);
}

// One byte of plain text: no control characters except tabs and line ends.
std::vector<Edge> text_edges(Network& network, StateId next) {
    std::vector<Edge> edges = {{'\t', '\n', next}, {'\r', '\r', next}, {0x20, 0x7F, next}};
    const std::vector<Edge> wide = network.multibyte(next);
    edges.insert(edges.end(), wide.begin(), wide.end());
    return edges;
}

// Changes the edges so that `byte` leads to `to`; kNoState: to nothing.
void redirect(std::vector<Edge>& edges, char byte, StateId to) {
    const auto at = static_cast<std::uint8_t>(byte);
    std::vector<Edge> out;
    for (const Edge& edge : edges) {
        if (at < edge.low || at > edge.high) {
            out.push_back(edge);
            continue;
        }
        if (edge.low < at) out.push_back({edge.low, static_cast<std::uint8_t>(at - 1), edge.to});
        if (to != kNoState) out.push_back({at, at, to});
        if (at < edge.high) out.push_back({static_cast<std::uint8_t>(at + 1), edge.high, edge.to});
    }
    edges = std::move(out);
}

// A call, or a list of calls; or a text that starts like neither, or a formatted one.
StateId plain_calls(Network& network, RuleId call, const ToolChoice& choice, StateId formatted) {
    constexpr StateId kEnd = Network::kEnd;
    std::vector<StateId> starts = {network.call(call, kEnd)};
    if (choice.several) {
        const RuleId another = network.add_rule();
        network.define(another, network.byte(',', network.blank(network.call(call, kEnd))));
        const StateId more = network.repeat(another, 0, kMostCalls - 1, network.byte(']', kEnd));
        starts.push_back(network.byte('[', network.call(call, more)));
    }
    if (formatted != kNoState) {
        starts.push_back(formatted);
    } else if (!choice.required) {
        const RuleId character = network.add_rule();
        network.define(character, network.bytes(text_edges(network, kEnd)));
        const StateId rest = network.repeat(character, 0, kUnbounded, kEnd);
        std::vector<Edge> edges = text_edges(network, rest);
        redirect(edges, '{', kNoState);
        redirect(edges, '[', kNoState);
        starts.push_back(network.bytes(edges));
        starts.push_back(kEnd);
    }
    return network.split(starts);
}

// A text without the tag, possibly empty; then calls, each between its tags.
StateId tagged_calls(Network& network, RuleId call, const ToolChoice& choice, const ToolForm& form,
                     StateId formatted) {
    constexpr StateId kEnd = Network::kEnd;
    const auto line = [&](StateId next) { return network.split(network.byte('\n', next), next); };
    // After the opening tag.
    const auto inside = [&](StateId next) {
        return line(network.call(call, line(network.literal(form.close, next))));
    };
    StateId behind = kEnd;
    if (choice.several) {
        const RuleId another = network.add_rule();
        network.define(another, line(network.literal(form.open, inside(kEnd))));
        behind = network.repeat(another, 0, kMostCalls - 1, kEnd);
    }
    const StateId first = inside(behind);
    if (choice.required) return network.literal(form.open, first);
    if (formatted != kNoState) return network.split(formatted, network.literal(form.open, first));
    // In state i, i bytes of the tag have been read. The tag's first byte occurs in it only once,
    // so a broken match can only restart at that byte.
    MR_CHECK(form.open.find(form.open[0], 1) == std::string::npos, "a tag that begins once");
    std::vector<StateId> states;
    for (std::size_t i = 0; i < form.open.size(); ++i) states.push_back(network.reserve());
    for (std::size_t i = 0; i < form.open.size(); ++i) {
        std::vector<Edge> edges = text_edges(network, states[0]);
        redirect(edges, form.open[0], states.size() > 1 ? states[1] : first);
        redirect(edges, form.open[i], i + 1 < states.size() ? states[i + 1] : first);
        network.set_split(states[i], std::vector<StateId>{network.bytes(edges), kEnd});
    }
    return states[0];
}

// Refuses a format in which a text could begin as a call of one of the tools.
void refuse_like_calls(const TextFormat& format, std::span<const Tool> tools,
                       const ToolForm& form) {
    const Network network = network_of_format(format);
    auto store = std::make_unique<Store>(network);
    const auto refuse_if_begun = [&](const std::string& text, std::string_view what) {
        if (store->full()) store = std::make_unique<Store>(network);
        if (store->next(store->start(), text) == Store::kDead) return;
        throw wrong(format.path,
                    fmt::format("a text in this format can begin as {} does, and 'tools' leave the "
                                "model the choice",
                                what),
                    format.kind == TextFormat::Kind::object
                        ? "name another property first, set additionalProperties to false, or set "
                          "tool_choice"
                        : "let no text of the format begin so, or set tool_choice");
    };
    if (form.tagged()) return refuse_if_begun(form.open, "a call");
    for (const Tool& tool : tools) {
        for (unsigned blanks = 0; blanks < 8; ++blanks) {
            const auto blank = [&](unsigned bit) { return blanks >> bit & 1 ? " " : ""; };
            const std::string head = fmt::format(R"({{"name":{}"{}",{}"arguments":{}{{)", blank(0),
                                                 tool.name, blank(1), blank(2));
            const std::string what = fmt::format("a call of '{}'", tool.name);
            refuse_if_begun(head, what);
            refuse_if_begun("[" + head, what);
        }
    }
}

}  // namespace

void check_tools(std::span<const Tool> tools, const std::string& path) {
    if (tools.empty()) throw wrong(path, "is empty");
    if (tools.size() > kMostTools) {
        throw wrong(path, fmt::format("has more than {} tools", kMostTools));
    }
    std::set<std::string_view> names;
    for (const Tool& tool : tools) {
        if (!good_name(tool.name)) {
            throw wrong(path,
                        fmt::format("'{}' is not a valid tool name", printable(tool.name, 100)),
                        "use 1 to 64 letters, digits, _ and -");
        }
        if (!names.insert(tool.name).second) {
            throw wrong(path, fmt::format("'{}' is given twice", tool.name));
        }
    }
}

std::vector<Tool> read_tools(JsonValue tools, const std::string& path) {
    if (!tools.is_array()) throw wrong(path, "is not a list");
    if (tools.size() > kMostTools) {
        throw wrong(path, fmt::format("has more than {} tools", kMostTools));
    }
    std::vector<Tool> out;
    for (std::size_t i = 0; i < tools.size(); ++i) {
        const std::string here = fmt::format("{}.{}", path, i);
        const JsonValue tool = tools[i];
        if (!tool.is_object()) throw wrong(here, "is not an object");
        if (!(tool["type"] == "function")) throw wrong(here + ".type", "is not 'function'");
        const JsonValue function = tool["function"];
        if (!function.is_object()) throw wrong(here + ".function", "is not an object");
        if (!function["name"].is_string()) throw wrong(here + ".function.name", "is not a text");
        const JsonValue parameters = function["parameters"];
        if (!parameters.is_null() && !parameters.is_object()) {
            throw wrong(here + ".function.parameters", "is not a schema");
        }
        out.push_back(
            {function["name"].get<std::string>(), parameters, here + ".function.parameters"});
    }
    check_tools(out, path);
    return out;
}

std::optional<ToolChoice> read_tool_choice(JsonValue choice, std::span<const Tool> tools,
                                           bool several, const std::string& path) {
    if (choice.is_null() || choice == "auto") return ToolChoice{.several = several};
    if (choice == "none") return std::nullopt;
    if (choice == "required") return ToolChoice{.required = true, .several = several};
    const JsonValue name = choice["function"]["name"];
    if (!(choice["type"] == "function") || !name.is_string()) {
        throw wrong(path, fmt::format("{} is not a choice", printable(choice.shown(), 100)),
                    "use auto, none, required or {\"type\": \"function\", \"function\": "
                    "{\"name\": NAME}}");
    }
    for (const Tool& tool : tools) {
        if (name == tool.name) return ToolChoice{true, tool.name, false};
    }
    throw wrong(path + ".function.name",
                fmt::format("'{}' is not one of the tools", printable(name.text(), 100)));
}

Network network_of_tools(std::span<const Tool> tools, const ToolChoice& choice,
                         const ToolForm& form, const TextFormat& format) {
    Network network("tools");
    SchemaCompiler compiler(network);
    constexpr StateId kEnd = Network::kEnd;
    StateId formatted = kNoState;
    static const formats::JsonDocument no_call = formats::JsonDocument::parse(
        R"({"type": "object", "properties": {"arguments": false}, "additionalProperties": true})",
        "an object that is no call");
    if (format && !choice.required) {
        TextFormat free = format;
        if (format.kind == TextFormat::Kind::object && !form.tagged()) free.schema = no_call.root();
        refuse_like_calls(free, tools, form);
        formatted = network.call(add_format(network, compiler, free), kEnd);
    }
    const RuleId call = network.add_rule();
    const StateId close = network.byte('}', kEnd);
    Network::Literals names;
    std::vector<std::pair<RuleId, const Tool*>> rules;
    for (const Tool& tool : tools) {
        if (!choice.only.empty() && tool.name != choice.only) continue;
        StateId arguments = network.literal("{}", close);
        if (!tool.parameters.is_null()) {
            const RuleId rule = compiler.add_object(tool.parameters, tool.path);
            arguments = network.call(rule, close);
            rules.emplace_back(rule, &tool);
        }
        names.emplace_back(
            formats::json_quoted(tool.name) + ",",
            network.blank(network.literal("\"arguments\":", network.blank(arguments))));
    }
    MR_CHECK(!names.empty(), "a tool can be chosen");
    network.define(
        call, network.literal("{\"name\":", network.blank(network.literals(std::move(names)))));
    network.define(Network::kMain, form.tagged()
                                       ? tagged_calls(network, call, choice, form, formatted)
                                       : plain_calls(network, call, choice, formatted));
    compiler.finish();
    network.finish();
    for (const auto& [rule, tool] : rules) {
        if (network.need(network.start(rule)) >= kMostHeight) {
            throw wrong(tool->path, "no object fits this schema");
        }
    }
    return network;
}

}  // namespace mr::text::grammar
