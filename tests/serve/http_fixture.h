// A client with its own socket, and a server whose handlers the tests know: for tests of the
// transport.
#pragma once

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "patience.h"
#include "serve/http.h"

namespace mr::serve {

using namespace std::chrono_literals;

class Client {
  public:
    explicit Client(std::uint16_t port, int receive_buffer = 0)
        : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
        if (receive_buffer > 0) {
            ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
        }
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_port = htons(port);
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        open_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
    }
    ~Client() { leave(); }
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    void leave() {
        if (fd_ >= 0) ::close(fd_);
        fd_ = -1;
    }
    bool open() const { return open_; }
    void half_close() { ::shutdown(fd_, SHUT_WR); }
    void send(std::string_view text) {
        while (!text.empty()) {
            const ssize_t n = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
            if (n <= 0) return;
            text.remove_prefix(static_cast<std::size_t>(n));
        }
    }
    bool readable() const {
        pollfd ready{fd_, POLLIN, 0};
        return ::poll(&ready, 1, test::kHang / 1ms) == 1;
    }
    // Bytes received until `end` is there, the server closes, or the time is over.
    std::string until(std::string_view end, std::chrono::milliseconds most = test::kHang) {
        std::string out;
        const auto deadline = std::chrono::steady_clock::now() + most;
        closed_ = false;
        while (end.empty() || out.find(end) == std::string::npos) {
            const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                deadline - std::chrono::steady_clock::now());
            pollfd ready{fd_, POLLIN, 0};
            if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) <= 0) break;
            char buffer[4096];
            const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
            if (n <= 0) {
                closed_ = true;
                break;
            }
            out.append(buffer, static_cast<std::size_t>(n));
        }
        return out;
    }
    std::string all(std::chrono::milliseconds most = test::kHang) { return until("", most); }
    bool closed() const { return closed_; }

  private:
    int fd_;
    bool open_ = false, closed_ = false;
};

class Http : public testing::Test {
  protected:
    void start(HttpOptions options = {}) {
        HttpHandlers handlers;
        handlers.admit = [](const HttpRequest& head) -> std::optional<HttpReply> {
            if (head.path == "/shut") return HttpReply{.status = 401, .body = "shut"};
            return std::nullopt;
        };
        handlers.handle = [this, held = held_by_handlers_](const ExchangePtr& exchange) {
            handle(exchange);
        };
        handlers.extra = [](const HttpRequest& request) {
            if (request.path == "/no-memory-to-begin") throw std::bad_alloc();
            return Headers{{"X-Extra", "yes"}};
        };
        handlers.refuse = [](const HttpRequest& head, int status, const std::string& problem) {
            return HttpReply{
                .status = status, .body = problem, .headers = {{"X-Refused", head.path}}};
        };
        handlers.done = [this](const Access& access) {
            ++answers_;
            whole_ += access.whole;
            if (access.request.path == "/no-memory-to-log") throw std::bad_alloc();
        };
        handlers.client = [this](const HttpRequest& request) {
            ++given_;
            return std::string(request.header("x-client"));
        };
        server_ = std::make_unique<HttpServer>(options);
        server_->start(handlers);
    }
    void handle(const ExchangePtr& exchange) {
        const HttpRequest& request = exchange->request();
        if (request.path == "/stream") {
            exchange->begin({.type = "text/event-stream"});
            exchange->write("data: a\n\n");
            exchange->write("data: b\n\n");
            exchange->end();
        } else if (request.path == "/flood") {
            threads_.emplace_back([this, exchange] {
                exchange->begin({});
                const std::string piece(1000, 'x');
                while (exchange->write(piece)) ++flooded_;
            });
        } else if (request.path == "/wait") {
            threads_.emplace_back([this, exchange] {
                eventually([&] { return exchange->gone() || go_; });
                left_ = exchange->gone();
                exchange->reply({.body = "waited"});
            });
            ++waits_;                          // after the thread is there: a test may join it
        } else if (request.path == "/hold") {  // keeps its thread
            ++waits_;
            eventually([&] { return go_.load(); });
            exchange->reply({.body = "held"});
        } else if (request.path == "/turn") {  // of a worker: one at a time
            turns_ += request.body;
            exchange->reply({.body = "its turn"});
        } else if (request.path == "/large") {
            exchange->reply({.body = std::string(16 << 20, 'x')});
        } else if (request.path == "/forget") {
            return;
        } else if (request.path == "/throw") {
            throw std::runtime_error("no");
        } else if (request.path == "/no-memory-to-handle") {
            throw std::bad_alloc();
        } else {
            exchange->reply({.type = "text/plain",
                             .body = fmt::format("{} {} {}", request.method, request.path,
                                                 request.body.substr(0, 100))});
        }
    }
    // Whether it becomes true.
    template <class Condition>
    static bool eventually(Condition condition) {
        for (int i = 0; i < test::kHang / 10ms && !condition(); ++i)
            std::this_thread::sleep_for(10ms);
        return condition();
    }
    std::string ask(const std::string& text) {
        Client client(server_->port());
        client.send(text);
        return client.all();
    }
    void TearDown() override {
        go_ = true;
        for (std::thread& thread : threads_) thread.join();
        server_.reset();
    }

    std::unique_ptr<HttpServer> server_;
    std::vector<std::thread> threads_;
    std::string turns_;                       // bodies of /turn, with one worker
    std::shared_ptr<void> held_by_handlers_;  // until the server frees them
    std::atomic<bool> go_ = false, left_ = false;
    std::atomic<int> flooded_ = 0, answers_ = 0, whole_ = 0;
    std::atomic<int> waits_ = 0;  // calls of /wait
    std::atomic<int> given_ = 0;  // requests that have arrived
};

inline constexpr const char* kHost = "Host: localhost\r\n";
inline std::string get(const std::string& path, const std::string& more = "") {
    return fmt::format("GET {} HTTP/1.1\r\n{}{}\r\n", path, kHost, more);
}
inline std::string post(const std::string& path, const std::string& body,
                        const std::string& more = "") {
    return fmt::format("POST {} HTTP/1.1\r\n{}Content-Length: {}\r\n{}\r\n{}", path, kHost,
                       body.size(), more, body);
}

}  // namespace mr::serve
