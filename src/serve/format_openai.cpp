// Chat completions and completions in OpenAI's format.
#include <fmt/format.h>

#include <utility>

#include "formats/json_writer.h"
#include "serve/answer.h"
#include "serve/format_logprobs.h"

namespace mr::serve {
namespace {

using formats::JsonWriter;

const char* finish_reason(const ChoiceText& text, bool called = false) {
    return cut_short(text.reason) ? "length" : called ? "tool_calls" : "stop";
}

class OpenAiFormat : public Format {
  public:
    OpenAiFormat(FormatOptions options, const char* object, const char* chunk)
        : options_(std::move(options)), object_(object) {
        chunk_head_ = head(chunk);
    }

    std::string last(const Usage& usage) override {
        std::string out;
        if (options_.include_usage) {
            out = event_text(chunk_head_ + R"(,"choices":[],"usage":)" + usage_json(usage) + "}");
        }
        return out + event_text("[DONE]");
    }

    std::string failed(const Failure& failure) override {
        return event_text(failure_json(failure));
    }

    // A chunk whose choice has no text yet.
    std::string block(int choice, std::span<const std::int32_t> tokens,
                      std::span<const std::uint8_t> settled) override {
        JsonWriter json;
        json.begin_object().key("block").begin_array();
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            const bool ends = options_.tokenizer->is_end_of_generation(tokens[i]);
            if (!settled[i]) {
                json.null();
            } else {
                json.value(ends ? std::string() : options_.tokenizer->piece(tokens[i]));
            }
        }
        json.end_array().end_object();
        return chunk(empty_choice(choice), json.text());
    }

    std::string whole(const std::vector<ChoiceText>& choices, const Usage& usage) override {
        std::string out = head(object_) + R"(,"choices":[)";
        for (std::size_t i = 0; i < choices.size(); ++i) {
            if (i > 0) out += ',';
            out += choice_json(static_cast<int>(i), choices[i]);
        }
        return out + R"(],"usage":)" + usage_json(usage) + beside(choices) + "}";
    }

  protected:
    // Further members of a whole answer.
    virtual std::string beside(const std::vector<ChoiceText>& /*choices*/) const { return {}; }
    virtual std::string choice_json(int choice, const ChoiceText& text) = 0;
    virtual std::string empty_choice(int choice) = 0;  // of a chunk

    // One choice of a chunk; the text before it is the same in all chunks. `own`: this server's own
    // object, beside the choice.
    std::string chunk(std::string_view choice, std::string_view own = {}) const {
        std::string json = chunk_head_;
        json += R"(,"choices":[)";
        json += choice;
        json += options_.include_usage ? R"(],"usage":null)" : "]";
        if (!own.empty()) json.append(R"(,"millrace":)").append(own);
        return event_text(json + "}");
    }

    // How many tokens a piece has, if it is not one.
    static std::string count_json(const ChoiceText& text) { return count_json(text.fresh); }
    static std::string count_json(std::int64_t tokens) {
        return tokens == 1 ? "" : fmt::format(R"({{"tokens":{}}})", tokens);
    }

    std::string head(const char* object) const {
        JsonWriter json;
        json.begin_object().member("id", options_.id).member("object", object);
        json.member("created", options_.created).member("model", options_.model);
        json.member("system_fingerprint", options_.fingerprint);
        return json.take();
    }

    std::string usage_json(const Usage& usage) const {
        JsonWriter json;
        json.begin_object().member("prompt_tokens", usage.prompt);
        json.member("completion_tokens", usage.completion);
        json.member("total_tokens", usage.prompt + usage.completion);
        if (options_.verbose_usage) {
            json.key("prompt_tokens_details").begin_object();
            json.member("cached_tokens", usage.found).end_object();
            json.key("millrace").raw(ledger_json(usage));
        }
        return json.end_object().take();
    }

    static std::string ledger_json(const Usage& usage) {
        JsonWriter json;
        json.begin_object().member("first_token_s", usage.first_seconds);
        json.member("decode_s", usage.seconds);
        std::int64_t decoded = 0;
        for (const auto& choice : usage.choices) decoded += choice ? choice->decode.tokens : 0;
        const auto rate = [](auto amount, double of) {
            return of > 0 ? static_cast<double>(amount) / of : 0.0;
        };
        json.member("tokens_per_s", rate(decoded, usage.seconds));
        if (usage.choices.size() == 1 && usage.choices[0]) {  // several choices share passes
            const Usage::Choice& only = *usage.choices[0];
            json.member("bytes_per_token",
                        rate(only.decode.work.bytes_read, static_cast<double>(only.decode.tokens)));
            json.member("bytes_per_s", rate(only.decode.work.bytes_read, only.decode.seconds));
            if (only.passes > 0) json.member("steps", only.passes);
        }
        json.key("choices").begin_array();
        for (const auto& choice : usage.choices) {
            if (!choice) continue;
            json.begin_object().key("prefill").raw(spent_json(choice->prefill));
            json.key("decode").raw(spent_json(choice->decode));
            if (choice->passes > 0) json.member("passes", choice->passes);
            json.end_object();
        }
        return json.end_array().end_object().take();
    }

