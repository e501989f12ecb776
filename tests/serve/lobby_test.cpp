// Requests before and after the model is loaded, over a connection, and the log of them.
#include "serve/lobby.h"

#include <fstream>

#include "api_cases.h"
#include "http_fixture.h"

namespace mr::serve {
namespace {

class LobbyTest : public ApiTest {
  protected:
    void listen(GateOptions gate = {}) {
        own_gate_ = std::make_unique<Gate>(gate);
        lobby_ = std::make_unique<Lobby>(*own_gate_, metrics_, log_, "millrace 0.0.0");
        server_ = std::make_unique<HttpServer>(HttpOptions{});
        server_->start(lobby_->handlers());
    }
    std::string ask(const std::string& request) {
        Client client(server_->port());
        client.send(request);
        return client.all();
    }
    std::string asked(const std::string& path) {
        return ask(mr::serve::get(path, "Connection: close\r\n"));
    }
    void TearDown() override { server_.reset(); }

    std::unique_ptr<Gate> own_gate_;
    AccessLog log_{AccessLog::Kind::none, [](std::string_view) {}};
    std::unique_ptr<Lobby> lobby_;
    std::unique_ptr<HttpServer> server_;
};

bool has_status(const std::string& answer, int status) {
    return answer.starts_with(fmt::format("HTTP/1.1 {} ", status));
}
bool says(const std::string& answer, const std::string& part) {
    return answer.find(part) != std::string::npos;
}

TEST_F(LobbyTest, SaysThatTheModelIsBeingLoaded) {
    listen();
    const std::string health = asked("/health");
    EXPECT_TRUE(has_status(health, 503)) << health;
    EXPECT_TRUE(says(health, R"({"status":"loading"})")) << health;
    EXPECT_TRUE(says(health, "\r\nRetry-After: 2\r\n")) << health;
    EXPECT_TRUE(says(asked("/version"), R"({"version":"millrace 0.0.0"})"));
    const std::string metrics = asked("/metrics");
    EXPECT_TRUE(has_status(metrics, 200)) << metrics;
    EXPECT_TRUE(says(metrics, "\nprocess_resident_memory_bytes ")) << metrics;
    const std::string completion =
        post("/v1/chat/completions", R"({"messages":[]})", "Connection: close\r\n");
    for (const std::string& answer :
         {asked("/"), asked("/v1/models"), asked("/nothing"), ask(completion),
          ask(post("/health", "x", "Connection: close\r\n"))}) {
        EXPECT_TRUE(has_status(answer, 503)) << answer;
        EXPECT_TRUE(says(answer, "\r\nRetry-After: 2\r\n")) << answer;
        EXPECT_TRUE(says(answer, "the model is being loaded")) << answer;
        EXPECT_TRUE(says(answer, R"("code":"loading")")) << answer;
    }
    open();
    lobby_->open(*api_);
    EXPECT_TRUE(says(asked("/health"), R"({"status":"ok"})"));
    EXPECT_TRUE(has_status(asked("/health"), 200));
    EXPECT_TRUE(has_status(asked("/v1/models"), 200));
    EXPECT_TRUE(has_status(asked("/nothing"), 404));
    EXPECT_TRUE(has_status(ask(completion), 400));
}

// The gate stands before the lobby, too.
TEST_F(LobbyTest, KeysAndHostsAreCheckedWhileItLoads) {
    listen({.keys = {"a-long-secret"}});
    EXPECT_TRUE(has_status(asked("/health"), 503));
    EXPECT_TRUE(has_status(asked("/version"), 200));
    EXPECT_TRUE(has_status(asked("/metrics"), 401));
    EXPECT_TRUE(has_status(asked("/v1/models"), 401));
    const std::string key = "Connection: close\r\nx-api-key: a-long-secret\r\n";
    EXPECT_TRUE(has_status(ask(mr::serve::get("/metrics", key)), 200));
    EXPECT_TRUE(has_status(
        ask("GET /health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"), 421));
}

TEST_F(LobbyTest, AnthropicsClientsFindTheIdOfARequest) {
    listen();
    const std::string answer =
        ask(post("/v1/messages", "{}", "X-Request-Id: mine-7\r\nConnection: close\r\n"));
    EXPECT_TRUE(says(answer, "\r\nRequest-Id: mine-7\r\n")) << answer;
    EXPECT_TRUE(says(answer, "\r\nX-Request-Id: mine-7\r\n")) << answer;
}

TEST(AccessLog, EveryLineIsJsonWhereThatIsWanted) {
    HttpRequest request;
    request.method = std::string(5000, 'M');
    request.path = "/a\x1b[2J" + std::string(15000, 'p');
    request.peer = "10.0.0.1";
    request.id = "req_1";
    const Access access{request, 200, 5, 0.25, true};
    const std::string line = access_line(access, AccessLog::Kind::json, "now");
    const Json json = Json::parse(line);
    EXPECT_EQ(json["request_id"], "req_1");
    EXPECT_EQ(json["peer"], "10.0.0.1");
    EXPECT_LT(line.size(), 500U);
    const std::string text = access_line(access, AccessLog::Kind::text, "now");
    EXPECT_TRUE(text.ends_with(" 200 5 bytes 0.250 s req_1\n")) << text;
    EXPECT_LT(text.size(), 500U);
    EXPECT_EQ(Json::parse(note_line("a \"b\"", AccessLog::Kind::json, "now"))["note"], "a \"b\"");
    EXPECT_EQ(note_line("a", AccessLog::Kind::text, "now"), "note: a\n");
    EXPECT_EQ(Json::parse(json_note("error", "x", "now"))["error"], "x");
    // Notes go the way of the other lines.
    std::mutex mutex;
    std::string written;
    {
        AccessLog log(AccessLog::Kind::json, [&](std::string_view more) {
            const std::lock_guard lock(mutex);
            written += more;
        });
        log.note("one");
        log.add(access);
    }
    const std::lock_guard lock(mutex);
    const std::size_t end = written.find('\n');
    ASSERT_NE(end, std::string::npos);
    EXPECT_EQ(Json::parse(written.substr(0, end))["note"], "one");
    EXPECT_EQ(Json::parse(written.substr(end))["status"], 200);
}

// Unknown fields have no effect, and are counted and named once.
TEST_F(ApiTest, UnknownFieldsAreIgnoredAndNamedOnce) {
    open();
    std::vector<std::string> notes;
    api_->set_notes([&](const std::string& line) { notes.push_back(line); });
    const Json plain = {{"prompt", "The cat"}, {"max_tokens", 4}, {"seed", 3}};
    Json more = plain;
    more["temprature"] = 2;
    more["top_n_sigma"] = {{"deep", 1}};
    const std::string text = ok("/v1/completions", plain)["choices"][0]["text"];
    EXPECT_TRUE(notes.empty());
    EXPECT_EQ(ok("/v1/completions", more)["choices"][0]["text"], text);
    EXPECT_EQ(ok("/v1/completions", more)["choices"][0]["text"], text);
    EXPECT_EQ(metrics_.unknown_fields, 4U);
    ASSERT_EQ(notes.size(), 2U);
    EXPECT_TRUE(says(notes[0], "'temprature', which is ignored; did you mean 'temperature'?"))
        << notes[0];
    EXPECT_TRUE(says(notes[1], "'top_n_sigma'")) << notes[1];
    EXPECT_TRUE(
        says(get("/metrics").second, "\nmillrace_unknown_fields_total{model_name=\"tiny\"} 4\n"));
    // As many as a client can think of.
    for (int i = 0; i < 300; ++i) {
        Json odd = plain;
        odd["max_tokens"] = 0;
        odd["x" + std::to_string(i)] = 1;
        ok("/v1/completions", odd);
    }
    EXPECT_EQ(metrics_.unknown_fields, 304U);
    EXPECT_LE(notes.size(), 101U);
    EXPECT_TRUE(says(notes.back(), "further unknown fields")) << notes.back();
}

TEST_F(ApiTest, WhereItIsStrictUnknownFieldsAreRefused) {
    options_.strict = true;
    open();
    const Json error = refused("/v1/completions", {{"prompt", "a"}, {"temprature", 1}});
    EXPECT_EQ(error["param"], "temprature");
    EXPECT_EQ(error["code"], "unknown_field");
    EXPECT_TRUE(says(error["message"], "did you mean 'temperature'?")) << error;
    EXPECT_EQ(metrics_.unknown_fields, 0U);
    // What is guessed by default: the format of a conversation.
    const Json talk = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"max_tokens", 1}};
    const Json untaught = refused("/v1/chat/completions", talk);
    EXPECT_EQ(untaught["code"], "no_chat_template");
    EXPECT_TRUE(says(untaught["message"], "--chat-template")) << untaught;
    EXPECT_EQ(refused("/v1/messages", talk)["code"], "no_chat_template");
    open([](text::TokenizerData& data) { data.chat_template = "{{ messages[0].content }}"; });
    ok("/v1/chat/completions", talk);
}

