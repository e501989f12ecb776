// Only the transport: connections as a client sees them, over the test's own sockets.
#include "http_fixture.h"

namespace mr::serve {
namespace {

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

TEST_F(Http, ClientsTakeTurnsAtTheWorkers) {
    HttpOptions options;
    options.workers = 1;
    start(options);
    Client busy(server_->port());
    busy.send(post("/hold", ""));
    EXPECT_TRUE(eventually([&] { return waits_ == 1; }));
    std::vector<std::unique_ptr<Client>> clients;
    for (const char* who : {"a1", "a2", "a3", "a4", "b5"}) {
        Client& client = *clients.emplace_back(std::make_unique<Client>(server_->port()));
        client.send(post("/turn", who, fmt::format("X-Client: {}\r\n", who[0])));
        // The one thread that reads connections has read this one before those that follow.
        EXPECT_NE(ask(get("/b", "Connection: close\r\n")).find("200 OK"), std::string::npos);
    }
    go_ = true;
    for (const auto& client : clients) client->until("its turn");
    EXPECT_EQ(turns_, "a1b5a2a3a4");
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

TEST_F(Http, AServerThatEndsLeavesNothing) {
    auto held = std::make_shared<int>();
    const std::weak_ptr<int> left = held;
    held_by_handlers_ = std::move(held);
    start();
    Client idle(server_->port()), partial(server_->port()), busy(server_->port());
    partial.send("POST /a HTTP/1.1\r\nContent-Le");
    busy.send(get("/wait"));
    EXPECT_TRUE(eventually([&] { return waits_ == 1 && server_->connections() == 3; }));
    held_by_handlers_.reset();
    EXPECT_FALSE(left.expired());
    go_ = true;
    for (std::thread& thread : threads_) thread.join();  // with its exchange
    threads_.clear();
    server_.reset();
    EXPECT_TRUE(left.expired());
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
