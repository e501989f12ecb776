// The transport's limits: times, connections, bytes, and clients that leave or do not read.
#include "http_fixture.h"
#include "serve/http_bodies.h"

namespace mr::serve {
namespace {

// About that many bytes of requests that are answered at once.
std::string requests_of(std::size_t bytes) {
    const std::string one = get("/a");
    std::string out;
    for (std::size_t i = 0; i < bytes / one.size(); ++i) out += one;
    return out;
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

// The answer's format depends on the route: a refusal has what is known of the request.
TEST_F(Http, ARefusalKnowsWhatWasRefused) {
    HttpOptions options;
    options.body_bytes = 1000;
    options.header = 300ms;
    start(options);
    const auto refused = [&](const std::string& request, int status, const std::string& path) {
        const std::string answer = ask(request);
        EXPECT_TRUE(answer.starts_with(fmt::format("HTTP/1.1 {} ", status))) << answer;
        EXPECT_NE(answer.find(fmt::format("X-Refused: {}\r\n", path)), std::string::npos) << answer;
    };
    refused("POST /slow HTTP/1.1\r\nContent-Le", 408, "/slow");
    refused("POST /sl", 408, "");
    refused(post("/large", std::string(2000, 'x')), 413, "/large");
    refused(get("/wide", fmt::format("X-A: {}\r\n", std::string(20000, 'x'))), 431, "/wide");
    refused(post("/hopes", "x", "Expect: wonders\r\n"), 417, "/hopes");
    refused(post("/throw", "x", "Connection: close\r\n"), 500, "/throw");
    options.connections = 0;
    start(options);
    refused("", 503, "");
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

TEST(BodyBytes, AreLimitedInAllAndPerClient) {
    BodyBytes bytes(100);
    BodyBytes::Share one(bytes, "a", 60), two(bytes, "a", 60), other(bytes, "b", 60);
    EXPECT_EQ(one.grow(40), nullptr);
    EXPECT_EQ(two.grow(20), nullptr);
    EXPECT_NE(std::string(two.grow(21)).find("this client"), std::string::npos);
    EXPECT_EQ(other.grow(40), nullptr);
    EXPECT_NE(other.grow(41), nullptr);  // all of them
    BodyBytes::Share moved(std::move(one));
    one.give_back();  // nothing: the other has it
    EXPECT_NE(two.grow(21), nullptr);
    moved = BodyBytes::Share(bytes, "a", 60);
    EXPECT_EQ(two.grow(60), nullptr);
    two.give_back();
    EXPECT_EQ(other.grow(60), nullptr);
}

TEST_F(Http, ABodyCountsUntilItsRequestIsHandled) {
    HttpOptions options;
    options.all_bodies = 100000;
    start(options);
    const std::string large(80000, 'x');
    Client one(server_->port());
    one.send(post("/wait", large));
    EXPECT_TRUE(eventually([&] { return waits_ == 1; }));
    // Its answer is not there yet, but the handler returns at once.
    const std::string ending = "Connection: close\r\n";
    EXPECT_TRUE(
        eventually([&] { return ask(post("/a", large, ending)).starts_with("HTTP/1.1 200 "); }));
    EXPECT_EQ(one.until("\r\n\r\n", 10ms), "");
    go_ = true;
    EXPECT_NE(one.until("waited").find("200 OK"), std::string::npos);
}

TEST_F(Http, ABodyWhoseClientLeftIsFreedBeforeItsTurn) {
    HttpOptions options;
    options.all_bodies = 100000;
    options.workers = 1;
    start(options);
    Client busy(server_->port()), one(server_->port());
    busy.send(post("/hold", ""));
    one.send(post("/a", std::string(80000, 'x')));
    // One is held, and the other has arrived as a whole.
    EXPECT_TRUE(eventually([&] { return waits_ == 1 && given_ == 2; }));
    const std::string incomplete = fmt::format(
        "POST / HTTP/1.1\r\n{}Content-Length: 80001\r\n\r\n{}", kHost, std::string(80000, 'x'));
    EXPECT_TRUE(eventually([&] {
        Client client(server_->port());
        client.send(incomplete);
        return client.until("\r\n\r\n", 50ms).starts_with("HTTP/1.1 503 ");
    }));
    one.leave();
    EXPECT_TRUE(eventually([&] {
        Client client(server_->port());
        client.send(incomplete);
        return client.until("\r\n\r\n", 50ms).empty();
    }));
    EXPECT_EQ(busy.until("\r\n\r\n", 10ms), "");  // the worker is still there
}

TEST_F(Http, TheBodiesOfOneClientHaveABoundOfTheirOwn) {
    HttpOptions options;
    options.all_bodies = 100000;
    options.body_bytes = 10000;
    EXPECT_EQ(most_bodies_of_client(options, false), 25000U);
    EXPECT_EQ(most_bodies_of_client(options, true), 100000U);
    options.body_bytes = 90000;
    EXPECT_EQ(most_bodies_of_client(options, false), 90000U);
    options.bodies_per_client = 50000;
    EXPECT_EQ(most_bodies_of_client(options, true), 50000U);
    start(options);
    const std::string refused = ask(post("/a", std::string(60000, 'x')));
    EXPECT_TRUE(refused.starts_with("HTTP/1.1 503 ")) << refused;
    EXPECT_NE(refused.find("this client"), std::string::npos) << refused;
    const std::string taken = ask(post("/a", std::string(40000, 'x'), "Connection: close\r\n"));
    EXPECT_TRUE(taken.starts_with("HTTP/1.1 200 ")) << taken;
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

TEST_F(Http, AnAllocationThatFailsEndsOnlyItsConnection) {
    start();
    Client other(server_->port());
    other.send(get("/a"));
    EXPECT_NE(other.until("GET /a").find("200 OK"), std::string::npos);
    const std::string ending = "Connection: close\r\n";
    EXPECT_EQ(ask(get("/no-memory-to-begin")), "");
    EXPECT_EQ(ask(post("/no-memory-to-begin", "x")), "");
    const std::string refused = ask(post("/no-memory-to-handle", "x", ending));
    EXPECT_TRUE(refused.starts_with("HTTP/1.1 500 ")) << refused;
    EXPECT_TRUE(refused.ends_with("out of memory")) << refused;
    EXPECT_TRUE(ask(get("/no-memory-to-log", ending)).ends_with("GET /no-memory-to-log "));
    other.send(get("/b", ending));
    EXPECT_TRUE(other.all().ends_with("GET /b "));
    EXPECT_EQ(answers_, 6);
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
    int asked = 0;
    for (const bool half : {false, true}) {              // at once, or after closing its side
        for (const std::size_t bytes : {0U, 100000U}) {  // of further requests, not read yet
            left_ = false;
            Client client(server_->port());
            client.send(get("/wait") + requests_of(bytes));
            ++asked;
            EXPECT_TRUE(eventually([&] { return waits_ == asked; }));
            EXPECT_FALSE(left_);
            if (half) {
                client.half_close();
                // 100 Continue; a client that left has not read it
                EXPECT_TRUE(client.readable());
            }
            EXPECT_FALSE(left_);
            client.leave();
            EXPECT_TRUE(eventually([&] { return left_.load(); })) << half << " " << bytes;
        }
    }
    EXPECT_TRUE(server_->wait_drained(test::kHang));
}

TEST_F(Http, ManyRequestsAtOnceAreAnswered) {
    start();
    Client client(server_->port());
    client.send(requests_of(200000) + get("/last", "Connection: close\r\n"));
    const std::string all = client.all();
    EXPECT_TRUE(all.ends_with("GET /last ")) << all.substr(all.size() - 300);
    EXPECT_EQ(answers_, static_cast<int>(200000 / get("/a").size()) + 1);
}

TEST_F(Http, ManyRequestsBehindALongAnswerAreDropped) {
    start();
    Client client(server_->port());
    client.send(get("/wait") + requests_of(100000));
    EXPECT_TRUE(eventually([&] { return waits_ == 1; }));
    client.half_close();
    EXPECT_EQ(client.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");  // all were read
    go_ = true;
    const std::string answer = client.all();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
    EXPECT_NE(answer.find("Connection: close\r\n"), std::string::npos) << answer;
    EXPECT_TRUE(answer.ends_with("waited")) << answer;
    EXPECT_EQ(answers_, 1);
}

}  // namespace
}  // namespace mr::serve
