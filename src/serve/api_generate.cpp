// Routes that make text.
#include <fmt/format.h>

#include <algorithm>

#include "decode/prompt.h"
#include "serve/api.h"

namespace mr::serve {
namespace {

constexpr std::size_t kMostPrompts = 128;
// Entries of the log-probabilities of a request's prompts: some 60 bytes of memory for each, and as
// many of JSON.
constexpr std::size_t kMostScores = std::size_t{1} << 20;

}  // namespace

void Api::require_scores(std::size_t tokens, int entries) {
    const std::size_t all = tokens * static_cast<std::size_t>(entries);
    if (all <= kMostScores) return;
    throw Failure::bad("prompt",
                       fmt::format("the request asks for {} log-probabilities of prompts, and may "
                                   "ask for {}; send fewer prompts at once, or ask for fewer of "
                                   "the most probable tokens",
                                   all, kMostScores),
                       "invalid_value");
}

// Gives work to the desk, in the client's queue and with its key's salt.
void Api::give(const Call& call, std::vector<Desk::Work> works, std::shared_ptr<Sink> sink) {
    const HttpRequest& request = call.exchange->request();
    const std::uint64_t salt = options_.share_prefixes ? 0 : gate_.salt_of(request);
    for (Desk::Work& work : works) work.options.cache_salt = salt;
    desk_.generate(gate_.client_of(request), std::move(works), std::move(sink));
}

// The work for an answer to a conversation; sets what `format` needs.
Desk::Work Api::answer_to(const Call& call, bool anthropic, FormatOptions& format) {
    const Fields& fields = call.fields;
    Desk::Work work;
    work.options = generate_options(fields);
    format.stops = work.options.stop;
    const Conversation talk = conversation(fields, anthropic);
    bind(work.options, format, call, talk.tools);
    if (!talk.tools.list.empty()) work.options.show_special = false;  // calls are read without
    std::vector<std::string> stops;
    written(talk, fields, work.prompt, stops);
    work.options.stop.insert(work.options.stop.end(), stops.begin(), stops.end());
    require_fits(work.prompt.size(), "messages");
    work.options.max_tokens =
        most_tokens(work.prompt.size(),
                    fields.integer("max_completion_tokens", fields.integer("max_tokens", -1)));
    format.prompt_tokens = static_cast<std::int64_t>(work.prompt.size());
    return work;
}

void Api::give_one(const Call& call, Desk::Work work, std::unique_ptr<Format> format) {
    const auto tokens = static_cast<std::int64_t>(work.prompt.size());
    auto answer = std::make_shared<Answer>(call.exchange, std::move(format), work.choices,
                                           call.fields.flag("stream"), tokens, work.choices);
    std::vector<Desk::Work> works;
    works.push_back(std::move(work));
    give(call, std::move(works), std::move(answer));
}

void Api::chat_completions(const Call& call) {
    const Fields& fields = call.fields;
    if (fields.given("top_logprobs") && !fields.flag("logprobs")) {
        throw Failure::bad("top_logprobs", "'top_logprobs' needs 'logprobs' to be true",
                           "invalid_value");
    }
    FormatOptions format = format_options("chatcmpl-", fields);
    Desk::Work work = answer_to(call, false, format);
    if (fields.flag("logprobs")) {
        work.options.logprobs = format.logprobs =
            static_cast<int>(fields.integer("top_logprobs", 0));
    }
    work.choices = static_cast<int>(fields.integer("n", 1));
    format.prompt_logprobs = work.options.prompt_logprobs;
    if (format.prompt_logprobs >= 0) {
        require_scores(work.prompt.size() * static_cast<std::size_t>(work.choices),
                       format.prompt_logprobs + 1);
    }
    work.shows_blocks = format.include_blocks && fields.flag("stream");
    give_one(call, std::move(work), chat_format(std::move(format)));
}

void Api::completions(const Call& call) {
    const Fields& fields = call.fields;
    decode::GenerateOptions options = generate_options(fields);
    FormatOptions format = format_options("cmpl-", fields);
    bind(options, format, call, {});
    const int choices = static_cast<int>(fields.integer("n", 1));
    const std::int64_t asked = fields.integer("max_tokens", -1);
    const bool echo = fields.flag("echo");
    format.logprobs = static_cast<int>(fields.integer("logprobs", -1));
    format.prompt_logprobs = options.prompt_logprobs;
    format.shows_special = options.show_special;
    options.logprobs = format.logprobs;
    if (echo && format.logprobs >= 0) {
        require_autoregressive("logprobs");
        format.echo_logprobs = true;
        options.prompt_logprobs = std::max(options.prompt_logprobs, format.logprobs);
    }
    const bool scores = options.prompt_logprobs >= 0;
    std::vector<std::vector<std::int32_t>> prompts =
        token_lists(fields, "prompt", kMostPrompts, scores && asked == 0 ? 0 : 1);
    const int all = choices * static_cast<int>(prompts.size());
    if (all > static_cast<int>(kMostPrompts)) {
        throw Failure::bad("n", fmt::format("prompts times 'n' must be at most {}", kMostPrompts),
                           "invalid_value");
    }
    format.choices = choices;
    const bool shows_blocks = format.include_blocks && fields.flag("stream");
    std::vector<Desk::Work> works;
    std::int64_t tokens = 0;
    for (std::vector<std::int32_t>& ids : prompts) {
        Desk::Work work;
        work.options = options;
        work.options.max_tokens = most_tokens(ids.size(), asked);
        work.choices = choices;
        work.shows_blocks = shows_blocks;
        tokens += static_cast<std::int64_t>(ids.size());
        format.begins.push_back(decode::begins_text(tokenizer_, ids));
        if (echo) format.echo.push_back(tokenizer_.decode(ids, !format.shows_special));
        work.prompt = std::move(ids);
        works.push_back(std::move(work));
    }
    if (scores) {
        require_scores(static_cast<std::size_t>(tokens * choices), options.prompt_logprobs + 1);
    }
    auto answer = std::make_shared<Answer>(call.exchange, completion_format(std::move(format)), all,
                                           fields.flag("stream"), tokens, choices);
    give(call, std::move(works), answer);
}

void Api::messages(const Call& call) {
    FormatOptions format = format_options("msg_", call.fields);
    Desk::Work work = answer_to(call, true, format);
    give_one(call, std::move(work), messages_format(std::move(format)));
}

}  // namespace mr::serve
