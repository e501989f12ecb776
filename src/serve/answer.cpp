#include "serve/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "core/printable.h"
#include "formats/json_writer.h"

namespace mr::serve {
namespace {

// Anthropic's name for an error, where OpenAI has another.
std::string type_of(const Failure& failure, bool anthropic) {
    if (!anthropic) return failure.type;
    if (failure.type == "server_error") return "api_error";
    switch (failure.status) {
        case 403:
            return "permission_error";
        case 404:
            return "not_found_error";
        case 413:
            return "request_too_large";
        default:
            return failure.type;
    }
}

}  // namespace

std::string failure_json(const Failure& failure, bool anthropic) {
    formats::JsonWriter json;
    json.begin_object();
    if (anthropic) json.member("type", "error");
    json.key("error").begin_object();
    // Both may have what the client wrote: a name, the words of a template that refuses.
    constexpr std::size_t kMostMessage = 1000, kMostParam = 200;
    json.member("message", printable(failure.message, kMostMessage));
    json.member("type", type_of(failure, anthropic)).key("param");
    failure.param.empty() ? json.null() : json.value(printable(failure.param, kMostParam));
    json.key("code");
    failure.code.empty() ? json.null() : json.value(failure.code);
    json.end_object().end_object();
    return json.take();
}

HttpReply failure_reply(const Failure& failure, bool anthropic) {
    HttpReply reply{.status = failure.status, .body = failure_json(failure, anthropic)};
    if (failure.retry_after_ms > 0) {
        reply.headers.emplace_back("Retry-After-Ms", std::to_string(failure.retry_after_ms));
        reply.headers.emplace_back("Retry-After",
                                   std::to_string((failure.retry_after_ms + 999) / 1000));
    }
    if (failure.status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
    return reply;
}

std::string event_text(std::string_view json, std::string_view name) {
    return name.empty() ? fmt::format("data: {}\n\n", json)
                        : fmt::format("event: {}\ndata: {}\n\n", name, json);
}

std::string call_id(const std::string& answer, int choice, int call) {
    static constexpr std::string_view kLetters =
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    std::uint64_t hash = std::hash<std::string>()(fmt::format("{} {} {}", answer, choice, call));
    std::string out;
    for (int i = 0; i < 9; ++i, hash /= kLetters.size()) out += kLetters[hash % kLetters.size()];
    return out;
}

Spent::Spent(const decode::Phase& phase)
    : tokens(phase.tokens), seconds(phase.seconds), work(phase.ledger.total()) {}

Answer::Answer(ExchangePtr exchange, std::unique_ptr<Format> format, int choices, bool stream,
               std::int64_t prompt_tokens, int choices_a_prompt)
    : exchange_(std::move(exchange)),
      format_(std::move(format)),
      choices_(static_cast<std::size_t>(choices)),
      stream_(stream),
      choices_a_prompt_(choices_a_prompt),
      left_(choices) {
    usage_.prompt = prompt_tokens;
    usage_.choices.resize(choices_.size());
}

// Not before there is something to send: until then a failure can still have its own status.
void Answer::begin_stream() {
    if (begun_) return;
    begun_ = true;
    exchange_->begin({.type = "text/event-stream; charset=utf-8",
                      .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}});
    std::string events = format_->begin();
    for (std::size_t i = 0; i < choices_.size(); ++i) {
        events += format_->begin(static_cast<int>(i));
    }
    exchange_->write(events);
}

void Answer::prompt(int choice, std::vector<decode::PromptToken> tokens) {
    choices_[static_cast<std::size_t>(choice)].prompt = std::move(tokens);
}

void Answer::token(int choice, std::int32_t id, const decode::DrawnLogprobs* logprobs) {
    ChoiceText& c = choices_[static_cast<std::size_t>(choice)];
    if (!std::exchange(c.drew, true)) {
        usage_.first_seconds = std::max(usage_.first_seconds, Moment::now().seconds_since(start_));
    }
    ++c.fresh;
    if (logprobs) c.tokens.push_back({id, *logprobs});
}

void Answer::text(int choice, std::string_view piece) {
    ChoiceText& c = choices_[static_cast<std::size_t>(choice)];
    c.text += piece;
    if (!stream_) return;
    begin_stream();
    send_piece(choice);
}

void Answer::block(int choice, std::span<const std::int32_t> tokens,
                   std::span<const std::uint8_t> settled) {
    begin_stream();
    exchange_->write(format_->block(choice, tokens, settled));
}

void Answer::send_piece(int choice) {
    ChoiceText& c = choices_[static_cast<std::size_t>(choice)];
    exchange_->write(format_->piece(choice, c));
    c.begun = true;
    c.text.clear();
    c.tokens.clear();
    c.prompt.clear();
    c.fresh = 0;
}

void Answer::ended(int choice, const decode::Generated& made) {
    ChoiceText& c = choices_[static_cast<std::size_t>(choice)];
    c.ended = true;
    c.reason = made.reason;
    c.stopped_by = made.stopped_by;
    c.drawn = made.drawn;
    if (made.end_token && !c.tokens.empty() && !format_->keeps_end()) c.tokens.pop_back();
    usage_.completion += made.drawn;
    // A prompt counts once, however many choices it has.
    if (choice % choices_a_prompt_ == 0) usage_.found += made.found;
    usage_.choices[static_cast<std::size_t>(choice)] =
        Usage::Choice{Spent(made.prefill), Spent(made.decode), made.passes};
    usage_.seconds = std::max(usage_.seconds, made.decode.seconds);
    --left_;
    if (!stream_) {
        if (left_ == 0) exchange_->reply({.body = format_->whole(choices_, usage_)});
        return;
    }
    begin_stream();
    if (!c.text.empty() || !c.tokens.empty() || !c.begun) send_piece(choice);
    exchange_->write(format_->end(choice, c));
    if (left_ > 0) return;
    exchange_->write(format_->last(usage_));
    exchange_->end();
}

void Answer::failed(const Failure& failure) {
    if (!begun_) return exchange_->reply(failure_reply(failure, format_->anthropic()));
    exchange_->write(format_->failed(failure));
    exchange_->cut();
}

}  // namespace mr::serve
