// Who a client is, behind proxies, and the ids of requests.
#include "core/error.h"
#include "http_fixture.h"

namespace mr::serve {
namespace {

std::string forwarded(const std::string& peer, const std::vector<std::string>& lists,
                      const std::vector<std::string>& proxies = {"10.0.0.1", "::1"}) {
    Headers headers{{"host", "a"}};
    for (const std::string& list : lists) headers.emplace_back("x-forwarded-for", list);
    return forwarded_client(proxy_addresses(proxies), peer, headers);
}

TEST(ForwardedClient, IsBelievedOnlyFromATrustedProxy) {
    EXPECT_EQ(forwarded("10.0.0.1", {"1.2.3.4"}), "1.2.3.4");
    EXPECT_EQ(forwarded("10.0.0.2", {"1.2.3.4"}), "10.0.0.2");
    EXPECT_EQ(forwarded("10.0.0.1", {"1.2.3.4"}, {}), "10.0.0.1");
    EXPECT_EQ(forwarded("10.0.0.1", {}), "10.0.0.1");
    // An IPv6 socket sees IPv4 addresses in another form.
    EXPECT_EQ(forwarded("::ffff:10.0.0.1", {"1.2.3.4"}), "1.2.3.4");
    EXPECT_EQ(forwarded("0:0::1", {"2001:db8::1"}), "2001:db8::1");
}

// What is left of the last address that no proxy has was sent by the client itself.
TEST(ForwardedClient, IsTheLastThatIsNoProxy) {
    EXPECT_EQ(forwarded("10.0.0.1", {"9.9.9.9, 1.2.3.4"}), "1.2.3.4");
    EXPECT_EQ(forwarded("10.0.0.1", {"9.9.9.9,1.2.3.4 ,\t::1"}), "1.2.3.4");
    EXPECT_EQ(forwarded("10.0.0.1", {"9.9.9.9", "1.2.3.4"}), "1.2.3.4");
    EXPECT_EQ(forwarded("10.0.0.1", {"1.2.3.4", "::1, 10.0.0.1"}), "1.2.3.4");
    EXPECT_EQ(forwarded("10.0.0.1", {"::1"}), "::1");
    EXPECT_EQ(forwarded("10.0.0.1", {"1.2.3.4:555"}), "1.2.3.4");
    EXPECT_EQ(forwarded("10.0.0.1", {"[2001:db8::1]:555"}), "2001:db8::1");
    for (const char* broken : {"", ",", "unknown", "_hidden", "1.2.3", "1.2.3.4, nonsense",
                               "1.2.3.4,", "[", "[]", "]", ":", "1.2.3.4 5"}) {
        EXPECT_EQ(forwarded("10.0.0.1", {broken}), "10.0.0.1") << broken;
    }
    EXPECT_EQ(forwarded("10.0.0.1", {"nonsense, 1.2.3.4"}), "1.2.3.4");
}

TEST(ForwardedClient, AProxyIsNamedByItsAddress) {
    EXPECT_EQ(proxy_addresses({"127.0.0.1", "localhost", "0::1"}),
              (std::vector<std::string>{"127.0.0.1", "127.0.0.1", "::1"}));
    for (const char* wrong : {"", "proxy.example", "10.0.0.0/8", "127.0.0.1:80", "[::1]", " ::1"}) {
        EXPECT_THROW(proxy_addresses({wrong}), Error) << wrong;
    }
}

TEST(RequestId, OfTheClientIsTakenIfItMayStandInALog) {
    EXPECT_EQ(request_id("abc-1_2.3:4/5+6=@~"), "abc-1_2.3:4/5+6=@~");
    EXPECT_EQ(request_id(std::string(128, 'a')), std::string(128, 'a'));
    for (const std::string& bad :
         {std::string(), std::string(129, 'a'), std::string("a b"), std::string("a\tb"),
          std::string("a\xC3\xA9"), std::string("a\"b"), std::string("a\0b", 3)}) {
        const std::string made = request_id(bad);
        EXPECT_NE(made, bad);
        EXPECT_TRUE(made.starts_with("req_")) << made;
        EXPECT_NE(made, request_id(bad));
    }
}

std::string header_in(const std::string& answer, const std::string& name) {
    const std::size_t at = answer.find("\r\n" + name + ": ");
    if (at == std::string::npos) return "";
    const std::size_t begin = at + name.size() + 4;
    return answer.substr(begin, answer.find("\r\n", begin) - begin);
}

TEST_F(Http, EveryAnswerHasAnId) {
    start();
    const char* const close = "Connection: close\r\n";
    EXPECT_EQ(
        header_in(ask(get("/a", fmt::format("x-request-id: mine\r\n{}", close))), "X-Request-Id"),
        "mine");
    const std::string one = header_in(ask(get("/a", close)), "X-Request-Id");
    const std::string two = header_in(ask(get("/stream", close)), "X-Request-Id");
    EXPECT_TRUE(one.starts_with("req_")) << one;
    EXPECT_TRUE(two.starts_with("req_")) << two;
    EXPECT_NE(one, two);
    for (const std::string& bad :
         {get("/shut", close), get("/throw", close), std::string("NONSENSE\r\n\r\n")}) {
        EXPECT_TRUE(header_in(ask(bad), "X-Request-Id").starts_with("req_")) << bad;
    }
}

// Behind a proxy each client has its own limits, and the log its address.
TEST_F(Http, ClientsOfATrustedProxyAreCountedApart) {
    HttpOptions options;
    options.trusted_proxies = {"127.0.0.1"};
    options.connections_per_client = 2;
    options.bodies_per_client = 100;
    start(options);
    const auto from = [](const char* address) {
        return fmt::format("X-Forwarded-For: 9.9.9.9, {}\r\n", address);
    };
    std::vector<std::unique_ptr<Client>> held;
    const auto hold = [&](const char* address) {
        const int before = waits_;
        held.push_back(std::make_unique<Client>(server_->port()));
        held.back()->send(post("/wait", "x", from(address)));
        return eventually([&] { return waits_ > before; });
    };
    ASSERT_TRUE(hold("1.2.3.4"));
    ASSERT_TRUE(hold("1.2.3.4"));
    ASSERT_TRUE(hold("5.6.7.8"));  // more connections from the proxy than a client may have
    Client third(server_->port());
    third.send(get("/a", from("1.2.3.4")));
    const std::string full = third.all();
    EXPECT_TRUE(full.starts_with("HTTP/1.1 503 ")) << full;
    EXPECT_NE(full.find("this client has as many"), std::string::npos) << full;
    for (const char* more : {"", "X-Forwarded-For: nonsense\r\n"}) {  // the proxy itself
        Client own(server_->port());
        own.send(get("/own", more));
        EXPECT_NE(own.until("GET /own").find("200 OK"), std::string::npos);
    }
    Client large(server_->port());
    large.send(post("/a", std::string(200, 'x'), from("7.7.7.7")));
    EXPECT_TRUE(large.until("\r\n\r\n").starts_with("HTTP/1.1 503 "));
    // A client that leaves makes room, and so does an answer.
    held[0]->leave();
    EXPECT_TRUE(eventually([&] {
        Client again(server_->port());
        again.send(get("/a", from("1.2.3.4")));
        return again.until("GET /a", 2000ms).find("200 OK") != std::string::npos;
    }));
    Client keeps(server_->port());
    for (int i = 0; i < 5; ++i) {  // one after the other on one connection
        keeps.send(get("/a", from("8.8.8.8")));
        EXPECT_NE(keeps.until("GET /a").find("200 OK"), std::string::npos) << i;
    }
}

TEST_F(Http, AForwardedAddressOfNoProxyIsNotBelieved) {
    HttpOptions options;
    options.trusted_proxies = {"10.0.0.1"};
    options.connections_per_client = 1;
    start(options);
    Client one(server_->port());
    one.send(get("/a", "X-Forwarded-For: 1.2.3.4\r\n"));
    EXPECT_NE(one.until("GET /a").find("200 OK"), std::string::npos);
    EXPECT_TRUE(ask(get("/a", "X-Forwarded-For: 5.6.7.8\r\n")).starts_with("HTTP/1.1 503 "));
}

}  // namespace
}  // namespace mr::serve
