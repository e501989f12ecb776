#include "serve/lobby.h"

#include "serve/answer.h"

namespace mr::serve {
namespace {

// How long a client should wait: models load in seconds, large ones in a minute or two.
constexpr int kLoadingRetryMs = 2000;

Failure loading() {
    Failure out =
        Failure::of(503, "server_error",
                    "the model is being loaded; /health answers 200 once it is there", "loading");
    out.retry_after_ms = kLoadingRetryMs;
    return out;
}

}  // namespace

HttpHandlers Lobby::handlers() {
    return {.admit = [this](const HttpRequest& head) { return admit(head); },
            .handle = [this](const ExchangePtr& exchange) { handle(exchange); },
            .extra =
                [this](const HttpRequest& request) {
                    Headers extra = gate_.headers(request);
                    // Anthropic's clients look for the request's id under this name.
                    if (request.path.starts_with("/v1/messages")) {
                        extra.emplace_back("Request-Id", request.id);
                    }
                    return extra;
                },
            .refuse = Api::refuse,
            .done =
                [this](const Access& access) {
                    ++metrics_.responses[static_cast<std::size_t>(access.status / 100)];
                    log_.add(access);
                },
            .client = [this](const HttpRequest& request) { return gate_.client_of(request); }};
}

// A request that is refused before its body is read costs nothing.
std::optional<HttpReply> Lobby::admit(const HttpRequest& head) const {
    if (const Api* const api = api_) return api->admit(head);
    const bool open = head.path == "/health" || head.path == "/version";
    if (const auto failure = gate_.check(head, open)) return Api::refusal(*failure, head);
    if (open || head.path == "/metrics") return std::nullopt;
    return Api::refusal(loading(), head);
}

void Lobby::handle(const ExchangePtr& exchange) const {
    if (Api* const api = api_) return api->handle(exchange);
    const HttpRequest& request = exchange->request();
    if (request.method != "GET" && request.method != "HEAD") {
        return exchange->reply(Api::refusal(loading(), request));
    }
    if (request.path == "/version") return exchange->reply(Api::version_reply(version_));
    if (request.path == "/metrics") {
        return exchange->reply({.type = std::string(kMetricsType), .body = process_metrics()});
    }
    HttpReply reply = Api::refusal(loading(), request);
    if (request.path == "/health") reply.body = R"({"status":"loading"})";
    exchange->reply(std::move(reply));
}

}  // namespace mr::serve