// A client gets little of its own words back, whatever they are.
TEST_F(ApiTest, ErrorsDoNotEchoMegabytes) {
    options_.strict = true;
    open([](text::TokenizerData& data) {
        data.chat_template = "{{ raise_exception(messages[0].content) }}";
    });
    const std::string large(2 << 20, 'x');
    const auto user = [](const std::string& content) {
        return Json::array({{{"role", "user"}, {"content", content}}});
    };
    Json schema = {{"type", "object"}, {"properties", {{large, {{"type", "nonsense"}}}}}};
    const std::pair<const char*, Json> cases[] = {
        {"/v1/completions", {{"prompt", "a"}, {large, 1}}},
        {"/v1/completions", {{"prompt", "a"}, {"model", large}}},
        {"/v1/completions", {{"prompt", "a"}, {"model", "\x1b[2J"}}},
        {"/v1/completions", {{"prompt", "a"}, {"n", large}}},
        {"/v1/completions", {{"prompt", "a"}, {"logit_bias", {{large, 1}}}}},
        {"/v1/chat/completions", {{"messages", user(large)}}},
        {"/v1/chat/completions", {{"messages", {{{"role", large}, {"content", "a"}}}}}},
        {"/v1/chat/completions", {{"messages", user("a")}, {"chat_template_kwargs", {{large, 1}}}}},
        {"/v1/chat/completions", {{"messages", user("a")}, {"tools", {{{"type", large}}}}}},
        {"/v1/chat/completions",
         {{"messages", user("a")},
          {"tools", {{{"type", "function"}, {"function", {{"name", large}}}}}}}},
        {"/v1/chat/completions",
         {{"messages", user("a")},
          {"response_format",
           {{"type", "json_schema"}, {"json_schema", {{"name", "a"}, {"schema", schema}}}}}}},
        {"/v1/chat/completions", {{"messages", user("a")}, {"response_format", {{"type", large}}}}},
    };
    for (const auto& [path, body] : cases) {
        const auto [status, answer] = send(path, body);
        EXPECT_GE(status, 400) << body.dump().substr(0, 200);
        EXPECT_LT(answer.size(), 1500U) << body.dump().substr(0, 200);
        EXPECT_EQ(answer.find("\\u001b"), std::string::npos) << answer;
    }
    const auto exchange =
        std::make_shared<CaughtExchange>("/v1/completions", "{\"a\":1,\"" + large + "\":" + large);
    api_->handle(exchange);
    EXPECT_LT(exchange->wait().second.size(), 1500U);
}

TEST_F(ApiTest, PropsSayWhetherTheModelContinuesTexts) {
    open();
    const Json plain = Json::parse(get("/props").second);
    EXPECT_EQ(plain["continues_texts"], true);
    ASSERT_GE(plain["beginnings"].size(), 2U);
    open([](text::TokenizerData& data) { data.chat_template = "{{ messages[0].content }}"; });
    const Json chat = Json::parse(get("/props").second);
    EXPECT_EQ(chat["continues_texts"], false);
    EXPECT_FALSE(chat.contains("beginnings"));
    EXPECT_EQ(get("/version").first, 200);
    EXPECT_TRUE(Json::parse(get("/version").second).contains("version"));
}

}  // namespace
}  // namespace mr::serve
