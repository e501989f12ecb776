// The address of a server, and plain sockets to it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mr::bench {

// A server with OpenAI's API: "http://host:port", optionally with a path before the routes.
struct Place {
    std::string url{};           // as given
    std::string host{}, port{};  // the host without brackets
    std::string base{};          // the path before "/v1/...", without a slash at its end
    std::string key{};           // API key; empty: not sent

    // Throws Error (usage) for an invalid URL.
    static Place of(const std::string& url, const std::string& key);
    // The bytes of a request. Without a body it is a GET.
    std::string request(std::string_view path, std::string_view body = {}) const;
};

// A socket, closed by the destructor.
class Wire {
  public:
    Wire() = default;
    explicit Wire(int fd) : fd_(fd) {}
    ~Wire() { close(); }
    Wire(Wire&& other) noexcept;
    Wire& operator=(Wire&& other) noexcept;

    int fd() const { return fd_; }
    bool open() const { return fd_ >= 0; }
    void close();
    // Whether the other side has neither closed nor sent anything.
    bool stands() const;

  private:
    int fd_ = -1;
};

// A connected, non-blocking socket. Throws Error (input) that says why it cannot connect.
Wire connect_to(const Place& place);
// `count` connections without requests.
std::vector<Wire> idle_wires(const Place& place, int count);

struct Fetched {
    int status = 0;
    std::string body;
};
// One request and its answer. Throws Error (input) if there is no complete answer in time.
Fetched fetch(const Place& place, std::string_view path,
              std::chrono::milliseconds most = std::chrono::seconds(30));

// The message of an error answer: from its JSON, else the beginning of the body.
std::string error_words(std::string_view body);

}  // namespace mr::bench