    static std::string spent_json(const Spent& spent) {
        JsonWriter json;
        json.begin_object().member("tokens", spent.tokens).member("seconds", spent.seconds);
        json.member("bytes_read", spent.work.bytes_read);
        json.member("bytes_written", spent.work.bytes_written);
        return json.member("flops", spent.work.flops).end_object().take();
    }

    void add_token(JsonWriter& json, std::int32_t id, double logprob) const {
        const std::string piece = options_.tokenizer->piece(id);
        json.member("token", piece).member("logprob", logprob).key("bytes").begin_array();
        for (const char c : piece) json.value(static_cast<int>(static_cast<unsigned char>(c)));
        json.end_array();
    }

    FormatOptions options_;
    const char* object_;
    std::string chunk_head_;
};

// The tool calls of one choice as they arrive.
struct ChoiceCalls {
    CallReader reader;
    int begun = 0;
    std::int64_t unsaid = 0;  // tokens not reported by any chunk yet
};

class ChatFormat final : public OpenAiFormat {
  public:
    explicit ChatFormat(FormatOptions options)
        : OpenAiFormat(std::move(options), "chat.completion", "chat.completion.chunk") {}

    std::string begin(int choice) override {
        return chunk(delta(choice, R"({"role":"assistant","content":""})", "null", nullptr));
    }
    std::string piece(int choice, const ChoiceText& text) override {
        if (!options_.calls) {
            return chunk(delta(choice, content(text.text), logprobs(text)), count_json(text));
        }
        return parts(choice, calls(choice).reader.read(text.text), text);
    }
    std::string end(int choice, const ChoiceText& text) override {
        if (!options_.calls) return chunk(delta(choice, "{}", "null", finish_reason(text)));
        CallReader& reader = calls(choice).reader;
        const std::string held = parts(choice, reader.finish(), {});
        return held + chunk(delta(choice, "{}", "null", finish_reason(text, reader.called())));
    }

  protected:
    std::string empty_choice(int choice) override { return delta(choice, "{}", "null"); }
    std::string choice_json(int choice, const ChoiceText& text) override {
        CalledText made{text.text};
        if (options_.calls) made = read_calls(*options_.calls, text.text);
        JsonWriter json;
        json.begin_object().member("index", choice).key("message").begin_object();
        json.member("role", "assistant").key("content");
        const std::string content = made.text + made.rest;
        content.empty() && !made.calls.empty() ? json.null() : json.value(content);
        json.key("refusal").null();
        if (!made.calls.empty()) {
            json.key("tool_calls").begin_array();
            for (std::size_t i = 0; i < made.calls.size(); ++i) {
                const CalledText::Call& call = made.calls[i];
                json.begin_object().member("id", call_id(options_.id, choice, static_cast<int>(i)));
                json.member("type", "function").key("function").begin_object();
                json.member("name", call.name).member("arguments", call.arguments);
                json.end_object().end_object();
            }
            json.end_array();
        }
        json.end_object().key("logprobs").raw(logprobs(text));
        json.member("finish_reason", finish_reason(text, made.called()));
        return json.end_object().take();
    }
    std::string beside(const std::vector<ChoiceText>& choices) const override {
        if (options_.prompt_logprobs < 0) return {};
        return R"(,"prompt_logprobs":)" + prompt_logprobs_json(*options_.tokenizer,
                                                               choices[0].prompt,
                                                               options_.prompt_logprobs);
    }

  private:
    ChoiceCalls& calls(int choice) {
        const auto i = static_cast<std::size_t>(choice);
        while (calls_.size() <= i) calls_.push_back({CallReader(*options_.calls)});
        return calls_[i];
    }

    // One chunk for each part; the first has the probabilities of all new tokens.
    std::string parts(int choice, const std::vector<CallPart>& parts, const ChoiceText& text) {
        std::string out, known = logprobs(text);
        ChoiceCalls& own = calls(choice);
        own.unsaid += text.fresh;
        for (const CallPart& part : parts) {
            const std::string what = part_json(choice, part);
            if (what.empty()) continue;
            out += chunk(delta(choice, what, std::exchange(known, "null")),
                         count_json(std::exchange(own.unsaid, 0)));
        }
        // Nothing is certain yet.
        if (out.empty() && !text.tokens.empty()) {
            out = chunk(delta(choice, "{}", known), count_json(std::exchange(own.unsaid, 0)));
        }
        return out;
    }

