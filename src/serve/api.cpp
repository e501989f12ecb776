#include "serve/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <new>
#include <random>

#include "core/printable.h"
#include "decode/prompt.h"

namespace mr::serve {
namespace {

using formats::JsonWriter;

constexpr formats::JsonLimits kLimits{.depth = 64, .values = kMostValues};

// With the bytes that %XX stands for.
std::string decoded(std::string_view path) {
    std::string out;
    for (; !path.empty(); path.remove_prefix(1)) {
        if (path[0] != '%') {
            out += path[0];
            continue;
        }
        unsigned char byte = 0;
        const char* const end = path.data() + std::min<std::size_t>(path.size(), 3);
        if (std::from_chars(path.data() + 1, end, byte, 16).ptr != path.data() + 3) {
            throw Failure::bad("model",
                               fmt::format("the path has '{}', which is not %XX with two "
                                           "hexadecimal digits; write % as %25",
                                           printable(path.substr(0, 3), 10)),
                               "invalid_value");
        }
        out += static_cast<char>(byte);
        path.remove_prefix(2);
    }
    return out;
}

// All requests see the same time: a prompt that changed with the clock would change its text.
ApiOptions at_one_time(ApiOptions options) {
    if (!options.chat.now) options.chat.now = text::jinja::local_time();
    return options;
}

}  // namespace

Api::Api(Desk& desk, const Gate& gate, Metrics& metrics, ApiOptions options)
    : desk_(desk),
      gate_(gate),
      metrics_(metrics),
      options_(at_one_time(std::move(options))),
      tokenizer_(decode::require_tokenizer(desk.model())),
      chat_(tokenizer_, options_.chat),
      tool_template_(text::try_tools(tokenizer_, options_.chat)),
      grammars_(tokenizer_, static_cast<std::int32_t>(desk.model().spec.vocab),
                desk.model().generation.ends,
                options_.grammar_bytes + static_cast<std::size_t>(desk.options().sequences) *
                                             Grammars::text_bytes(desk.model().spec.vocab)),
      created_(std::time(nullptr)),
      run_((std::uint64_t{std::random_device{}()} << 32) | std::random_device{}()) {
    for (std::int32_t id = 0; id < tokenizer_.vocab_size(); ++id) {
        longest_piece_ = std::max(longest_piece_, tokenizer_.piece(id).size());
    }
}

const std::vector<Api::Route>& Api::routes() {
    static const std::vector<Route> all = {
        {"GET", "/health", nullptr, &Api::health, true},
        {"GET", "/version", nullptr, &Api::version, true},
        {"GET", "/v1/models", nullptr, &Api::models},
        {"GET", "/models", nullptr, &Api::models},
        {"GET", "/v1/models/", nullptr, &Api::one_model},
        {"GET", "/metrics", nullptr, &Api::metrics},
        {"GET", "/props", nullptr, &Api::props},
        {"POST", "/v1/chat/completions", "chat", &Api::chat_completions},
        {"POST", "/v1/completions", "completions", &Api::completions},
        {"POST", "/v1/embeddings", "embeddings", &Api::embeddings},
        {"POST", "/v1/messages", "messages", &Api::messages},
        {"POST", "/v1/messages/count_tokens", "count_tokens", &Api::count_tokens},
        {"GET", "/tokenizer_info", nullptr, &Api::tokenizer_info},
        {"POST", "/tokenize", "tokenize", &Api::tokenize},
        {"POST", "/detokenize", "detokenize", &Api::detokenize},
        {"POST", "/apply-template", "apply_template", &Api::apply_template}};
    return all;
}

bool Api::anthropic(const HttpRequest& request) { return request.path.starts_with("/v1/messages"); }

const HttpReply* Api::page(const std::string& path) const {
    for (const auto& [name, reply] : pages_) {
        if (name == path) return &reply;
    }
    return nullptr;
}

// A client that has the file already gets no second copy.
HttpReply Api::page_reply(const HttpReply& file, const HttpRequest& request) {
    const std::string_view known = request.header("if-none-match");
    for (const auto& [name, value] : file.headers) {
        if (name != "ETag" || known.find(value) == std::string_view::npos) continue;
        return {.status = 304, .type = "", .headers = file.headers};
    }
    return file;
}

void Api::add_page(const std::string& path, HttpReply reply) {
    pages_.emplace_back(path, std::move(reply));
}

HttpReply Api::refuse(const HttpRequest& head, int status, const std::string& problem) {
    const char* const type = status >= 500 ? "server_error" : "invalid_request_error";
    return failure_reply(Failure::of(status, type, problem), anthropic(head));
}

std::optional<HttpReply> Api::admit(const HttpRequest& head) const {
    bool open = page(head.path) != nullptr;
    for (const Route& route : routes()) open = open || (route.open && route.path == head.path);
    if (const auto failure = gate_.check(head, open)) {
        return failure_reply(*failure, anthropic(head));
    }
    return std::nullopt;
}

void Api::handle(const ExchangePtr& exchange) {
    const HttpRequest& request = exchange->request();
    const bool reads = request.method == "GET" || request.method == "HEAD";
    std::string methods;
    for (const Route& route : routes()) {
        if (!route.takes(request.path)) continue;
        const bool get = std::string_view(route.method) == "GET";
        if (route.method == request.method || (get && request.method == "HEAD")) {
            return run(route, exchange);
        }
        methods += fmt::format("{}{}", methods.empty() ? "" : ", ", get ? "GET, HEAD" : "POST");
    }
    const HttpReply* const file = page(request.path);
    if (file && reads) return exchange->reply(page_reply(*file, request));
    if (file) methods = "GET, HEAD";
    if (request.method == "OPTIONS" && (!methods.empty() || request.path == "*")) {
        if (methods.empty()) methods = "GET, HEAD, POST";
        return exchange->reply(
            {.status = 204, .type = "", .headers = {{"Allow", methods + ", OPTIONS"}}});
    }
    if (methods.empty()) {
        return exchange->reply(
            failure_reply(Failure::of(404, "invalid_request_error",
                                      fmt::format("unknown route '{}'; the server's manual "
                                                  "(docs/server.md) lists the routes",
                                                  printable(request.path, 100)),
                                      "not_found"),
                          anthropic(request)));
    }
    HttpReply reply = failure_reply(
        Failure::of(405, "invalid_request_error", fmt::format("this route takes {}", methods),
                    "method_not_allowed"),
        anthropic(request));
    reply.headers.emplace_back("Allow", methods + ", OPTIONS");
    exchange->reply(std::move(reply));
}

void Api::answer_failures(const ExchangePtr& exchange, const std::function<void()>& work) {
    const bool other = anthropic(exchange->request());
    try {
        work();
    } catch (const Failure& failure) {
        exchange->reply(failure_reply(failure, other));
    } catch (const Error& error) {
        exchange->reply(failure_reply(Failure::of(error), other));
    }
}

// Clients send fields of other servers. They have no effect here, which a person learns from the
// log: each name once, and not more names than anyone would read.
void Api::heed_unknown(const Fields& fields) {
    if (fields.unknown().empty()) return;
    const auto meant = [](const Fields::Unknown& one) {
        return one.meant.empty() ? "" : fmt::format("; did you mean '{}'?", one.meant);
    };
    const Fields::Unknown& first = fields.unknown().front();
    if (options_.strict) {
        throw Failure::bad(first.name,
                           fmt::format("unknown field '{}'{}", first.name, meant(first)),
                           "unknown_field");
    }
    metrics_.unknown_fields += fields.unknown_count();
    constexpr std::size_t kMostNoted = 100;
    const std::lock_guard lock(noted_mutex_);
    for (const Fields::Unknown& one : fields.unknown()) {
        if (noted_.size() >= kMostNoted || !noted_.insert(one.name).second) continue;
        note_(fmt::format("requests have the unknown field '{}', which is ignored{}", one.name,
                          meant(one)));
        if (noted_.size() == kMostNoted) {
            note_("further unknown fields of requests are counted, and not named here");
        }
    }
}

void Api::run(const Route& route, const ExchangePtr& exchange) {
    answer_failures(exchange, [&] {
        if (!route.fields) return (this->*route.run)({exchange, Fields()});
        auto body = std::make_shared<Body>();
        try {
            body->document =
                formats::JsonDocument::parse(exchange->request().body, "", "", kLimits);
        } catch (const Error& error) {
            throw Failure::bad("", fmt::format("the body of the request: {}", error.what()),
                               "invalid_json");
        }
        body->fields = Fields(body->document.root(), route.fields);
        heed_unknown(body->fields);
        require_model(body->fields.text("model"));
        answer(route, exchange, std::move(body), false);
    });
}

void Api::answer(const Route& route, const ExchangePtr& exchange, std::shared_ptr<const Body> body,
                 bool compiles) {
    try {
        return (this->*route.run)({exchange, body->fields, compiles});
    } catch (const NotCompiled&) {
    }
    const std::size_t bytes = body->document.bytes();
    const auto compile = [this, &route, exchange, body = std::move(body)] {
        try {
            answer_failures(exchange, [&] { answer(route, exchange, body, true); });
        } catch (const std::exception& error) {
            const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
            exchange->reply(
                refuse(exchange->request(), 500, memory ? "out of memory" : error.what()));
            exchange->cut();  // if an answer had begun
        }
    };
    compiling_.put(gate_.client_of(exchange->request()), {exchange, bytes, compile});
}

// ---- what a server says of itself --------------------------------------------------------------

void Api::health(const Call& call) {
    const bool well = desk_.healthy();
    call.exchange->reply({.status = well ? 200 : 503,
                          .body = well ? R"({"status":"ok"})" : R"({"status":"error"})"});
}

HttpReply Api::version_reply(const std::string& version) {
    JsonWriter json;
    json.begin_object().member("version", version).end_object();
    return {.body = json.take()};
}

void Api::version(const Call& call) { call.exchange->reply(version_reply(options_.version)); }

void Api::add_model(JsonWriter& json) const {
    json.begin_object().member("id", options_.model).member("object", "model");
    json.member("created", created_).member("owned_by", "millrace");
    json.member("max_model_len", desk_.most_positions()).end_object();
}

void Api::models(const Call& call) {
    JsonWriter json;
    json.begin_object().member("object", "list").key("data").begin_array();
    add_model(json);
    json.end_array().end_object();
    call.exchange->reply({.body = json.take()});
}

void Api::one_model(const Call& call) {
    const std::string_view path = call.exchange->request().path;
    require_model(decoded(path.substr(std::string_view("/v1/models/").size())));
    JsonWriter json;
    add_model(json);
    call.exchange->reply({.body = json.take()});
}

void Api::metrics(const Call& call) {
    call.exchange->reply(
        {.type = std::string(kMetricsType),
         .body = metrics_.text(options_.model, static_cast<std::int64_t>(connections_()))});
}

void Api::add_memory(JsonWriter& json) const {
    json.key("memory").begin_object().key("items").begin_array();
    for (const MemoryPlan::Item& item : options_.plan.items()) {
        json.begin_object().member("name", item.name).member("bytes", item.bytes);
        json.member("mapped", item.mapped).end_object();
    }
    json.end_array().member("total", options_.plan.total());
    if (options_.capacity > 0) json.member("capacity", options_.capacity);
    json.end_object();
}

void Api::props(const Call& call) {
    const model::ModelSpec& spec = desk_.model().spec;
    const model::EngineOptions& engine = desk_.engine_options();
    JsonWriter json;
    json.begin_object().member("model", options_.model).member("version", options_.version);
    json.member("system_fingerprint", options_.fingerprint);
    json.member("device", engine.cuda ? "cuda" : "cpu").member("format", desk_.model().format);
    json.member("context", desk_.most_positions()).member("vocabulary", spec.vocab);
    json.member("layers", spec.layers).member("dim", spec.dim);
    json.member("sequences", desk_.options().sequences);
    json.member("queue", desk_.options().queue);
    json.member("cache_tokens", metrics_.cache_tokens.load());
    json.member("diffusion", spec.diffusion.has_value());
    json.member("streams", static_cast<bool>(options_.generate.stream));
    json.member("chat_format", chat_.name()).member("chat_template", tokenizer_.chat_template());
    json.member("continues_texts", chat_.continues_texts());
    if (chat_.continues_texts()) {
        json.key("beginnings").begin_array();
        for (const std::string_view beginning : text::text_beginnings()) json.value(beginning);
        json.end_array();
    }
    // For one token per pass; a pass of a diffusion model makes many.
    if (!spec.diffusion) {
        json.member("bytes_per_token", desk_.model().weights.bytes_per_token());
    }
    json.member("in_cache", options_.in_cache);
    if (options_.read_bandwidth > 0) {
        json.key("roof").begin_object();
        json.member("bytes_per_s", options_.read_bandwidth).end_object();
    }
    add_memory(json);
    json.key("live").begin_object().member("running", metrics_.running.load());
    json.member("waiting", metrics_.waiting.load());
    json.member("cache_free_tokens", metrics_.cache_free.load());
    json.member("generated_tokens", metrics_.generated_tokens.load()).end_object();
    call.exchange->reply({.body = json.end_object().take()});
}

}  // namespace mr::serve
