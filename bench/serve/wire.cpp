#include "bench/serve/wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "bench/serve/answer_reader.h"
#include "core/error.h"
#include "core/printable.h"
#include "formats/json.h"

namespace mr::bench {
namespace {

[[noreturn]] void bad_url(const std::string& url, const char* problem) {
    throw Error::usage({.field = "--url",
                        .value = url,
                        .problem = problem,
                        .remedy = "give http://HOST:PORT, http://127.0.0.1:8080 for example"});
}

[[noreturn]] void no_answer(const Place& place, const std::string& problem) {
    throw Error::input({.field = "--url",
                        .value = place.url,
                        .problem = problem,
                        .remedy = "start a server there, or leave out --url"});
}

// One socket for each client, and one for each idle connection.
void raise_descriptor_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 65536);
    ::setrlimit(RLIMIT_NOFILE, &limit);
}

void wait_for(int fd, short events, Clock::time_point until) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd one{.fd = fd, .events = events, .revents = 0};
    if (left > 0) ::poll(&one, 1, static_cast<int>(left));
}

}  // namespace

Place Place::of(const std::string& url, const std::string& key) {
    Place out{.url = url, .key = key};
    std::string_view rest = url;
    if (rest.starts_with("https://")) bad_url(url, "is of HTTPS, which is not spoken here");
    if (rest.starts_with("http://")) rest.remove_prefix(7);
    const std::size_t slash = rest.find('/');
    if (slash != std::string_view::npos) out.base = rest.substr(slash);
    while (out.base.ends_with('/')) out.base.pop_back();
    if (out.base.ends_with("/v1")) out.base.resize(out.base.size() - 3);  // as in clients' settings
    rest = rest.substr(0, slash);
    const bool v6 = rest.starts_with('[');
    const std::size_t end = v6 ? rest.find(']') : rest.find(':');
    out.host = rest.substr(v6 ? 1 : 0, end - (v6 ? 1 : 0));
    if (v6 && end != std::string_view::npos) rest.remove_prefix(end + 1);
    const std::size_t colon = rest.find(':');
    out.port = colon == std::string_view::npos ? "80" : rest.substr(colon + 1);
    const bool digits = out.port.find_first_not_of("0123456789") == std::string::npos;
    if (out.host.empty() || out.port.empty() || !digits || url.find_first_of(" \r\n") != url.npos) {
        bad_url(url, "is no address of a server");
    }
    if (key.find_first_of("\r\n") != key.npos) {
        throw Error::usage({.field = "--api-key", .problem = "has more than one line"});
    }
    return out;
}

std::string Place::request(std::string_view path, std::string_view body) const {
    std::string out = fmt::format(
        "{} {}{} HTTP/1.1\r\nHost: {}{}{}:{}\r\n", body.empty() ? "GET" : "POST", base, path,
        host.find(':') == host.npos ? "" : "[", host, host.find(':') == host.npos ? "" : "]", port);
    if (!key.empty()) out += fmt::format("Authorization: Bearer {}\r\n", key);
    if (!body.empty()) {
        out += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
    }
    out += "\r\n";
    out += body;
    return out;
}

Wire::Wire(Wire&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Wire& Wire::operator=(Wire&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
}

void Wire::close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

bool Wire::stands() const {
    char byte = 0;
    return open() && ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

Wire connect_to(const Place& place) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int code = ::getaddrinfo(place.host.c_str(), place.port.c_str(), &hints, &found)) {
        no_answer(place, fmt::format("cannot be found: {}", ::gai_strerror(code)));
    }
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, ::freeaddrinfo);
    int problem = 0;
    for (const addrinfo* at = found; at; at = at->ai_next) {
        Wire wire(::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol));
        if (wire.open() && ::connect(wire.fd(), at->ai_addr, at->ai_addrlen) == 0) {
            const int one = 1;
            ::setsockopt(wire.fd(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            ::fcntl(wire.fd(), F_SETFL, ::fcntl(wire.fd(), F_GETFL) | O_NONBLOCK);
            return wire;
        }
        problem = errno;
    }
    no_answer(place, fmt::format("cannot connect: {}", std::strerror(problem)));
}

std::vector<Wire> idle_wires(const Place& place, int count) {
    raise_descriptor_limit();
    std::vector<Wire> out;
    for (int i = 0; i < count; ++i) out.push_back(connect_to(place));
    return out;
}

Fetched fetch(const Place& place, std::string_view path, std::chrono::milliseconds most) {
    const Wire wire = connect_to(place);
    const Clock::time_point until = Clock::now() + most;
    const std::string request = place.request(path);
    if (::send(wire.fd(), request.data(), request.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(request.size())) {
        no_answer(place, fmt::format("accepts no request: {}", std::strerror(errno)));
    }
    AnswerReader reader;
    char buffer[1 << 14];
    while (!reader.whole() && !reader.broken() && Clock::now() < until) {
        wait_for(wire.fd(), POLLIN, until);
        const ssize_t count = ::recv(wire.fd(), buffer, sizeof buffer, 0);
        if (count > 0) {
            reader.put({buffer, static_cast<std::size_t>(count)}, Clock::now());
        } else if (count == 0 || errno != EAGAIN) {
            reader.put_end();
            break;
        }
    }
    if (!reader.whole()) no_answer(place, fmt::format("does not answer {} in HTTP", path));
    return {reader.status(), reader.body()};
}

std::string error_words(std::string_view body) {
    constexpr std::size_t kMost = 300;
    try {
        const auto document = formats::JsonDocument::parse(body, "answer");
        const formats::JsonValue error = document.root()["error"];
        for (const formats::JsonValue words :
             {error["message"], error, document.root()["message"], document.root()["detail"]}) {
            if (words.is_string()) return printable(words.text(), kMost);
        }
    } catch (const Error&) {
    }
    return printable(body, kMost);
}

}  // namespace mr::bench
