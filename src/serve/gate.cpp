#include "serve/gate.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/mapped_file.h"
#include "core/printable.h"

namespace mr::serve {
namespace {

constexpr std::size_t kLeastKey = 8;  // bytes

// "name:8080" or "[::1]:8080" without the port.
std::string_view without_port(std::string_view host) {
    const std::size_t colon = host.rfind(':');
    const std::size_t bracket = host.rfind(']');
    const bool port =
        colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket);
    return port ? host.substr(0, colon) : host;
}

bool is_address(const std::string& name) {
    unsigned char bytes[16];
    if (::inet_pton(AF_INET, name.c_str(), bytes) == 1) return true;
    return name.size() > 2 && name.front() == '[' && name.back() == ']' &&
           ::inet_pton(AF_INET6, name.substr(1, name.size() - 2).c_str(), bytes) == 1;
}

std::string_view key_in(const HttpRequest& request) {
    const std::string_view authorization = request.header("authorization");
    constexpr std::string_view kBearer = "bearer ";
    if (lower_case(authorization.substr(0, kBearer.size())) == kBearer) {
        return authorization.substr(kBearer.size());
    }
    return request.header("x-api-key");
}

}  // namespace

bool equal_in_constant_time(std::string_view secret, std::string_view given) {
    unsigned difference = secret.size() != given.size();
    for (std::size_t i = 0; i < secret.size(); ++i) {
        const char other = given.empty() ? '\0' : given[i % given.size()];
        difference |= static_cast<unsigned char>(secret[i]) ^ static_cast<unsigned char>(other);
    }
    return difference == 0;
}

std::vector<std::string> read_keys(const std::string& path) {
    const std::string text = read_text_file(path, std::size_t{1} << 20);
    std::vector<std::string> keys;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        std::string_view line = std::string_view(text).substr(at, end - at);
        at = end + 1;
        while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
        if (line.empty() || line[0] == '#') continue;
        const bool plain =
            std::all_of(line.begin(), line.end(), [](char c) { return c > ' ' && c < '\x7F'; });
        if (line.size() < kLeastKey || !plain) {
            throw Error::input(
                {.file = path,
                 .field = fmt::format("key {}", keys.size() + 1),
                 .problem = "is shorter than 8 bytes, or has a byte that a header must not contain",
                 .remedy = "write one key per line; `openssl rand -hex 24` makes one"});
        }
        keys.emplace_back(line);
    }
    if (keys.empty()) {
        throw Error::input({.file = path,
                            .problem = "has no key",
                            .remedy = "write one key per line; `openssl rand -hex 24` makes one"});
    }
    return keys;
}

Gate::Gate(GateOptions options) : options_(std::move(options)) {
    for (std::string& host : options_.hosts) host = lower_case(host);
    for (const std::string& origin : options_.origins) {
        const std::size_t scheme = origin.find("://");
        if (scheme != std::string::npos && scheme + 3 < origin.size() &&
            origin.find('/', scheme + 3) == std::string::npos) {
            continue;
        }
        throw Error::usage({.field = "--allow-origin",
                            .value = origin,
                            .problem = "is not the origin of a page",
                            .remedy = "write it as browsers do: https://example.org:8443"});
    }
}

// A web page that points its own name here (DNS rebinding) sends that name, which is not known. An
// address cannot be used for that.
bool Gate::host_known(std::string_view host) const {
    const std::string name = lower_case(without_port(host));
    return name == "localhost" || name.ends_with(".localhost") || is_address(name) ||
           std::find(options_.hosts.begin(), options_.hosts.end(), name) != options_.hosts.end();
}

int Gate::key_of(const HttpRequest& request) const {
    const std::string_view given = key_in(request);
    int found = -1;
    for (std::size_t i = 0; i < options_.keys.size(); ++i) {  // always all of them: constant time
        if (equal_in_constant_time(options_.keys[i], given)) found = static_cast<int>(i);
    }
    return found;
}

std::optional<Failure> Gate::check(const HttpRequest& request, bool open) const {
    const std::string_view host = request.header("host");
    if (request.count("host") > 1) return Failure::bad("", "the request has two Host headers");
    // A load balancer's probe in HTTP/1.0 names no host. Browsers, whose pages the check is about,
    // always do.
    const bool unnamed = request.old_version && request.count("host") == 0;
    if (!unnamed && !host_known(host)) {
        return Failure::of(421, "invalid_request_error",
                           fmt::format("the host '{}' is not a name of this server; --allow-host "
                                       "makes it one",
                                       printable(host, 100)),
                           "unknown_host");
    }
    const std::string_view origin = request.header("origin");
    if (!origin.empty()) {
        const bool own = !host.empty() && lower_case(origin) == "http://" + lower_case(host);
        const bool listed = std::find(options_.origins.begin(), options_.origins.end(), origin) !=
                            options_.origins.end();
        if (!own && !listed) {
            return Failure::of(403, "invalid_request_error",
                               fmt::format("pages of '{}' may not use this server; --allow-origin "
                                           "lets them",
                                           printable(origin, 100)),
                               "unknown_origin");
        }
        if (request.method == "OPTIONS") return std::nullopt;  // browsers send no key with it
    }
    if (open || options_.keys.empty() || key_of(request) >= 0) return std::nullopt;
    Failure failure =
        Failure::of(401, "authentication_error",
                    key_in(request).empty() ? "an API key is needed: Authorization: Bearer KEY"
                                            : "unknown API key",
                    "invalid_api_key");
    return failure;
}

Headers Gate::headers(const HttpRequest& request) const {
    const std::string_view origin = request.header("origin");
    if (origin.empty() || std::find(options_.origins.begin(), options_.origins.end(), origin) ==
                              options_.origins.end()) {
        return {};
    }
    return {{"Access-Control-Allow-Origin", std::string(origin)},
            {"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
            {"Access-Control-Allow-Headers", "authorization, content-type, x-api-key, *"},
            {"Access-Control-Expose-Headers", "x-request-id"},
            {"Access-Control-Max-Age", "600"},
            {"Vary", "Origin"}};
}

std::string Gate::client_of(const HttpRequest& request) const {
    const int key = options_.keys.empty() ? -1 : key_of(request);
    return key >= 0 ? fmt::format("key {}", key + 1) : http_client(request.peer).name;
}

std::uint64_t Gate::salt_of(const HttpRequest& request) const {
    return options_.keys.empty() ? 0 : static_cast<std::uint64_t>(key_of(request) + 1);
}

}  // namespace mr::serve
