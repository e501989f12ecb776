// The texts of one request on their way to its client: as a stream of events or as one body, in the
// format of the API that was used.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ledger.h"
#include "decode/generate.h"
#include "serve/calls.h"
#include "serve/desk.h"
#include "serve/http.h"
#include "text/tokenizer.h"

namespace mr::serve {

// A drawn token and its probabilities, if the request asks for them.
struct TokenInfo {
    std::int32_t id = 0;
    decode::DrawnLogprobs logprobs{};
};

// One text. `text` and `tokens` hold what has not been sent yet: in a stream the newest piece, else
// all of it.
struct ChoiceText {
    std::string text{};
    std::vector<TokenInfo> tokens{};
    std::vector<decode::PromptToken> prompt{};  // if its log-probabilities are asked for
    int fresh = 0;                              // tokens in `text`
    bool drew = false, begun = false, ended = false;
    decode::StopReason reason = decode::StopReason::length;
    std::string stopped_by{};
    std::int64_t drawn = 0;
};

// Time and work of one phase of a text. The work is that of all passes of the engine meanwhile:
// concurrent texts share passes.
struct Spent {
    explicit Spent(const decode::Phase& phase);

    std::int64_t tokens;
    double seconds;
    OpRecord work;
};

struct Usage {
    std::int64_t prompt = 0, completion = 0;
    std::int64_t found = 0;    // prompt tokens that were in the cache
    double first_seconds = 0;  // from the request to the first token, of the slowest choice
    double seconds = 0;        // of decoding, of the slowest choice
    struct Choice {
        Spent prefill, decode;
        std::int64_t passes;  // for a diffusion model: passes over its blocks
    };
    std::vector<std::optional<Choice>> choices{};
};

// The output format of an API. Events are returned as they go over the wire.
class Format {
  public:
    virtual ~Format() = default;
    virtual std::string begin() { return {}; }  // before all choices
    virtual std::string begin(int /*choice*/) { return {}; }
    virtual std::string piece(int choice, const ChoiceText& text) = 0;
    virtual std::string block(int /*choice*/, std::span<const std::int32_t> /*tokens*/,
                              std::span<const std::uint8_t> /*settled*/) {
        return {};
    }
    virtual std::string end(int choice, const ChoiceText& text) = 0;
    virtual std::string last(const Usage& usage) = 0;  // after all choices
    virtual std::string failed(const Failure& failure) = 0;
    virtual bool anthropic() const { return false; }  // its failures have another format
    // Whether an end token that was drawn has log-probabilities, too.
    virtual bool keeps_end() const { return false; }
    virtual std::string whole(const std::vector<ChoiceText>& choices, const Usage& usage) = 0;
};

class Answer final : public Sink {
  public:
    Answer(ExchangePtr exchange, std::unique_ptr<Format> format, int choices, bool stream,
           std::int64_t prompt_tokens, int choices_a_prompt);

    void prompt(int choice, std::vector<decode::PromptToken> tokens) override;
    void token(int choice, std::int32_t id, const decode::DrawnLogprobs* logprobs) override;
    void text(int choice, std::string_view piece) override;
    void block(int choice, std::span<const std::int32_t> tokens,
               std::span<const std::uint8_t> settled) override;
    void ended(int choice, const decode::Generated& made) override;
    void failed(const Failure& failure) override;
    bool gone() const override { return exchange_->gone(); }

  private:
    void begin_stream();
    void send_piece(int choice);

    ExchangePtr exchange_;
    std::unique_ptr<Format> format_;
    std::vector<ChoiceText> choices_;
    const bool stream_;
    const int choices_a_prompt_;
    bool begun_ = false;
    int left_;
    Usage usage_;
    const Moment start_ = Moment::now();
};

// The body of an error answer; `anthropic`: in that API's format.
std::string failure_json(const Failure& failure, bool anthropic = false);
HttpReply failure_reply(const Failure& failure, bool anthropic = false);
// An event: "data: ...\n\n", with its name if it has one.
std::string event_text(std::string_view json, std::string_view name = {});

// Properties of an answer that its format writes.
struct FormatOptions {
    std::string id{};
    std::int64_t created = 0;  // seconds since 1970
    std::string model{};
    std::string fingerprint{};
    bool include_usage = false;
    bool include_blocks = false;
    bool verbose_usage = false;
    int logprobs = -1;                 // number of most probable tokens; -1: not asked for
    bool echo_logprobs = false;        // also of the prompt's tokens, before the others
    int prompt_logprobs = -1;          // the same in vLLM's field
    bool shows_special = false;        // the texts have special tokens
    int choices = 1;                   // of each prompt
    std::vector<bool> begins{};        // by prompt: its choices begin a text
    std::vector<std::string> echo{};   // by prompt: the text before its choices' own
    std::vector<std::string> stops{};  // asked for by the client
    std::int64_t prompt_tokens = 0;
    const text::Tokenizer* tokenizer = nullptr;
    // How the texts write tool calls; none: they have no calls.
    std::optional<text::grammar::ToolForm> calls{};
};
// The id of call `call` in choice `choice` of an answer: 9 letters and digits, which even the
// strictest templates accept.
std::string call_id(const std::string& answer, int choice, int call);
std::unique_ptr<Format> chat_format(FormatOptions options);
std::unique_ptr<Format> completion_format(FormatOptions options);
std::unique_ptr<Format> messages_format(FormatOptions options);

}  // namespace mr::serve
