// Only the transport: connections as a client sees them, over the test's own sockets.
#include "serve/http.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "patience.h"

namespace mr::serve {
namespace {

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
        handlers.handle = [this](const ExchangePtr& exchange) { handle(exchange); };
        handlers.extra = [](const HttpRequest&) { return Headers{{"X-Extra", "yes"}}; };
        handlers.refuse = [](int status, const std::string& problem) {
            return HttpReply{.status = status, .body = problem};
        };
        handlers.done = [this](const Access& access) {
            ++answers_;
            whole_ += access.whole;
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
            ++waits_;
            threads_.emplace_back([this, exchange] {
                eventually([&] { return exchange->gone() || go_; });
                left_ = exchange->gone();
                exchange->reply({.body = "waited"});
            });
        } else if (request.path == "/large") {
            exchange->reply({.body = std::string(16 << 20, 'x')});
        } else if (request.path == "/forget") {
            return;
        } else if (request.path == "/throw") {
            throw std::runtime_error("no");
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
    std::atomic<bool> go_ = false, left_ = false;
    std::atomic<int> flooded_ = 0, answers_ = 0, whole_ = 0, waits_ = 0;  // waits_: calls of /wait
};

constexpr const char* kHost = "Host: localhost\r\n";
std::string get(const std::string& path, const std::string& more = "") {
    return fmt::format("GET {} HTTP/1.1\r\n{}{}\r\n", path, kHost, more);
}
std::string post(const std::string& path, const std::string& body, const std::string& more = "") {
    return fmt::format("POST {} HTTP/1.1\r\n{}Content-Length: {}\r\n{}\r\n{}", path, kHost,
                       body.size(), more, body);
}

TEST_F(Http, OneConnectionHasManyRequestsInTheirOrder) {
    start();
    Client client(server_->port());
    // Pipelined, with one request for a worker between those answered at once.
    client.send(get("/a") + post("/b", "body") + get("/stream") + get("/c"));
    const std::string all = client.until("GET /c ");
    std::size_t at = 0;
    for (const char* part : {"GET /a ", "POST /b body", "9\r\ndata: a\n\n\r\n",
                             "9\r\ndata: b\n\n\r\n0\r\n\r\n", "GET /c "}) {
        at = all.find(part, at);
        ASSERT_NE(at, std::string::npos) << part << " in " << all;
    }
    EXPECT_EQ(all.find("Connection: close"), std::string::npos);
    EXPECT_NE(all.find("X-Extra: yes"), std::string::npos);
    client.send(get("/d", "Connection: close\r\n"));
    EXPECT_NE(client.all().find("GET /d "), std::string::npos);
    EXPECT_TRUE(client.closed());
}

TEST_F(Http, RequestsInPieces) {
    start();
    Client client(server_->port());
    for (const char c : post("/b", "in pieces")) {
        client.send({&c, 1});
        std::this_thread::sleep_for(200us);
    }
    EXPECT_NE(client.until("in pieces").find("200 OK"), std::string::npos);
    client.send(
        fmt::format("POST /c HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
                    "4\r\ndefg\r\n0\r\n\r\n",
                    kHost));
    EXPECT_NE(client.until("abcdefg").find("POST /c abcdefg"), std::string::npos);
}

TEST_F(Http, HeadAndOldVersion) {
    start();
    Client client(server_->port());
    client.send(fmt::format("HEAD /a HTTP/1.1\r\n{}\r\n", kHost));
    const std::string head = client.until("\r\n\r\n");
    EXPECT_NE(head.find("Content-Length: 8\r\n"), std::string::npos) << head;
    EXPECT_TRUE(head.ends_with("\r\n\r\n"));
    // HTTP/1.0 has no chunks: the stream ends with the connection.
    const std::string old = ask("GET /stream HTTP/1.0\r\n\r\n");
    EXPECT_TRUE(old.ends_with("\r\n\r\ndata: a\n\ndata: b\n\n")) << old;
    EXPECT_EQ(old.find("chunked"), std::string::npos);
}

TEST_F(Http, WhatIsNoRequestIsRefused) {
    start();
    const std::string length = "Content-Length: 3\r\n";
    const std::pair<std::string, const char*> cases[] = {
        {"hello\r\n\r\n", "400"},
        {"GET / HTTP/3.0\r\n\r\n", "505"},
        {"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", "400"},
        {fmt::format("POST / HTTP/1.1\r\n{}{}{}\r\nabc", kHost, length, length), "400"},
        {fmt::format("POST / HTTP/1.1\r\n{}{}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", kHost,
                     length),
         "400"},
        {fmt::format("POST / HTTP/1.1\r\n{}Transfer-Encoding: gzip\r\n\r\n", kHost), "501"},
        {fmt::format("POST / HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\n\r\nzz\r\n", kHost),
         "400"},
        {fmt::format("POST / HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\n\r\n"
                     "fffffffffffffffff\r\n",
                     kHost),
         "400"},
        {fmt::format("POST / HTTP/1.1\r\n{}Content-Length: 3, 3\r\n\r\nabc", kHost), "400"},
        {fmt::format("POST / HTTP/1.1\r\n{}Content-Length:\r\n 3\r\n\r\nabc", kHost), "400"},
        {fmt::format("POST / HTTP/1.1\r\n{}Content-Length: -1\r\n\r\n", kHost), "400"},
        {fmt::format("POST / HTTP/1.1\r\n{}Content-Length: 99999999999999999999\r\n\r\n", kHost),
         "400"},
        {fmt::format("POST / HTTP/1.1\r\n{}Content-Length: 8388609\r\n\r\n", kHost), "413"},
        {get("/", "X: " + std::string(17000, 'x') + "\r\n"), "431"},
        {get("/", "X\x01: a\r\n"), "400"},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
        // The line of a chunk, and the trailer, are no longer than a head.
        {fmt::format("POST / HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\n\r\n1;a={}", kHost,
                     std::string(40000, 'x')),
         "431"},
        {fmt::format("POST / HTTP/1.1\r\n{}Transfer-Encoding: chunked\r\n\r\n0\r\nX: {}", kHost,
                     std::string(40000, 'x')),
         "431"},
        {post("/throw", "x", "Connection: close\r\n"), "500"},
    };
    for (const auto& [text, status] : cases) {
        const std::string answer = ask(text);
        EXPECT_TRUE(answer.starts_with(fmt::format("HTTP/1.1 {} ", status)))
            << text.substr(0, 200) << "\n"
            << answer.substr(0, 200);
        EXPECT_EQ(answer.find("HTTP/1.1", 1), std::string::npos) << answer;  // one answer
    }
    EXPECT_NE(ask(get("/a", "Connection: close\r\n")).find("200 OK"), std::string::npos);
}

TEST_F(Http, ARefusalComesBeforeTheBody) {
    start();
    Client client(server_->port());
    client.send(fmt::format(
        "POST /shut HTTP/1.1\r\n{}Content-Length: 1000000\r\nExpect: 100-continue\r\n\r\n", kHost));
    const std::string answer = client.all();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 401 ")) << answer;
    EXPECT_NE(answer.find("Connection: close"), std::string::npos);
    Client other(server_->port());
    other.send(fmt::format(
        "POST /a HTTP/1.1\r\n{}Content-Length: 3\r\nExpect: 100-continue\r\n\r\n", kHost));
    EXPECT_EQ(other.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    other.send("abc");
    EXPECT_NE(other.until("POST /a abc").find("200 OK"), std::string::npos);
}

TEST_F(Http, TimeEnds) {
    HttpOptions options;
    options.idle = 300ms;
    options.request = 400ms;
    start(options);
    Client idle(server_->port()), slow(server_->port()), body(server_->port());
    slow.send("GET / HT");
    body.send(fmt::format("POST / HTTP/1.1\r\n{}Content-Length: 10\r\n\r\nabc", kHost));
    EXPECT_EQ(idle.all(), "");
    EXPECT_TRUE(idle.closed());
    EXPECT_TRUE(slow.all().starts_with("HTTP/1.1 408 "));
    EXPECT_TRUE(body.all().starts_with("HTTP/1.1 408 "));
}

TEST_F(Http, AHeadHasLessTimeThanABody) {
    HttpOptions options;
    options.header = 300ms;
    start(options);
    Client slow(server_->port()), body(server_->port());
    body.send(fmt::format("POST /a HTTP/1.1\r\n{}Content-Length: 3\r\n\r\na", kHost));
    slow.send("POST /a HTTP/1.1\r\nContent-Le");
    EXPECT_TRUE(slow.all().starts_with("HTTP/1.1 408 "));
    body.send("bc");
    EXPECT_NE(body.until("POST /a abc").find("200 OK"), std::string::npos);
}

TEST_F(Http, ConnectionsAndBodiesHaveABound) {
    HttpOptions options;
    options.connections = 2;
    options.all_bodies = 100000;
    start(options);
    Client one(server_->port()), two(server_->port());
    one.send(get("/a"));
    EXPECT_NE(one.until("GET /a").find("200"), std::string::npos);
    two.send(fmt::format("POST / HTTP/1.1\r\n{}Content-Length: 90000\r\n\r\n{}", kHost,
                         std::string(80000, 'x')));
    EXPECT_TRUE(ask(get("/")).starts_with("HTTP/1.1 503 "));
    // Refused as soon as the server has read what the other one sent.
    std::string answer;
    for (int i = 0; i < 300 && answer.find("HTTP/1.1 503 ") == std::string::npos; ++i) {
        std::this_thread::sleep_for(10ms);
        one.send(post("/", std::string(40000, 'x')));
        answer = one.until("\r\n\r\n");
    }
    EXPECT_NE(answer.find("HTTP/1.1 503 "), std::string::npos) << answer;
}

TEST(HttpClientName, IsAnAddressOrANetworkOf64Bits) {
    EXPECT_EQ(http_client("10.0.0.7").name, "10.0.0.7");
    EXPECT_EQ(http_client("::ffff:10.0.0.7").name, "10.0.0.7");
    EXPECT_EQ(http_client("2001:db8:1:2:3:4:5:6").name, http_client("2001:db8:1:2:ffff::1").name);
    EXPECT_NE(http_client("2001:db8:1:2::1").name, http_client("2001:db8:1:3::1").name);
    // All hosts of a link have the same first 64 bits.
    EXPECT_NE(http_client("fe80::1").name, http_client("fe80::2").name);
    for (const char* local : {"127.0.0.1", "127.9.0.1", "::1", "::ffff:127.0.0.1"}) {
        EXPECT_TRUE(http_client(local).loopback) << local;
    }
    EXPECT_NE(http_client("127.0.0.1").name, http_client("127.0.0.2").name);
    EXPECT_FALSE(http_client("10.0.0.7").loopback);
    EXPECT_FALSE(http_client("2001:db8::1").loopback);
    EXPECT_EQ(http_client("no address").name, "no address");
}

TEST_F(Http, OneClientHasABoundOfItsOwn) {
    HttpOptions options;
    options.connections = 8;
    EXPECT_EQ(most_of_client(options, false), 2U);
    EXPECT_EQ(most_of_client(options, true), 8U);
    options.connections = 1;
    EXPECT_EQ(most_of_client(options, false), 1U);
    options.connections = 8;
    options.connections_per_client = 3;
    EXPECT_EQ(most_of_client(options, false), 3U);
    EXPECT_EQ(most_of_client(options, true), 3U);
    start(options);
    const auto count = [&](std::size_t wanted) {
        eventually([&] { return server_->connections() == wanted; });
        return server_->connections();
    };
    // Closed connections do not count: more come in all than are allowed at once.
    for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(count(0), 0U);
        Client one(server_->port()), two(server_->port()), three(server_->port());
        ASSERT_EQ(count(3), 3U);
        const std::string refused = ask(get("/"));
        EXPECT_TRUE(refused.starts_with("HTTP/1.1 503 ")) << refused;
        EXPECT_NE(refused.find("this client"), std::string::npos) << refused;
        three.send(get("/a"));
        EXPECT_NE(three.until("GET /a").find("200"), std::string::npos);
    }
    EXPECT_EQ(count(0), 0U);
}

TEST_F(Http, AClientThatReadsNothingIsLeft) {
    HttpOptions options;
    options.stall = 300ms;
    start(options);
    Client client(server_->port(), 4096);
    client.send(get("/large"));
    EXPECT_TRUE(eventually([&] { return answers_ == 1; }));
    EXPECT_EQ(whole_, 0);
    EXPECT_TRUE(eventually([&] { return server_->connections() == 0; }));
}

TEST_F(Http, AStreamThatIsNotReadIsCut) {
    HttpOptions options;
    options.unread_bytes = 100000;
    start(options);
    Client client(server_->port(), 4096);
    client.send(get("/flood"));
    EXPECT_TRUE(eventually([&] { return answers_ == 1; }));
    EXPECT_EQ(whole_, 0);
    EXPECT_LT(flooded_, 5000);  // of 1,000 bytes: what the system and the limit hold
}

TEST_F(Http, AClientThatLeavesIsSeen) {
    start();
    for (const bool half : {false, true}) {  // at once, or after closing its side
        left_ = false;
        Client client(server_->port());
        client.send(get("/wait"));
        EXPECT_TRUE(eventually([&] { return waits_ == 1 + half; }));
        EXPECT_FALSE(left_);
        if (half) {
            client.half_close();
            EXPECT_TRUE(client.readable());  // 100 Continue; a client that left has not read it
        }
        EXPECT_FALSE(left_);
        client.leave();
        EXPECT_TRUE(eventually([&] { return left_.load(); }));
    }
    EXPECT_TRUE(server_->wait_drained(test::kHang));
}

TEST_F(Http, AClientThatEndsItsSideIsAnswered) {
    start();
    Client client(server_->port());
    client.send(get("/wait"));
    EXPECT_TRUE(eventually([&] { return waits_ == 1; }));
    client.half_close();
    EXPECT_EQ(client.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    go_ = true;
    const std::string answer = client.all();
    EXPECT_FALSE(left_);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
    EXPECT_TRUE(answer.ends_with("waited")) << answer;
    EXPECT_TRUE(client.closed());
    // Everything it asked before; the unfinished request is refused.
    Client many(server_->port());
    many.send(post("/a", "1") + get("/stream") + get("/b") + "GET /c HT");
    many.half_close();
    const std::string all = many.all();
    EXPECT_NE(all.find("POST /a 1"), std::string::npos) << all;
    EXPECT_NE(all.find("GET /b HTTP/1.1 400 "), std::string::npos) << all;
    EXPECT_TRUE(many.closed());
    // HTTP/1.0 has no interim answer that would distinguish the two.
    go_ = false;
    Client old(server_->port());
    old.send("GET /wait HTTP/1.0\r\n\r\n");
    EXPECT_TRUE(eventually([&] { return waits_ == 2; }));
    old.half_close();
    EXPECT_TRUE(eventually([&] { return left_.load(); }));
}

TEST_F(Http, ARequestThatIsForgottenEndsItsConnection) {
    start();
    Client client(server_->port());
    client.send(get("/forget"));
    EXPECT_EQ(client.all(), "");
    EXPECT_TRUE(client.closed());
    EXPECT_TRUE(server_->wait_drained(test::kHang));
}

TEST_F(Http, DrainingFinishesWhatWasAsked) {
    start();
    Client idle(server_->port()), busy(server_->port()), half(server_->port());
    half.send("GET / HT");
    busy.send(get("/wait"));
    EXPECT_TRUE(eventually([&] { return waits_ == 1; }));
    // The one thread that reads connections has read `half` before one that came later.
    Client later(server_->port());
    later.send(get("/a"));
    EXPECT_NE(later.until("GET /a").find("200 OK"), std::string::npos);
    server_->drain();
    EXPECT_TRUE(half.all().starts_with("HTTP/1.1 503 "));
    half.leave();
    EXPECT_EQ(idle.all(), "");
    EXPECT_TRUE(idle.closed());
    EXPECT_FALSE(server_->wait_drained(20ms));
    EXPECT_FALSE(Client(server_->port()).open());
    go_ = true;
    const std::string answer = busy.all();
    EXPECT_TRUE(answer.ends_with("waited")) << answer;
    EXPECT_NE(answer.find("Connection: close"), std::string::npos);
    busy.leave();
    EXPECT_TRUE(server_->wait_drained(test::kHang));
}

TEST_F(Http, AnAnswerMayOutliveTheServer) {
    start();
    Client client(server_->port());
    client.send(get("/wait"));
    EXPECT_TRUE(eventually([&] { return waits_ == 1; }));
    server_.reset();
    EXPECT_TRUE(eventually([&] { return left_.load(); }));
}

}  // namespace
}  // namespace mr::serve
