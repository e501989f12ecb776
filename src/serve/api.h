// The routes: turn requests into work for the desk, and its results into JSON.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/arena.h"
#include "decode/generate.h"
#include "formats/json_writer.h"
#include "serve/answer.h"
#include "serve/compile_queue.h"
#include "serve/desk.h"
#include "serve/fields.h"
#include "serve/gate.h"
#include "serve/grammars.h"
#include "serve/http.h"
#include "serve/metrics.h"
#include "text/chat_tools.h"
#include "text/chat_writer.h"
#include "text/grammar/response_format.h"

namespace mr::serve {

struct ApiOptions {
    std::string model{};                 // its id
    std::vector<std::string> aliases{};  // further names; "*": any
    std::string fingerprint{};
    std::string version{};
    bool verbose_usage = false;
    // What is ignored or guessed by default is refused: unknown fields, and conversations with a
    // model that has no chat template.
    bool strict = false;
    bool share_prefixes = false;  // equal prompts share pages whatever their key
    std::size_t grammar_bytes = Grammars::kMostBytes;  // for all but the texts that run
    MemoryPlan plan{};                                 // of the engine
    std::uint64_t capacity = 0;                        // bytes of the memory that the engine uses
    double read_bandwidth =
        0;                  // measured, of that memory: bytes per second; 0: unknown, or no limit
    bool in_cache = false;  // what a token reads fits into the machine's cache
    decode::GenerateOptions generate{};  // defaults of requests: context, diffusion
    text::ChatOptions chat{};
};

class Api {
  public:
    // All arguments must outlive the object.
    Api(Desk& desk, const Gate& gate, Metrics& metrics, ApiOptions options);

    // Called by the transport (HttpHandlers).
    std::optional<HttpReply> admit(const HttpRequest& head) const;
    void handle(const ExchangePtr& exchange);
    static HttpReply refuse(const HttpRequest& head, int status, const std::string& problem);
    // In the format of the path that was asked for.
    static HttpReply refusal(const Failure& failure, const HttpRequest& request) {
        return failure_reply(failure, anthropic(request));
    }
    static HttpReply version_reply(const std::string& version);
    void set_connections(std::function<std::size_t()> count) { connections_ = std::move(count); }
    // Called with lines for the log, by any thread.
    void set_notes(std::function<void(const std::string& line)> note) { note_ = std::move(note); }
    // Adds a file of the page: served on GET, without a key.
    void add_page(const std::string& path, HttpReply reply);

    const text::ChatWriter& chat() const { return chat_; }

  private:
    struct Call {
        const ExchangePtr& exchange;
        const Fields& fields;
        bool compiles = true;  // grammars; a worker leaves that to the queue
    };
    // The grammar of a request is not there, and its thread compiles none.
    struct NotCompiled {};
    // A request's body, for as long as it waits to be answered.
    struct Body {
        formats::JsonDocument document;
        Fields fields;
    };
    struct Route {
        const char* method;
        const char* path;
        const char* fields;  // null: no body
        void (Api::*run)(const Call& call);
        bool open = false;  // needs no key
        // A route that ends with a slash is of all paths below it.
        bool takes(std::string_view asked) const {
            const std::string_view own = path;
            return own.ends_with('/') ? asked.size() > own.size() && asked.starts_with(own)
                                      : asked == own;
        }
    };
    static const std::vector<Route>& routes();
    void run(const Route& route, const ExchangePtr& exchange);
    void answer(const Route& route, const ExchangePtr& exchange, std::shared_ptr<const Body> body,
                bool compiles);
    // Runs `work`; what it throws becomes the answer.
    static void answer_failures(const ExchangePtr& exchange, const std::function<void()>& work);
    const HttpReply* page(const std::string& path) const;
    static HttpReply page_reply(const HttpReply& file, const HttpRequest& request);
    void add_memory(formats::JsonWriter& json) const;
    static bool anthropic(const HttpRequest& request);
    void heed_unknown(const Fields& fields);

