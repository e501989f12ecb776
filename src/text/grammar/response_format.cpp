#include "text/grammar/response_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/printable.h"
#include "formats/json_order.h"
#include "text/grammar/chars.h"
#include "text/grammar/regex.h"
#include "text/grammar/schema.h"
#include "text/grammar/schema_compiler.h"

namespace mr::text::grammar {
namespace {

using formats::JsonValue;
using Kind = TextFormat::Kind;

Error bad_format(std::string path, std::string problem, std::string remedy = {}) {
    return Error::input(
        {.field = std::move(path), .problem = std::move(problem), .remedy = std::move(remedy)});
}

TextFormat any_object_format(const std::string& path) {
    TextFormat out{.kind = Kind::object, .path = path};
    out.own = std::make_shared<const formats::JsonDocument>(
        formats::JsonDocument::parse(R"({"type": "object"})", "any object"));
    out.schema = out.own->root();
    return out;
}

}  // namespace

std::string TextFormat::key() const {
    std::string out = fmt::format("{} {}", static_cast<int>(kind), path);
    if (kind == Kind::schema) out += " " + formats::dump_in_file_order(schema);
    for (const std::string& text : texts) out += " " + formats::json_quoted(text);
    return out;
}

TextFormat read_schema_format(JsonValue schema, const std::string& path) {
    TextFormat out{.kind = Kind::schema, .schema = schema, .path = path};
    if (schema.is_string()) {
        out.own = std::make_shared<const formats::JsonDocument>(
            formats::JsonDocument::parse(schema.text(), "", path));
        out.schema = out.own->root();
    }
    if (!out.schema.is_object()) throw bad_format(path, "is not a schema");
    return out;
}

TextFormat read_pattern_format(JsonValue pattern, const std::string& path) {
    if (!pattern.is_string()) throw bad_format(path, "is not a text");
    return {.kind = Kind::pattern, .texts = {std::string(pattern.text())}, .path = path};
}

TextFormat read_choice_format(JsonValue choices, const std::string& path) {
    if (!choices.is_array() || choices.empty()) throw bad_format(path, "is not a list of texts");
    if (choices.size() > kMostEnumValues) {
        throw bad_format(path, fmt::format("has more than {} texts", kMostEnumValues));
    }
    TextFormat out{.kind = Kind::choice, .path = path};
    for (const JsonValue choice : choices) {
        if (!choice.is_string()) throw bad_format(path, "has what is not a text");
        const std::string_view text = choice.text();
        if (std::any_of(text.begin(), text.end(), [](char c) {
                return static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n' && c != '\r';
            })) {
            throw bad_format(path, "has a control character that is no tab or line end");
        }
        out.texts.emplace_back(text);
    }
    std::sort(out.texts.begin(), out.texts.end());
    out.texts.erase(std::unique(out.texts.begin(), out.texts.end()), out.texts.end());
    return out;
}

TextFormat read_response_format(JsonValue format, const std::string& path) {
    if (format.is_null()) return {};
    if (!format.is_object()) throw bad_format(path, "is not an object");
    const JsonValue type = format["type"];
    if (type == "text") return {};
    if (type == "json_object") {
        const auto schema = format.find_set("schema");
        return schema ? read_schema_format(*schema, path + ".schema") : any_object_format(path);
    }
    if (!(type == "json_schema")) {
        throw bad_format(path + ".type",
                         fmt::format("{} is not a supported format", printable(type.shown(), 100)),
                         "use text, json_object or json_schema");
    }
    const std::string inside = path + ".json_schema";
    const JsonValue given = format["json_schema"];
    if (!given.is_object()) throw bad_format(inside, "is not an object");
    const auto schema = given.find("schema");
    if (!schema || !schema->is_object()) throw bad_format(inside + ".schema", "is not a schema");
    return read_schema_format(*schema, inside + ".schema");
}

TextFormat read_structured_outputs(JsonValue wanted, const std::string& path) {
    if (!wanted.is_object()) throw bad_format(path, "is not an object");
    TextFormat out;
    for (const auto& [key, value] : wanted.items_in_file_order()) {
        const std::string here = path + "." + printable(key, 64);
        const bool off = value.is_null() || (value.is_boolean() && !value.get<bool>());
        if (off) continue;
        TextFormat one;
        if (key == "json") {
            one = read_schema_format(value, here);
        } else if (key == "regex") {
            one = read_pattern_format(value, here);
        } else if (key == "choice") {
            one = read_choice_format(value, here);
        } else if (key == "json_object" && value.is_boolean()) {
            one = any_object_format(here);
        } else if (key == "disable_fallback") {
            continue;  // there is one way to make a grammar
        } else {
            throw bad_format(here, "is not supported", "use json, regex, choice or json_object");
        }
        if (out) throw bad_format(here, "stands beside another format", "give one of them");
        out = std::move(one);
    }
    return out;
}

RuleId add_format(Network& network, SchemaCompiler& compiler, const TextFormat& format) {
    if (format.kind == Kind::object || format.kind == Kind::schema) {
        return compiler.add(format.schema, format.path);
    }
    const RuleId rule = network.add_rule();
    if (format.kind == Kind::choice) {
        Network::Literals texts;
        for (const std::string& text : format.texts) texts.emplace_back(text, Network::kEnd);
        network.define(rule, network.literals(std::move(texts)));
        return rule;
    }
    MR_CHECK(format.kind == Kind::pattern, "a format is one of these");
    RegexBudget budget;
    try {
        network.define(
            rule, unquoted(network,
                           automaton_of_pattern(format.texts.front(), 0, kUnbounded, budget, true),
                           Network::kEnd));
    } catch (const BadPattern& bad) {
        throw bad_format(format.path, bad.problem);
    }
    return rule;
}

Network network_of_format(const TextFormat& format) {
    Network network(format.path);
    SchemaCompiler compiler(network);
    const RuleId rule = add_format(network, compiler, format);
    network.define(Network::kMain, network.call(rule, Network::kEnd));
    compiler.finish();
    network.finish();
    return network;
}

}  // namespace mr::text::grammar
