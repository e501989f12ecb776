// Where a server is, and plain sockets to it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mr::bench {

// A server of OpenAI's API: "http://host:port", or with a path before the routes.
struct Place {
    std::string url{};           // as it was given
    std::string host{}, port{};  // the host without brackets
    std::string base{};          // the path before "/v1/...", without a slash at its end
    std::string key{};           // API key; empty: none is sent

    // Throws Error (usage) for what is no such URL.
    static Place of(const std::string& url, const std::string& key);
    // A request in all its bytes. Without a body it is a GET.
    std::string request(std::string_view path, std::string_view body = {}) const;
};

// A socket, closed with its owner.
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
    // Whether the other side has neither closed nor sent.
    bool stands() const;

  private:
    int fd_ = -1;
};

// Connected; does not block any more. Throws Error (input) that says why it cannot be.
Wire connect_to(const Place& place);
// So many connections on which nothing is asked.
std::vector<Wire> idle_wires(const Place& place, int count);

struct Fetched {
    int status = 0;
    std::string body;
};
// One request and its answer. Throws Error (input) where there is no whole answer in time.
Fetched fetch(const Place& place, std::string_view path,
              std::chrono::milliseconds most = std::chrono::seconds(30));

// What a server says of an error: the message in its JSON, else the beginning of the body.
std::string error_words(std::string_view body);

}  // namespace mr::bench