    // api.cpp
    void version(const Call& call);
    void health(const Call& call);
    void add_model(formats::JsonWriter& json) const;
    void models(const Call& call);
    void one_model(const Call& call);
    void metrics(const Call& call);
    void props(const Call& call);
    // api_text.cpp
    void tokenize(const Call& call);
    void detokenize(const Call& call);
    void tokenizer_info(const Call& call);
    void apply_template(const Call& call);
    void count_tokens(const Call& call);
    void embeddings(const Call& call);
    // api_generate.cpp
    void chat_completions(const Call& call);
    void completions(const Call& call);
    void messages(const Call& call);
    Desk::Work answer_to(const Call& call, bool anthropic, FormatOptions& format);
    void give_one(const Call& call, Desk::Work work, std::unique_ptr<Format> format);

    // Parts shared by requests. All throw Failure.
    struct Tools {                                // that the model may call
        std::string json{};                       // as OpenAI's list; empty: none
        std::vector<text::grammar::Tool> list{};  // valid as long as the request
        text::grammar::ToolChoice choice{};
    };
    struct Conversation {
        std::vector<text::ChatMessage> messages;
        Tools tools;
        bool goes_on = false;  // the last message is the beginning of the answer
    };
    // api_messages.cpp
    Conversation conversation(const Fields& fields, bool anthropic) const;
    text::ChatText written(const Conversation& conversation, const Fields& fields,
                           std::vector<std::int32_t>& ids, std::vector<std::string>& stops,
                           bool add_generation_prompt = true) const;
    std::optional<text::ChatWriter> own_writer(const Conversation& conversation,
                                               const Fields& fields) const;
    // api_structure.cpp
    static Tools tools(const Fields& fields, bool anthropic);
    ops::Adjustments adjustments(const Fields& fields) const;
    // The format that the text is to have, by any of its names.
    static text::grammar::TextFormat wanted_format(const Fields& fields);
    // Constrains the text to tool calls and to the requested format.
    void bind(decode::GenerateOptions& options, FormatOptions& format, const Call& call,
              const Tools& tools);
    Grammars::MakeFilter filter(const Call& call, const text::grammar::TextFormat& wanted,
                                const Tools& tools, const text::grammar::ToolForm& form,
                                std::vector<std::int32_t> banned);
    void require_autoregressive(const char* field) const;
    // api_request.cpp
    void require_model(const std::string& asked) const;
    decode::GenerateOptions generate_options(const Fields& fields) const;
    // Tokens to make after a prompt of `prompt` tokens, if the request asks for `asked` (-1: not
    // given).
    int most_tokens(std::size_t prompt, std::int64_t asked) const;
    std::int64_t context() const;  // positions per text
    // Texts or token ids: "prompt" and "input". `more`: tokens that must fit after them.
    std::vector<std::vector<std::int32_t>> token_lists(const Fields& fields, const char* name,
                                                       std::size_t most, int more = 1) const;
    std::vector<std::int32_t> token_ids(formats::JsonValue list, const char* name) const;
    // The log-probabilities of all prompts must have room: `entries` for each of their tokens.
    static void require_scores(std::size_t tokens, int entries);
    std::vector<std::int32_t> encode(std::string_view text, const char* field, int more) const;
    void require_fits(std::size_t tokens, const char* field, int more = 1) const;
    FormatOptions format_options(const char* prefix, const Fields& fields) const;
    void give(const Call& call, std::vector<Desk::Work> works, std::shared_ptr<Sink> sink);
    std::string new_id(const char* prefix) const;

    Desk& desk_;
    const Gate& gate_;
    Metrics& metrics_;
    ApiOptions options_;
    const text::Tokenizer& tokenizer_;
    const text::ChatWriter chat_;
    const text::ToolTemplate tool_template_;
    Grammars grammars_;
    const std::int64_t created_;
    std::size_t longest_piece_ = 1;  // bytes of the longest token
    std::function<std::size_t()> connections_ = [] { return std::size_t{0}; };
    std::function<void(const std::string&)> note_ = [](const std::string&) {};
    std::mutex noted_mutex_;
    std::set<std::string> noted_;  // unknown fields that the log has named
    std::vector<std::pair<std::string, HttpReply>> pages_;
    const std::uint64_t run_;  // prefix of ids
    mutable std::atomic<std::uint64_t> next_id_ = 0;
    CompileQueue compiling_;  // last: its thread uses the others
};

}  // namespace mr::serve
