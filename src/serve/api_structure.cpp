// Constraints on the text of a request: biases and penalties, a format, tools.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "core/printable.h"
#include "formats/json_order.h"
#include "formats/json_writer.h"
#include "serve/api.h"
#include "text/grammar/response_format.h"

namespace mr::serve {
namespace {

namespace grammar = text::grammar;
using formats::JsonValue;

constexpr double kMostBias = 100;

// A token's id from a JSON key: digits only.
std::optional<std::int32_t> token_id(std::string_view text, std::int64_t vocab) {
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    const bool digits = error == std::errc() && end == text.data() + text.size();
    const bool padded = text.size() > 1 && text[0] == '0';  // a second spelling of the same id
    if (!digits || padded || id < 0 || id >= vocab) return std::nullopt;
    return id;
}

// A function of OpenAI's list. Its description and parameters are optional, but many templates read
// them unasked.
std::string function_json(JsonValue function) {
    formats::JsonWriter json;
    json.begin_object();
    for (const auto& [key, value] : function.items_in_file_order()) {
        if (!value.is_null()) json.key(key).raw(formats::dump_in_file_order(value));
    }
    if (!function.find_set("description")) json.member("description", "");
    if (!function.find_set("parameters")) {
        json.key("parameters").raw(R"({"type":"object","properties":{}})");
    }
    return json.end_object().take();
}

// OpenAI's list as templates see it.
std::string shown_tools(JsonValue tools) {
    formats::JsonWriter json;
    json.begin_array();
    for (const JsonValue tool : tools) {
        json.begin_object();
        for (const auto& [key, value] : tool.items_in_file_order()) {
            json.key(key).raw(key == "function" ? function_json(value)
                                                : formats::dump_in_file_order(value));
        }
        json.end_object();
    }
    return json.end_array().take();
}

// Converts Anthropic's list to OpenAI's, which templates know.
std::string openai_tools(JsonValue tools, std::vector<grammar::Tool>& list) {
    formats::JsonWriter json;
    json.begin_array();
    int i = 0;
    for (const JsonValue tool : tools) {
        const std::string here = fmt::format("tools.{}", i++);
        if (!tool.is_object()) wrong(here, "must be an object");
        const auto type = tool.find_set("type");
        if (type && !(*type == "custom")) {
            wrong(here + ".type", "must be 'custom': the server has no tools of its own");
        }
        const auto name = tool.find_set("name");
        if (!name || !name->is_string()) wrong(here + ".name", "must be a text");
        const auto schema = tool.find_set("input_schema");
        if (!schema || !schema->is_object()) wrong(here + ".input_schema", "must be a schema");
        list.push_back({std::string(name->text()), *schema, here + ".input_schema"});
        json.begin_object().member("type", "function").key("function").begin_object();
        json.member("name", name->text());
        const auto about = tool.find_set("description");
        json.member("description", about && about->is_string() ? about->text() : "");
        json.key("parameters").raw(formats::dump_in_file_order(*schema));
        json.end_object().end_object();
    }
    grammar::check_tools(list);
    return json.end_array().take();
}

std::optional<grammar::ToolChoice> anthropic_choice(JsonValue choice,
                                                    std::span<const grammar::Tool> tools) {
    grammar::ToolChoice out;
    if (const auto alone = choice.find_set("disable_parallel_tool_use")) {
        if (!alone->is_boolean()) {
            wrong("tool_choice.disable_parallel_tool_use", "must be a boolean");
        }
        out.several = !alone->get<bool>();
    }
    const JsonValue type = choice["type"];
    if (choice.is_null() || type == "auto") return out;
    if (type == "none") return std::nullopt;
    out.required = true;
    if (type == "any") return out;
    if (!(type == "tool")) wrong("tool_choice.type", "must be auto, any, tool or none");
    const JsonValue name = choice["name"];
    for (const grammar::Tool& tool : tools) {
        if (name == tool.name) return grammar::ToolChoice{true, tool.name, false};
    }
    wrong("tool_choice.name",
          fmt::format("is {}, which is not one of the tools", printable(name.shown(), 100)));
}

// Removes bans from the biases: under a grammar the filter applies them, since it knows whether
// other tokens are left.
std::vector<std::int32_t> take_banned(ops::Adjustments& adjust) {
    std::vector<std::int32_t> out;
    std::erase_if(adjust.bias, [&](const ops::LogitBias& bias) {
        if (std::isfinite(bias.add)) return false;
        out.push_back(bias.id);
        return true;
    });
    return out;
}

}  // namespace

void Api::require_autoregressive(const char* field) const {
    if (!desk_.model().spec.diffusion) return;
    throw Failure::bad(field, fmt::format("'{}' is not supported for diffusion models", field),
                       "not_supported");
}

ops::Adjustments Api::adjustments(const Fields& fields) const {
    ops::Adjustments out;
    out.presence = static_cast<float>(fields.number("presence_penalty", 0));
    out.frequency = static_cast<float>(fields.number("frequency_penalty", 0));
    if (out.presence != 0) require_autoregressive("presence_penalty");
    if (out.frequency != 0) require_autoregressive("frequency_penalty");
    const auto bias = fields.find("logit_bias");
    if (!bias || bias->empty()) return out;
    require_autoregressive("logit_bias");
    for (const auto& [key, value] : bias->items()) {
        const auto id = token_id(key, desk_.model().spec.vocab);
        if (!id) {
            wrong("logit_bias",
                  fmt::format("has '{}', which is not a token of this model", printable(key, 40)));
        }
        const double add = value.is_number() ? value.get<double>() : kMostBias + 1;
        if (!(add >= -kMostBias && add <= kMostBias)) {
            wrong("logit_bias", fmt::format("has {} for token {}: use -100 to 100",
                                            printable(value.shown(40), 60), *id));
        }
        // OpenAI's clients ban a token with the lowest bias.
        out.bias.push_back({*id, add == -kMostBias ? -std::numeric_limits<float>::infinity()
                                                   : static_cast<float>(add)});
    }
    if (static_cast<std::int64_t>(out.bias.size()) == desk_.model().spec.vocab) {
        bool any = false;
        for (const ops::LogitBias& one : out.bias) any = any || one.add >= -kMostBias;
        if (!any) wrong("logit_bias", "bans every token");
    }
    return out;
}

Api::Tools Api::tools(const Fields& fields, bool anthropic) {
    Tools out;
    const auto given = fields.find("tools");
    const JsonValue choice = fields.find("tool_choice").value_or(JsonValue());
    if (!given || given->empty()) {
        const bool none = choice.is_null() || choice == "none" || choice == "auto" ||
                          choice["type"] == "none" || choice["type"] == "auto";
        if (!none) wrong("tool_choice", "needs 'tools'");
        return out;
    }
    std::optional<grammar::ToolChoice> chosen;
    if (anthropic) {
        out.json = openai_tools(*given, out.list);
        chosen = anthropic_choice(choice, out.list);
    } else {
        out.list = grammar::read_tools(*given);
        out.json = shown_tools(*given);
        chosen =
            grammar::read_tool_choice(choice, out.list, fields.flag("parallel_tool_calls", true));
    }
    if (!chosen) return {};
    out.choice = std::move(*chosen);
    return out;
}

grammar::TextFormat Api::wanted_format(const Fields& fields) {
    grammar::TextFormat out;
    const char* given = nullptr;
    const auto take = [&](const char* name, const auto& read) {
        const auto value = fields.find(name);
        grammar::TextFormat one = value ? read(*value, name) : grammar::TextFormat();
        if (!one) return;
        if (given) wrong(name, fmt::format("stands beside '{}': give one of them", given));
        given = name;
        out = std::move(one);
    };
    take("response_format", grammar::read_response_format);
    take("guided_json", grammar::read_schema_format);
    take("guided_regex", grammar::read_pattern_format);
    take("guided_choice", grammar::read_choice_format);
    take("structured_outputs", grammar::read_structured_outputs);
    take("json_schema", grammar::read_schema_format);
    take("output_config", [](JsonValue config, const std::string& name) {
        const JsonValue format = config["format"];
        if (format.is_null()) return grammar::TextFormat();
        if (!(format["type"] == "json_schema"))
            wrong(name + ".format.type", "must be 'json_schema'");
        return grammar::read_schema_format(format["schema"], name + ".format.schema");
    });
    return out;
}

void Api::bind(decode::GenerateOptions& options, FormatOptions& format, const Call& call,
               const Tools& tools) {
    const grammar::TextFormat wanted = wanted_format(call.fields);
    if (!wanted && tools.list.empty()) return;
    const std::string field =
        tools.list.empty() ? wanted.path.substr(0, wanted.path.find('.')) : "tools";
    require_autoregressive(field.c_str());
    if (options.ignore_end) {
        wrong("ignore_eos", fmt::format("is not for answers with '{}', which have an end", field));
    }
    grammar::ToolForm form = tool_template_.form;
    if (wanted && !tools.choice.required) {
        for (const grammar::Tool& tool : tools.list) form.names.push_back(tool.name);
    }
    if (!tools.list.empty()) format.calls = form;
    try {
        options.filter = filter(call, wanted, tools, form, take_banned(options.adjust));
    } catch (const Error& error) {
        if (!error.info().field.empty()) throw;
        throw Failure::bad(field, error.what(), "not_supported");  // by the model
    }
}

Grammars::MakeFilter Api::filter(const Call& call, const grammar::TextFormat& wanted,
                                 const Tools& tools, const grammar::ToolForm& form,
                                 std::vector<std::int32_t> banned) {
    const grammar::ToolChoice& choice = tools.choice;
    const bool called = !tools.list.empty();
    std::string key = form.formatted() || !called ? wanted.key() : "";
    if (called) {
        key += fmt::format(" tools {} {} {} {}", choice.required, choice.several, choice.only,
                           tools.json);
    }
    if (!call.compiles) {
        if (auto known = grammars_.known(key, banned)) return *known;
        throw NotCompiled();
    }
    return grammars_.filter(
        key,
        [&] {
            return called ? grammar::network_of_tools(tools.list, choice, form, wanted)
                          : grammar::network_of_format(wanted);
        },
        std::move(banned));
}

}  // namespace mr::serve
