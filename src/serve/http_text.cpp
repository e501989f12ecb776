// HTTP/1.1 as text: checks the heads of requests, writes answers.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <random>

#include "serve/http.h"

namespace mr::serve {

std::string_view HttpRequest::header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
        if (key == name) return value;
    }
    return {};
}

std::size_t HttpRequest::count(std::string_view name) const {
    return static_cast<std::size_t>(std::count_if(
        headers.begin(), headers.end(), [&](const auto& header) { return header.first == name; }));
}

std::string lower_case(std::string_view text) {
    std::string out(text);
    for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return out;
}

std::string request_id(std::string_view given) {
    constexpr std::size_t kMost = 128;
    const bool fits = !given.empty() && given.size() <= kMost &&
                      std::all_of(given.begin(), given.end(), [](char c) {
                          return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
                                 (c >= 'a' && c <= 'z') ||
                                 std::string_view("-_.:/+=@~").find(c) != std::string_view::npos;
                      });
    if (fits) return std::string(given);
    static const std::uint64_t run =
        (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
    static std::atomic<std::uint64_t> next = 0;
    return fmt::format("req_{:016x}{:08x}", run, next++);
}

std::optional<HeadProblem> problem_of_head(const HttpRequest& head) {
    if (head.path.empty() || (head.path[0] != '/' && head.path != "*")) {
        return HeadProblem{400, "the target of a request is a path here"};
    }
    // Only one way to say where a body ends: two are used to smuggle requests past a proxy.
    const std::string_view encoding = head.header("transfer-encoding");
    if (head.count("transfer-encoding") > 1 ||
        (!encoding.empty() && lower_case(encoding) != "chunked")) {
        return HeadProblem{501, "of transfer encodings only 'chunked' is taken"};
    }
    if (!encoding.empty() && head.old_version) {
        return HeadProblem{400, "HTTP/1.0 has no transfer encodings"};
    }
    const std::string_view length = head.header("content-length");
    if (head.count("content-length") > 1 ||
        length.find_first_not_of("0123456789") != std::string_view::npos) {
        return HeadProblem{400, "the request has several lengths"};
    }
    return std::nullopt;
}

std::string_view status_words(int status) {
    static constexpr std::pair<int, std::string_view> kWords[] = {
        {200, "OK"},
        {204, "No Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {411, "Length Required"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {499, "Client Closed Request"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"}};
    for (const auto& [number, words] : kWords) {
        if (number == status) return words;
    }
    return "";
}

std::string head_text(const HttpReply& reply, const Headers& extra, const HeadOptions& options) {
    std::tm now{};
    const std::time_t time = std::time(nullptr);
    ::gmtime_r(&time, &now);
    std::string out = fmt::format(
        "HTTP/1.1 {} {}\r\nServer: millrace\r\nDate: {:%a, %d %b %Y %H:%M:%S} GMT\r\n"
        "X-Content-Type-Options: nosniff\r\n",
        reply.status, status_words(reply.status), now);
    if (!reply.type.empty()) out += fmt::format("Content-Type: {}\r\n", reply.type);
    if (options.length) {
        // Answers 204 and 304 have no body and no length.
        if (reply.status != 204 && reply.status != 304)
            out += fmt::format("Content-Length: {}\r\n", *options.length);
    } else if (!options.old_version) {
        out += "Transfer-Encoding: chunked\r\n";
    }
    if (!options.keep_alive) {
        out += "Connection: close\r\n";
    } else if (options.old_version) {
        out += "Connection: keep-alive\r\n";
    }
    for (const Headers* const list : {&reply.headers, &extra}) {
        for (const auto& [name, value] : *list) out += fmt::format("{}: {}\r\n", name, value);
    }
    return out += "\r\n";
}

std::string& append_chunk(std::string& out, std::string_view piece) {
    char size[16];
    const auto [end, error] = std::to_chars(size, size + sizeof size, piece.size(), 16);
    out.append(size, end).append("\r\n").append(piece).append("\r\n");
    return out;
}

}  // namespace mr::serve