    std::string part_json(int choice, const CallPart& part) {
        using Kind = CallPart::Kind;
        if (part.kind == Kind::end) return {};
        if (part.kind == Kind::text) return content(part.bytes);
        ChoiceCalls& own = calls(choice);
        const bool begins = part.kind == Kind::call;
        const int index = begins ? own.begun++ : own.begun - 1;
        JsonWriter json;
        json.begin_object().key("tool_calls").begin_array().begin_object().member("index", index);
        if (begins) {
            json.member("id", call_id(options_.id, choice, index)).member("type", "function");
        }
        json.key("function").begin_object();
        if (begins) json.member("name", part.bytes);
        json.member("arguments", begins ? std::string() : part.bytes);
        return json.end_object().end_object().end_array().end_object().take();
    }

    static std::string content(std::string_view text) {
        JsonWriter json;
        json.begin_object().member("content", text).end_object();
        return json.take();
    }

    static std::string delta(int choice, std::string_view what, std::string_view logprobs,
                             const char* reason = nullptr) {
        JsonWriter json;
        json.begin_object().member("index", choice).key("delta").raw(what);
        json.key("logprobs").raw(logprobs).key("finish_reason");
        reason ? json.value(reason) : json.null();
        return json.end_object().take();
    }

    std::string logprobs(const ChoiceText& text) const {
        if (options_.logprobs < 0) return "null";
        JsonWriter json;
        json.begin_object().key("content").begin_array();
        for (const TokenInfo& token : text.tokens) {
            json.begin_object();
            add_token(json, token.id, token.logprobs.logprob);
            json.key("top_logprobs").begin_array();
            for (const decode::TokenLogprob& other : token.logprobs.top) {
                json.begin_object();
                add_token(json, other.id, other.logprob);
                json.end_object();
            }
            json.end_array().end_object();
        }
        json.end_array().key("refusal").null().end_object();
        return json.take();
    }

    std::vector<ChoiceCalls> calls_;  // for a stream
};

class CompletionFormat final : public OpenAiFormat {
  public:
    explicit CompletionFormat(FormatOptions options)
        : OpenAiFormat(std::move(options), "text_completion", "text_completion"),
          logprobs_(*options_.tokenizer, options_.logprobs, options_.shows_special) {}
    bool keeps_end() const override { return options_.echo_logprobs; }

    std::string piece(int choice, const ChoiceText& text) override {
        return chunk(choice_json(choice, text, text.begun ? "" : echo(choice), nullptr),
                     count_json(text));
    }
    std::string end(int choice, const ChoiceText& text) override {
        return chunk(choice_json(choice, {}, "", finish_reason(text)));
    }

  protected:
    std::string empty_choice(int choice) override { return choice_json(choice, {}, "", nullptr); }
    std::string choice_json(int choice, const ChoiceText& text) override {
        return choice_json(choice, text, echo(choice), finish_reason(text));
    }

  private:
    std::string echo(int choice) const {
        if (options_.echo.empty()) return {};
        return options_.echo[static_cast<std::size_t>(choice / options_.choices)];
    }

    std::string choice_json(int choice, const ChoiceText& text, const std::string& echo,
                            const char* reason) {
        JsonWriter json;
        json.begin_object().member("index", choice).member("text", echo + text.text);
        json.key("logprobs").raw(logprobs(choice, text)).key("finish_reason");
        reason ? json.value(reason) : json.null();
        if (options_.prompt_logprobs >= 0) {
            json.key("prompt_logprobs")
                .raw(prompt_logprobs_json(*options_.tokenizer, text.prompt,
                                          options_.prompt_logprobs));
        }
        return json.end_object().take();
    }

    std::string logprobs(int choice, const ChoiceText& text) {
        if (options_.logprobs < 0) return "null";
        const bool begins = options_.begins[static_cast<std::size_t>(choice / options_.choices)];
        const std::span<const decode::PromptToken> prompt = text.prompt;
        return logprobs_.json(choice, begins, options_.echo_logprobs ? prompt : prompt.first(0),
                              text.tokens);
    }

    CompletionLogprobs logprobs_;
};

}  // namespace

std::unique_ptr<Format> chat_format(FormatOptions options) {
    return std::make_unique<ChatFormat>(std::move(options));
}

std::unique_ptr<Format> completion_format(FormatOptions options) {
    return std::make_unique<CompletionFormat>(std::move(options));
}

}  // namespace mr::serve
