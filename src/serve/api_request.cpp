// Parts that several routes share: the model, sampling, token lists.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <random>

#include "core/printable.h"
#include "serve/api.h"

namespace mr::serve {
namespace {

constexpr int kUsualTokens = 2048;       // default number of tokens
constexpr std::size_t kMostStop = 1024;  // bytes of a stop string

// Which of a field's two names the request uses.
const char* one_name(const Fields& fields, const char* name, const char* other) {
    if (!fields.given(other)) return name;
    if (fields.given(name) && fields.number(name, 0) != fields.number(other, 0)) {
        wrong(other, fmt::format("is another name of '{}', which has another value", name));
    }
    return other;
}

}  // namespace

void Api::require_model(const std::string& asked) const {
    if (asked.empty() || asked == options_.model) return;
    for (const std::string& alias : options_.aliases) {
        if (alias == "*" || alias == asked) return;
    }
    Failure failure = Failure::of(404, "invalid_request_error",
                                  fmt::format("the model '{}' is not served here; '{}' is",
                                              printable(asked, 100), options_.model),
                                  "model_not_found");
    failure.param = "model";
    throw failure;
}

decode::GenerateOptions Api::generate_options(const Fields& fields) const {
    const model::Generation& advice = desk_.model().generation;
    decode::GenerateOptions out = options_.generate;
    ops::SampleParams& s = out.sampling;
    s.temperature =
        static_cast<float>(fields.number("temperature", advice.temperature.value_or(1.0F)));
    s.top_p = static_cast<float>(fields.number("top_p", advice.top_p.value_or(1.0F)));
    s.top_k = static_cast<std::int32_t>(
        std::max<std::int64_t>(fields.integer("top_k", advice.top_k.value_or(0)), 0));
    s.min_p = static_cast<float>(fields.number("min_p", advice.min_p.value_or(0.0F)));
    s.repeat_penalty =
        static_cast<float>(fields.number(one_name(fields, "repetition_penalty", "repeat_penalty"),
                                         advice.repeat_penalty.value_or(1.0F)));
    out.repeat_window =
        static_cast<int>(fields.integer(one_name(fields, "repeat_window", "repeat_last_n"),
                                        advice.repeat_window.value_or(out.repeat_window)));
    s.seed = fields.given("seed") ? static_cast<std::uint64_t>(fields.integer("seed", 0))
                                  : std::uint64_t{std::random_device{}()};
    out.adjust = adjustments(fields);
    out.ignore_end = fields.flag("ignore_eos");
    if (const auto ids = fields.find("stop_token_ids")) {
        out.stop_ids = token_ids(*ids, "stop_token_ids");
    }
    out.include_stop = fields.flag("include_stop_str_in_output");
    out.min_tokens = static_cast<int>(fields.integer("min_tokens", 0));
    if (out.min_tokens > 0) require_autoregressive("min_tokens");
    out.show_special = !fields.flag("skip_special_tokens", true);
    out.share_prompt = fields.flag("cache_prompt", true);
    out.prompt_logprobs = static_cast<int>(fields.integer("prompt_logprobs", -1));
    if (out.prompt_logprobs >= 0) {
        require_autoregressive("prompt_logprobs");
        if (fields.flag("stream")) wrong("prompt_logprobs", "is not for streams");
    }
    for (const char* const name : {"stop", "stop_sequences"}) {
        for (std::string& stop : fields.texts(name)) {
            if (stop.size() > kMostStop) wrong(name, "has a text longer than 1024 bytes");
            if (!stop.empty()) out.stop.push_back(std::move(stop));
        }
    }
    out.keep = decode::Keep::nothing;
    return out;
}

std::int64_t Api::context() const {
    return options_.generate.stream ? model::Engine::kMostPositions : desk_.most_positions();
}

int Api::most_tokens(std::size_t prompt, std::int64_t asked) const {
    const auto room = std::max<std::int64_t>(context() - static_cast<std::int64_t>(prompt), 1);
    return static_cast<int>(std::min(asked >= 0 ? asked : kUsualTokens, room));
}

void Api::require_fits(std::size_t tokens, const char* field, int more) const {
    if (static_cast<std::int64_t>(tokens) + more <= context()) return;
    throw Failure::bad(
        field,
        fmt::format("'{}' has {} tokens or more, and the context has room for {}{}; shorten it, or "
                    "serve with a larger --ctx or --context streaming",
                    field, tokens, context(), more > 0 ? ", of which one is for the answer" : ""),
        "context_length_exceeded");
}

// A text that cannot fit is refused before it is encoded.
std::vector<std::int32_t> Api::encode(std::string_view text, const char* field, int more) const {
    require_fits(text.size() / longest_piece_, field, more);
    std::vector<std::int32_t> ids = tokenizer_.encode(text);
    if (ids.empty() && (tokenizer_.bos() || tokenizer_.eos())) {
        ids = {tokenizer_.bos() ? *tokenizer_.bos() : *tokenizer_.eos()};
    }
    return ids;
}

std::vector<std::int32_t> Api::token_ids(formats::JsonValue list, const char* name) const {
    std::vector<std::int32_t> ids;
    ids.reserve(list.size());
    for (const formats::JsonValue id : list) {
        if (!id.is_integer_in(0, desk_.model().spec.vocab - 1)) {
            wrong(name, fmt::format("has {}, which is not a token of this model", id.shown(40)));
        }
        ids.push_back(id.get<std::int32_t>());
    }
    return ids;
}

std::vector<std::vector<std::int32_t>> Api::token_lists(const Fields& fields, const char* name,
                                                        std::size_t most, int more) const {
    const formats::JsonValue value = *fields.find(name);
    std::vector<std::vector<std::int32_t>> out;
    if (value.is_string()) {
        out.push_back(encode(value.text(), name, more));
    } else if (value.is_array() && !value.empty() && value.front().is_number()) {
        out.push_back(token_ids(value, name));
    } else if (value.is_array()) {
        if (value.size() > most) wrong(name, fmt::format("has more than {} entries", most));
        for (const formats::JsonValue item : value) {
            if (item.is_string()) {
                out.push_back(encode(item.text(), name, more));
            } else if (item.is_array()) {
                out.push_back(token_ids(item, name));
            } else {
                wrong(name, fmt::format("has a {} among texts and lists of ids", item.type_name()));
            }
        }
    } else {
        wrong(name, fmt::format("must be a text or a list, not a {}", value.type_name()));
    }
    if (out.empty()) wrong(name, "is empty");
    for (const std::vector<std::int32_t>& ids : out) {
        if (ids.empty()) wrong(name, "has an empty entry");
        require_fits(ids.size(), name, more);
    }
    return out;
}

std::string Api::new_id(const char* prefix) const {
    return fmt::format("{}{:016x}{:08x}", prefix, run_, next_id_++);
}

FormatOptions Api::format_options(const char* prefix, const Fields& fields) const {
    FormatOptions out;
    out.id = new_id(prefix);
    out.created = std::time(nullptr);
    out.model = options_.model;
    out.fingerprint = options_.fingerprint;
    out.verbose_usage = options_.verbose_usage;
    out.tokenizer = &tokenizer_;
    if (const auto wanted = fields.find("stream_options")) {
        const auto flag = [&](const char* name) {
            const auto given = wanted->find_set(name);
            if (given && !given->is_boolean()) {
                wrong(fmt::format("stream_options.{}", name), "must be a boolean");
            }
            return given && given->get<bool>();
        };
        out.include_usage = flag("include_usage");
        out.include_blocks = flag("include_blocks");
    }
    return out;
}

}  // namespace mr::serve
