#include "serve/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "core/nearest.h"
#include "core/printable.h"
#include "ops/sample/adjust.h"
#include "ops/sample/logprobs.h"
#include "serve/failure.h"
#include "text/grammar/regex.h"
#include "text/grammar/schema.h"
#include "text/grammar/tools.h"

namespace mr::serve {
namespace {

using K = FieldKind;
constexpr double kInt = std::numeric_limits<std::int32_t>::max();
// 2^53 - 1: many clients read JSON numbers as doubles, which hold all integers up to here exactly.
// From 2^53 on a double may stand for a neighbouring integer.
constexpr double kLong = 9007199254740991.0;
constexpr double kBytes = 8 << 20;
constexpr double kBiases = ops::kMostBiases;
constexpr double kPattern = text::grammar::kMostPatternBytes;
constexpr double kChoices = text::grammar::kMostEnumValues;
constexpr double kTools = text::grammar::kMostTools;

constexpr Field kModel{"model",
                       K::text,
                       0,
                       256,
                       "the one that is served",
                       "its id, as `/v1/models` has it, or an `--alias`"};

constexpr Field kSampling[] = {
    {"temperature", K::number, 0, 100, "the model's advice, or 1",
     "0: always the most probable token"},
    {"top_p", K::number, 0, 1, "the model's advice, or 1",
     "sample from the most probable tokens with this total probability"},
    {"top_k", K::integer, -1, kInt, "the model's advice, or 0",
     "sample from the k most probable tokens; 0 or -1: all"},
    {"stream", K::boolean, 0, 0, "false", "send text as it is made (server-sent events)"},
};

constexpr Field kMoreSampling[] = {
    {"min_p", K::number, 0, 1, "the model's advice, or 0",
     "drop tokens below this share of the most probable one's probability"},
    {"repetition_penalty", K::number, 0.01, 100, "the model's advice, or 1",
     "above 1: recent tokens become less probable"},
    {"repeat_window", K::integer, 0, kInt, "the model's advice, or 64",
     "tokens that `repetition_penalty` looks back"},
    {"repeat_penalty", K::number, 0.01, 100, "as `repetition_penalty`", "llama.cpp's name for it"},
    {"repeat_last_n", K::integer, -1, kInt, "as `repeat_window`",
     "llama.cpp's name for it; -1: the whole text"},
    {"presence_penalty", K::number, -2, 2, "0",
     "taken from the logits of tokens that the answer has already"},
    {"frequency_penalty", K::number, -2, 2, "0", "... for each time that it has them"},
    {"logit_bias", K::object, 0, kBiases, "none",
     "what to add to the logits of these token ids, -100 to 100; -100: never chosen"},
    {"seed", K::integer, -kLong, kLong, "random", "same seed, same text; choice i has seed + i"},
    {"n", K::integer, 1, 128, "1", "choices for each prompt"},
    {"stop", K::texts, 0, 16, "none", "the text ends before any of these"},
    {"stop_token_ids", K::list, 0, 128, "none",
     "tokens that end the text, besides the model's own"},
    {"include_stop_str_in_output", K::boolean, 0, 0, "false",
     "the stop string or token that ends the text is a part of it"},
    {"min_tokens", K::integer, 0, kInt, "0",
     "tokens before which no end token comes and no stop string ends the text"},
    {"ignore_eos", K::boolean, 0, 0, "false", "continue past the end-of-text token"},
    {"skip_special_tokens", K::boolean, 0, 0, "true", "special tokens are left out of the text"},
    {"prompt_logprobs", K::integer, 0, ops::kMostLogprobs, "none",
     "of every token of the prompt its log-probability, and so many of the most probable ones; not "
     "in streams"},
    {"cache_prompt", K::boolean, 0, 0, "true",
     "use what the cache has of the prompt, and keep it for others"},
    {"stream_options", K::object, 0, 8, "none",
     "`include_usage`: one more chunk with the counts of tokens; `include_blocks`: for a diffusion "
     "model, its open block after every pass"},
    {"response_format", K::object, 0, 16, "`{\"type\": \"text\"}`",
     "`text`, `json_object`, or `json_schema` with a schema (docs/structured-output.md)"},
    {"guided_json", K::mixed, 0, 0, "none", "vLLM's: a schema, or a text that holds one"},
    {"guided_regex", K::text, 0, kPattern, "none", "a pattern that the whole text matches"},
    {"guided_choice", K::list, 1, kChoices, "none", "texts, of which the answer is one"},
    {"structured_outputs", K::object, 0, 16, "none",
     "one of `json`, `regex`, `choice` (as the three above), or `json_object`"},
    {"json_schema", K::object, 0, kInt, "none", "llama.cpp's: as `guided_json`"},
    {"guided_grammar", K::text, 0, 0, "none", "not taken"},
    {"guided_whitespace_pattern", K::text, 0, 0, "none", "not taken"},
    {"grammar", K::text, 0, 0, "none", "not taken"},
    {"guided_decoding_backend", K::ignored},
    {"user", K::ignored},
    {"metadata", K::ignored},
    {"store", K::ignored},
    {"service_tier", K::ignored},
};

constexpr Field kChat[] = {
    {"messages", K::list, 1, 65536, "required",
     "`role` (system, developer, user, assistant, tool) and `content`: a text, or parts of type "
     "text; of an assistant also `tool_calls`, of a tool `tool_call_id`"},
    {"max_completion_tokens", K::integer, 1, kInt, "the rest of the context, at most 2048",
     "tokens to make at most"},
    {"max_tokens", K::integer, 1, kInt, "as `max_completion_tokens`", "its older name"},
    {"logprobs", K::boolean, 0, 0, "false", "of every token its log-probability"},
    {"top_logprobs", K::integer, 0, 20, "0", "... and so many of the most probable ones"},
    {"tools", K::list, 0, kTools, "none", "of type function; `parameters` is a schema"},
    {"tool_choice", K::mixed, 0, 0, "auto",
     "`auto`, `none`, `required`, or a function of `tools` by its name"},
    {"parallel_tool_calls", K::boolean, 0, 0, "true", "an answer may have several calls"},
    {"chat_template_kwargs", K::object, 0, 64, "none", "further variables of the chat template"},
    {"continue_final_message", K::boolean, 0, 0, "false",
     "the last message is the beginning of the answer"},
    {"reasoning_effort", K::ignored},
    {"verbosity", K::ignored},
    {"modalities", K::ignored},
    {"prompt_cache_key", K::ignored},
    {"prompt_cache_retention", K::ignored},
    {"web_search_options", K::ignored},
    {"safety_identifier", K::ignored},
};

constexpr Field kCompletions[] = {
    {"prompt", K::mixed, 0, 0, "required",
     "a text, a list of texts, a list of token ids, or a list of those; 128 at most"},
    {"max_tokens", K::integer, 0, kInt, "the rest of the context, at most 2048",
     "tokens to make at most"},
    {"echo", K::boolean, 0, 0, "false",
     "the prompt before the text; with `logprobs` also those of its tokens"},
    {"logprobs", K::integer, 0, 20, "none",
     "of every token its log-probability, and so many of the most probable ones"},
    {"best_of", K::integer, 1, 1, "1", "1 alone"},
    {"suffix", K::text, 0, 0, "none", "not taken"},
};

constexpr Field kEmbeddings[] = {
    {"input", K::mixed, 0, 0, "required",
     "a text, a list of texts, a list of token ids, or a list of those; 2048 at most"},
    {"encoding_format", K::text, 0, 16, "float", "`float`, or `base64` of little-endian f32"},
    {"dimensions", K::integer, 1, kInt, "the model's", "the model's alone"},
    {"pooling", K::text, 0, 16, "mean", "`mean` over the tokens, or the `last` one"},
    {"user", K::ignored},
};

constexpr Field kMessages[] = {
    {"messages", K::list, 1, 65536, "required",
     "`role` (user, assistant) and `content`: a text, or blocks of type text, tool_use and "
     "tool_result (thinking and redacted_thinking are left out of the prompt); a last message of "
     "the assistant is continued"},
    {"system", K::mixed, 0, 0, "none", "a text, or blocks of type text"},
    {"stop_sequences", K::texts, 0, 16, "none", "the text ends before any of these"},
    {"tools", K::list, 0, kTools, "none", "`name`, `description` and `input_schema`"},
    {"tool_choice", K::object, 0, 8, "auto",
     "`type`: auto, any, none, or tool with its `name`; `disable_parallel_tool_use`"},
    {"output_config", K::object, 0, 8, "none",
     "`format`: of type json_schema, with a `schema`; `effort` has no effect"},
    {"metadata", K::ignored},
    {"thinking", K::ignored},
    {"service_tier", K::ignored},
    {"context_management", K::ignored},
};

constexpr Field kMostTokens{"max_tokens", K::integer, 1,
                            kInt,         "required", "tokens to make at most"};
constexpr Field kSeed{"seed", K::integer, -kLong, kLong, "random", "same seed, same text"};

constexpr Field kTokenize[] = {
    {"content", K::text, 0, kBytes, "required", "the text"},
    {"prompt", K::text, 0, kBytes, "as `content`", "vLLM's name for it, with vLLM's defaults"},
    {"add_special", K::boolean, 0, 0, "false; with `prompt`, true",
     "with a token of the beginning, where there is one"},
    {"add_special_tokens", K::boolean, 0, 0, "as `add_special`", "vLLM's name for it"},
    {"parse_special", K::boolean, 0, 0, "false; with `prompt`, true",
     "special tokens that are written out become ids"},
    {"with_pieces", K::boolean, 0, 0, "false", "of every token the text as well"},
};
constexpr Field kDetokenize[] = {
    {"tokens", K::list, 0, 2000000, "required", "token ids"},
};
constexpr Field kTemplate[] = {
    {"messages", K::list, 1, 65536, "required", "as in `/v1/chat/completions`"},
    {"add_generation_prompt", K::boolean, 0, 0, "true", "with the beginning of an answer"},
    {"tools", K::list, 0, kTools, "none", "as in `/v1/chat/completions`"},
    {"chat_template_kwargs", K::object, 0, 64, "none", "further variables of the chat template"},
};

// A longer list could not be read at all.
template <std::size_t N>
constexpr bool lists_can_be_read(const Field (&table)[N]) {
    return std::all_of(table, table + N, [](const Field& field) {
        return field.kind != K::list || field.most < static_cast<double>(kMostValues);
    });
}
static_assert(lists_can_be_read(kSampling) && lists_can_be_read(kMoreSampling) &&
              lists_can_be_read(kChat) && lists_can_be_read(kCompletions) &&
              lists_can_be_read(kEmbeddings) && lists_can_be_read(kMessages) &&
              lists_can_be_read(kTokenize) && lists_can_be_read(kDetokenize) &&
              lists_can_be_read(kTemplate));

using Table = std::vector<Field>;

template <typename... Parts>
Table joined(const Parts&... parts) {
    Table out;
    const auto add = [&](std::span<const Field> fields) {
        out.insert(out.end(), fields.begin(), fields.end());
    };
    (add(parts), ...);
    return out;
}

std::span<const Field> one(const Field& field) { return {&field, 1}; }

// In the order of the documentation.
const std::vector<std::pair<std::string_view, Table>>& tables() {
    static const std::vector<std::pair<std::string_view, Table>> all = {
        {"chat", joined(one(kModel), kChat, kSampling, kMoreSampling)},
        {"completions", joined(one(kModel), kCompletions, kSampling, kMoreSampling)},
        {"embeddings", joined(one(kModel), kEmbeddings)},
        {"messages", joined(one(kModel), kMessages, one(kMostTokens), kSampling, one(kSeed))},
        {"count_tokens", joined(one(kModel), kMessages)},
        {"tokenize", joined(one(kModel), kTokenize)},
        {"detokenize", joined(one(kModel), kDetokenize)},
        {"apply_template", joined(one(kModel), kTemplate)}};
    return all;
}

const char* kind_name(K kind) {
    switch (kind) {
        case K::boolean:
            return "boolean";
        case K::integer:
            return "whole number";
        case K::number:
            return "number";
        case K::text:
            return "text";
        case K::texts:
            return "text, or list of texts";
        case K::list:
            return "list";
        case K::object:
            return "object";
        case K::mixed:
            return "see there";
        case K::ignored:
            return "any";
    }
    return "";
}

std::string number_text(double value) {
    return std::floor(value) == value && std::abs(value) <= kLong
               ? fmt::format("{}", static_cast<std::int64_t>(value))
               : fmt::format("{}", value);
}

std::string range_text(const Field& field) {
    std::string range =
        field.least == field.most
            ? number_text(field.least)
            : fmt::format("{} to {}", number_text(field.least), number_text(field.most));
    switch (field.kind) {
        case K::integer:
        case K::number:
            return range;
        case K::text:
            return range + " bytes";
        case K::texts:
        case K::list:
        case K::object:
            return range + " entries";
        default:
            return "";
    }
}

[[noreturn]] void wrong_field(const Field& field, const std::string& what) {
    throw Failure::bad(field.name, fmt::format("'{}' {}", field.name, what), "invalid_value");
}

// What the field accepts: "a whole number, 1 to 128".
std::string taken_text(const Field& field) {
    const char* const spelled = field.kind == K::integer ? " without a point or an exponent" : "";
    const std::string range = range_text(field);
    return fmt::format("{} {}{}{}{}", field.kind == K::object ? "an" : "a", kind_name(field.kind),
                       spelled, range.empty() ? "" : ", ", range);
}

// The field whose name the key may be a misspelling of; empty: none.
std::string meant_instead(std::string_view key, std::span<const Field> table) {
    constexpr std::size_t kLongest = 40;  // of a word that may be a misspelt name
    if (key.size() > kLongest) return "";
    std::vector<std::string> names;
    for (const Field& field : table) {
        if (field.kind != K::ignored) names.emplace_back(field.name);
    }
    return nearest(key, names);
}

// `is`: the value that was sent.
void require_range(const Field& field, bool inside, const std::string& is) {
    if (inside) return;
    if (field.kind == K::text && field.most == 0) {
        wrong_field(field, "is not supported; leave it out");
    }
    wrong_field(field, fmt::format("{}, and must be {}", is, range_text(field)));
}
void require_range(const Field& field, double value, const std::string& is) {
    require_range(field, value >= field.least && value <= field.most, is);
}

void check(const Field& field, formats::JsonValue value) {
    bool right = true;
    switch (field.kind) {
        case K::boolean:
            right = value.is_boolean();
            break;
        case K::integer:
            right = value.is_number_integer();
            break;
        case K::number:
            right = value.is_number() && std::isfinite(value.get<double>());
            break;
        case K::text:
            right = value.is_string();
            break;
        case K::texts:
            right = value.is_string() || value.is_array();
            if (value.is_array()) {
                for (const formats::JsonValue item : value) right = right && item.is_string();
            }
            break;
        case K::list:
            right = value.is_array();
            break;
        case K::object:
            right = value.is_object();
            break;
        case K::mixed:
        case K::ignored:
            return;
    }
    if (!right) {
        wrong_field(field, fmt::format("is {}, and must be {}", printable(value.shown(40), 60),
                                       taken_text(field)));
    }
    if (field.kind == K::integer) {  // exact: a double may be another number
        require_range(field,
                      value.is_integer_in(static_cast<std::int64_t>(field.least),
                                          static_cast<std::int64_t>(field.most)),
                      "is " + value.shown(40));
    } else if (field.kind == K::number) {
        require_range(field, value.get<double>(), "is " + value.shown(40));
    } else if (field.kind == K::text) {
        const std::size_t bytes = value.text().size();
        require_range(field, static_cast<double>(bytes), fmt::format("has {} bytes", bytes));
    } else if (field.kind != K::boolean) {
        const std::size_t entries = value.is_string() ? 1 : value.size();
        require_range(field, static_cast<double>(entries), fmt::format("has {} entries", entries));
    }
}

}  // namespace

std::span<const Field> fields_of(std::string_view route) {
    for (const auto& [name, table] : tables()) {
        if (name == route) return table;
    }
    MR_CHECK(false, "a route with a table of fields");
    return {};
}

std::vector<std::string_view> routes_with_fields() {
    std::vector<std::string_view> out;
    for (const auto& [name, table] : tables()) out.push_back(name);
    return out;
}

std::string field_table(std::string_view route) {
    std::string out = "| field | type | range | without it | meaning |\n|---|---|---|---|---|\n";
    std::string ignored;
    for (const Field& field : fields_of(route)) {
        if (field.kind == K::ignored) {
            ignored += fmt::format("{}`{}`", ignored.empty() ? "" : ", ", field.name);
            continue;
        }
        out += fmt::format("| `{}` | {} | {} | {} | {} |\n", field.name, kind_name(field.kind),
                           range_text(field), field.fallback, field.about);
    }
    if (!ignored.empty()) out += fmt::format("| {} | any | | | ignored |\n", ignored);
    return out;
}

Fields::Fields(formats::JsonValue body, std::string_view route)
    : body_(body), table_(fields_of(route)) {
    if (!body.is_object()) throw Failure::bad("", "the body of the request must be a JSON object");
    for (const auto& [key, value] : body.items()) {
        const auto field = std::find_if(table_.begin(), table_.end(),
                                        [&key = key](const Field& f) { return f.name == key; });
        if (field == table_.end()) {
            constexpr std::size_t kMostUnknown = 16, kMostName = 100;
            if (++unknown_count_ <= kMostUnknown) {
                unknown_.push_back({printable(key, kMostName), meant_instead(key, table_)});
            }
            continue;
        }
        if (!value.is_null()) check(*field, value);
    }
    for (const Field& field : table_) {
        if (std::string_view(field.fallback) == "required" && !given(field.name) &&
            !(std::string_view(field.name) == "content" && given("prompt"))) {
            throw Failure::bad(field.name, fmt::format("'{}' is missing", field.name),
                               "missing_field");
        }
    }
}

// Only what the table has is checked: a field of another route is not there.
std::optional<formats::JsonValue> Fields::find(const char* name) const {
    const bool known = std::any_of(table_.begin(), table_.end(),
                                   [&](const Field& f) { return std::strcmp(f.name, name) == 0; });
    return known ? body_.find_set(name) : std::nullopt;
}
bool Fields::flag(const char* name, bool fallback) const {
    const auto value = find(name);
    return value ? value->get<bool>() : fallback;
}
std::int64_t Fields::integer(const char* name, std::int64_t fallback) const {
    const auto value = find(name);
    return value ? value->get<std::int64_t>() : fallback;
}
double Fields::number(const char* name, double fallback) const {
    const auto value = find(name);
    return value ? value->get<double>() : fallback;
}
std::string Fields::text(const char* name, std::string fallback) const {
    const auto value = find(name);
    return value ? std::string(value->text()) : std::move(fallback);
}
std::vector<std::string> Fields::texts(const char* name) const {
    std::vector<std::string> out;
    const auto value = find(name);
    if (!value) return out;
    if (value->is_string()) return {std::string(value->text())};
    for (const formats::JsonValue item : *value) out.emplace_back(item.text());
    return out;
}

}  // namespace mr::serve
