#include "text/grammar/schema_nodes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>

#include "core/printable.h"
#include "text/grammar/schema.h"

namespace mr::text::grammar {
namespace {

constexpr std::string_view kKeywords[] = {"type",
                                          "nullable",
                                          "enum",
                                          "const",
                                          "anyOf",
                                          "oneOf",
                                          "allOf",
                                          "$ref",
                                          "properties",
                                          "required",
                                          "additionalProperties",
                                          "items",
                                          "prefixItems",
                                          "minItems",
                                          "maxItems",
                                          "minLength",
                                          "maxLength",
                                          "pattern",
                                          "format",
                                          "minimum",
                                          "maximum",
                                          "exclusiveMinimum",
                                          "exclusiveMaximum"};
// Keywords that do not restrict values. Definitions are read when a $ref points to them.
constexpr std::string_view kAnnotations[] = {
    "$defs",           "definitions",      "title",        "description",
    "default",         "example",          "examples",     "deprecated",
    "readOnly",        "writeOnly",        "$schema",      "$id",
    "$comment",        "discriminator",    "$anchor",      "$vocabulary",
    "contentEncoding", "contentMediaType", "externalDocs", "xml"};

bool is_one_of(std::span<const std::string_view> words, std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

// Also extensions, such as "x-order".
bool is_annotation(std::string_view key) {
    return key.starts_with("x-") || is_one_of(kAnnotations, key);
}

constexpr std::size_t kMostShown = 200;  // bytes of a path in errors

std::optional<std::size_t> index_of(std::string_view step) {
    std::size_t value = 0;
    const auto [end, error] = std::from_chars(step.data(), step.data() + step.size(), value);
    if (error != std::errc() || end != step.data() + step.size()) return std::nullopt;
    return value;
}

std::optional<formats::JsonValue> member(formats::JsonValue value, std::string_view step) {
    if (value.is_object()) return value.find(step);
    const auto index = index_of(step);
    if (value.is_array() && index && *index < value.size()) return value[*index];
    return std::nullopt;
}

// With the bytes that %XX stands for.
std::string percent_decoded(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        unsigned char byte = 0;
        const char* const from = text.data() + i + 1;
        const bool coded = text[i] == '%' && i + 2 < text.size() &&
                           std::from_chars(from, from + 2, byte, 16).ptr == from + 2;
        out += coded ? static_cast<char>(byte) : text[i];
        if (coded) i += 2;
    }
    return out;
}

// One step of a JSON pointer: ~1 is a slash and ~0 a tilde.
std::string unescaped(std::string_view step) {
    std::string out;
    for (std::size_t i = 0; i < step.size(); ++i) {
        const bool escape = step[i] == '~' && i + 1 < step.size();
        if (escape && (step[i + 1] == '0' || step[i + 1] == '1')) {
            out += step[++i] == '0' ? '~' : '/';
        } else {
            out += step[i];
        }
    }
    return out;
}

}  // namespace

NodeId SchemaNodes::add_root(formats::JsonValue value, std::string path) {
    const auto id = static_cast<NodeId>(nodes_.size());
    nodes_.push_back({value, id, id, std::move(path)});
    return id;
}

NodeId SchemaNodes::child(NodeId parent, std::string_view step) {
    const auto [at, fresh] =
        children_.try_emplace({parent, std::string(step)}, static_cast<NodeId>(nodes_.size()));
    if (!fresh) return at->second;
    if (nodes_.size() >= kMostSchemaNodes) {
        throw error(nodes_[parent].root,
                    fmt::format("has more than {} schemas inside", kMostSchemaNodes));
    }
    const auto value = member(nodes_[parent].value, step);
    MR_CHECK(value, "a child of a schema is there");
    nodes_.push_back({*value, parent, nodes_[parent].root, std::string(step)});
    return at->second;
}

NodeId SchemaNodes::target(NodeId id) {
    const formats::JsonValue ref = nodes_[id].value["$ref"];
    if (!ref.is_string()) throw error_at(id, "$ref", "is not a text");
    // A fragment has %XX for some characters; some writers of schemas leave them as they are.
    const std::string decoded = percent_decoded(ref.text());
    for (const std::string_view text : {std::string_view(decoded), ref.text()}) {
        if (text != "#" && !text.starts_with("#/")) {
            throw error_at(id, "$ref",
                           fmt::format("'{}' is not inside of this schema", printable(text, 100)),
                           "write '#/$defs/NAME'");
        }
        if (const auto found = follow(nodes_[id].root, text.substr(1))) return *found;
    }
    throw error_at(id, "$ref", fmt::format("'{}' points to nothing", printable(ref.text(), 100)));
}

std::optional<NodeId> SchemaNodes::follow(NodeId root, std::string_view pointer) {
    std::vector<std::string> steps;
    formats::JsonValue at = nodes_[root].value;
    while (!pointer.empty()) {
        pointer.remove_prefix(1);
        const std::string_view step = pointer.substr(0, pointer.find('/'));
        pointer.remove_prefix(step.size());
        steps.push_back(unescaped(step));
        const auto next = member(at, steps.back());
        if (!next) return std::nullopt;
        at = *next;
    }
    NodeId out = root;
    for (const std::string& step : steps) out = child(out, step);
    return out;
}

std::string SchemaNodes::path(NodeId id) const {
    std::vector<std::string> steps;
    while (nodes_[id].parent != id) {
        steps.push_back(printable(nodes_[id].step, 64));
        id = nodes_[id].parent;
    }
    std::string out = nodes_[id].step;
    for (std::size_t i = steps.size(); i-- > 0;) {
        if (out.size() > kMostShown) return out + "...";
        out += '.';
        out += steps[i];
    }
    return out;
}

Error SchemaNodes::error(NodeId id, std::string problem, std::string remedy) const {
    return Error::input(
        {.field = path(id), .problem = std::move(problem), .remedy = std::move(remedy)});
}

Error SchemaNodes::error_at(NodeId id, std::string_view keyword, std::string problem,
                            std::string remedy) const {
    return Error::input({.field = path(id) + "." + printable(keyword, 64),
                         .problem = std::move(problem),
                         .remedy = std::move(remedy)});
}

void SchemaNodes::spend(std::size_t work) {
    work_ += work;
    if (work_ > kMostWork) {
        throw error(0, fmt::format("takes more than {} steps to read", kMostWork),
                    "use fewer of allOf, anyOf and oneOf inside of each other, or shorter lists");
    }
}

bool SchemaNodes::is_anything(NodeId id) const {
    const formats::JsonValue schema = nodes_[id].value;
    if (schema.is_boolean()) return schema.get<bool>();
    if (!schema.is_object()) return false;
    for (const auto& [key, value] : schema.items()) {
        if (!is_annotation(key)) return false;
    }
    return true;
}

void SchemaNodes::check(NodeId id) {
    if (nodes_[id].checked) return;
    nodes_[id].checked = true;
    const formats::JsonValue schema = nodes_[id].value;
    if (schema.is_boolean()) return;
    if (!schema.is_object()) {
        throw error(
            id, fmt::format("is a {}; a schema is an object, true or false", schema.type_name()));
    }
    for (const auto& [key, value] : schema.items()) {
        if (is_one_of(kKeywords, key) || is_annotation(key)) continue;
        if (key == "uniqueItems" && value.is_boolean() && !value.get<bool>()) continue;
        throw error_at(id, key, "this keyword is not supported",
                       "docs/structured-output.md lists those that are");
    }
}

}  // namespace mr::text::grammar
