#include "text/grammar/tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/printable.h"
#include "text/grammar/schema_compiler.h"

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

// The value as JSON with the keys in the order in which they came. As deep as the reader lets
// values nest.
void write_in_order(JsonValue value, std::string& out) {
    const char* comma = "";
    if (value.is_array()) {
        out += '[';
        for (const JsonValue item : value) {
            out += std::exchange(comma, ",");
            write_in_order(item, out);
        }
        out += ']';
    } else if (value.is_object()) {
        out += '{';
        for (const auto& [key, item] : value.items_in_file_order()) {
            out += std::exchange(comma, ",");
            out += formats::json_quoted(key) + ':';
            write_in_order(item, out);
        }
        out += '}';
    } else {
        out += value.dump();
    }
}

std::optional<ToolCall> call_of(JsonValue value) {
    const auto name = value.find("name");
    const auto arguments = value.find("arguments");
    if (!name || !name->is_string() || !arguments || !arguments->is_object()) return std::nullopt;
    ToolCall call{name->get<std::string>(), {}};
    write_in_order(*arguments, call.arguments);
    return call;
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
            throw wrong(path, fmt::format("'{}' is no name of a tool", printable(tool.name, 100)),
                        "take 1 to 64 letters, digits, _ and -");
        }
        if (!names.insert(tool.name).second) {
            throw wrong(path, fmt::format("'{}' is there twice", tool.name));
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
        throw wrong(path, fmt::format("{} is no choice", printable(choice.shown(), 100)),
                    "take auto, none, required or {\"type\": \"function\", \"function\": "
                    "{\"name\": NAME}}");
    }
    for (const Tool& tool : tools) {
        if (name == tool.name) return ToolChoice{true, tool.name, false};
    }
    throw wrong(path + ".function.name",
                fmt::format("'{}' is none of the tools", printable(name.text(), 100)));
}

Network network_of_tools(std::span<const Tool> tools, const ToolChoice& choice) {
    Network network("tools");
    SchemaCompiler compiler(network);
    constexpr StateId kEnd = Network::kEnd;
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
    std::vector<StateId> starts = {network.call(call, kEnd)};
    if (choice.several) {
        const RuleId another = network.add_rule();
        network.define(another, network.byte(',', network.blank(network.call(call, kEnd))));
        const StateId more = network.repeat(another, 0, kMostCalls - 1, network.byte(']', kEnd));
        starts.push_back(network.byte('[', network.call(call, more)));
    }
    if (!choice.required) {
        const RuleId character = network.add_rule();
        const std::vector<Edge> wide = network.multibyte(kEnd);
        std::vector<Edge> edges = {{'\t', '\n', kEnd}, {'\r', '\r', kEnd}, {0x20, 0x7F, kEnd}};
        edges.insert(edges.end(), wide.begin(), wide.end());
        network.define(character, network.bytes(edges));
        const StateId rest = network.repeat(character, 0, kUnbounded, kEnd);
        const std::vector<Edge> wide_first = network.multibyte(rest);
        edges = {{'\t', '\n', rest},
                 {'\r', '\r', rest},
                 {0x20, '[' - 1, rest},
                 {'[' + 1, '{' - 1, rest},
                 {'{' + 1, 0x7F, rest}};
        edges.insert(edges.end(), wide_first.begin(), wide_first.end());
        starts.push_back(network.bytes(edges));
        starts.push_back(kEnd);
    }
    network.define(Network::kMain, network.split(starts));
    compiler.finish();
    network.finish();
    for (const auto& [rule, tool] : rules) {
        if (network.need(network.start(rule)) >= kMostHeight) {
            throw wrong(tool->path, "no object fits this schema");
        }
    }
    return network;
}

std::optional<std::vector<ToolCall>> parse_tool_calls(std::string_view text) {
    if (!text.starts_with('{') && !text.starts_with('[')) return std::nullopt;
    formats::JsonDocument document;
    try {
        document = formats::JsonDocument::parse(text, "a tool call", {}, {.repeated_keys = true});
    } catch (const Error&) {
        return std::nullopt;  // a text that looks like one
    }
    std::vector<ToolCall> calls;
    const auto add = [&](JsonValue value) {
        auto call = call_of(value);
        if (call) calls.push_back(std::move(*call));
        return call.has_value();
    };
    if (document.root().is_object()) {
        if (!add(document.root())) return std::nullopt;
        return calls;
    }
    for (const JsonValue value : document.root()) {
        if (!add(value)) return std::nullopt;
    }
    if (calls.empty()) return std::nullopt;
    return calls;
}

}  // namespace mr::text::grammar
