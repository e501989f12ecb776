// Access control, and the fields of requests.
#include "serve/gate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "core/error.h"
#include "formats/json_writer.h"
#include "serve/fields.h"
#include "temp_folder.h"

namespace mr::serve {
namespace {

HttpRequest request(Headers headers, const std::string& method = "POST") {
    HttpRequest out;
    out.method = method;
    out.path = "/v1/models";
    out.peer = "10.0.0.7";
    out.headers = std::move(headers);
    return out;
}

int status(const Gate& gate, const HttpRequest& request, bool open = false) {
    const auto failure = gate.check(request, open);
    return failure ? failure->status : 200;
}

TEST(Gate, NamesOfTheServer) {
    const Gate gate({.hosts = {"Box.example"}});
    for (const char* host : {"localhost", "localhost:8080", "LOCALHOST", "a.localhost:1",
                             "127.0.0.1:8080", "192.168.1.2", "[::1]:8080", "box.example:80"}) {
        EXPECT_EQ(status(gate, request({{"host", host}})), 200) << host;
    }
    for (const char* host : {"", "evil.example", "evil.example:8080", "localhost.evil.example",
                             "127.0.0.1.evil.example", "[::1", "::1", "box.example.evil"}) {
        EXPECT_EQ(status(gate, request({{"host", host}})), 421) << host;
    }
    EXPECT_EQ(status(gate, request({{"host", "localhost"}, {"host", "localhost"}})), 400);
    EXPECT_EQ(status(gate, request({})), 421);
    HttpRequest probe = request({});
    probe.old_version = true;
    EXPECT_EQ(status(gate, probe), 200);
    probe = request({{"host", "evil.example"}});
    probe.old_version = true;
    EXPECT_EQ(status(gate, probe), 421);
    probe = request({{"origin", "http://"}});
    probe.old_version = true;
    EXPECT_EQ(status(gate, probe), 403);
}

TEST(Gate, Origins) {
    const Gate gate({.origins = {"https://page.example"}});
    const auto from = [&](const char* origin) {
        return request({{"host", "localhost:8080"}, {"origin", origin}});
    };
    EXPECT_EQ(status(gate, from("http://localhost:8080")), 200);
    EXPECT_EQ(status(gate, from("https://page.example")), 200);
    for (const char* origin : {"null", "http://localhost:8081", "https://page.example.evil",
                               "http://page.example", "https://localhost:8080"}) {
        EXPECT_EQ(status(gate, from(origin)), 403) << origin;
    }
    EXPECT_TRUE(gate.headers(from("http://localhost:8080")).empty());
    const Headers headers = gate.headers(from("https://page.example"));
    ASSERT_FALSE(headers.empty());
    EXPECT_EQ(headers[0].second, "https://page.example");
    EXPECT_THROW(Gate({.origins = {"*"}}), Error);
    EXPECT_THROW(Gate({.origins = {"https://a/b"}}), Error);
}

TEST(Gate, Keys) {
    const Gate gate({.keys = {"first-key", "second-key"}});
    const auto with = [&](const char* name, const char* value) {
        return request({{"host", "localhost"}, {name, value}});
    };
    EXPECT_EQ(status(gate, with("authorization", "Bearer first-key")), 200);
    EXPECT_EQ(status(gate, with("authorization", "bearer second-key")), 200);
    EXPECT_EQ(status(gate, with("x-api-key", "second-key")), 200);
    for (const char* value : {"", "Bearer", "Bearer ", "Bearer first-ke", "Bearer first-keyx",
                              "first-key", "Basic first-key", "Bearer first-keyfirst-key"}) {
        EXPECT_EQ(status(gate, with("authorization", value)), 401) << value;
    }
    EXPECT_EQ(status(gate, request({{"host", "localhost"}}), true), 200);
    EXPECT_EQ(gate.client_of(with("x-api-key", "second-key")), "key 2");
    EXPECT_EQ(gate.client_of(request({})), "10.0.0.7");
    EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
    for (const char* other : {"", "ab", "abd", "abcd", "abcabc"}) {
        EXPECT_FALSE(equal_in_constant_time("abc", other)) << other;
    }
}

TEST(Gate, KeyFiles) {
    const test::TempFolder folder;
    const std::string path = folder / "keys";
    const auto write = [&](const char* text) { std::ofstream(path) << text; };
    write("# of the team\nfirst-key\r\n\n  \nsecond-key");
    EXPECT_EQ(read_keys(path), (std::vector<std::string>{"first-key", "second-key"}));
    for (const char* text : {"", "# none\n", "short\n", "has space\n", "caf\xC3\xA9-key\n"}) {
        write(text);
        EXPECT_THROW(read_keys(path), Error) << text;
    }
}

std::string refused(const std::string& json, const char* route = "chat") {
    const auto document = formats::JsonDocument::parse(json, "");
    try {
        const Fields fields(document.root(), route);
        return "";
    } catch (const Failure& failure) {
        EXPECT_EQ(failure.status, 400);
        return failure.param + "/" + failure.code;
    }
}

TEST(Fields, TypesAndRanges) {
    const std::string messages = R"("messages":[{"role":"user","content":"a"}])";
    const auto with = [&](const std::string& more) {
        return refused("{" + messages + "," + more + "}");
    };
    for (const char* fine :
         {R"("temperature":0)", R"("temperature":1.5)", R"("top_k":-1)", R"("stop":"a")",
          R"("stop":["a","b","c","d"])", R"("n":128)", R"("seed":-3)", R"("seed":9007199254740991)",
          R"("seed":-9007199254740991)", R"("user":{"any":[1]})", R"("temperature":null)",
          R"("logit_bias":{})", R"("presence_penalty":-2)", R"("frequency_penalty":2.0)",
          R"("tools":[])", R"("tool_choice":"none")"}) {
        EXPECT_EQ(with(fine), "") << fine;
    }
    const std::pair<const char*, const char*> wrong[] = {
        {R"("temperature":"1")", "temperature/invalid_value"},
        {R"("temperature":-0.1)", "temperature/invalid_value"},
        {R"("temperature":1e300)", "temperature/invalid_value"},
        {R"("top_k":1.5)", "top_k/invalid_value"},
        {R"("top_k":99999999999999999999)", "top_k/invalid_value"},
        {R"("n":0)", "n/invalid_value"},
        {R"("n":-9223372036854775808)", "n/invalid_value"},
        {R"("seed":18446744073709551615)", "seed/invalid_value"},
        {R"("seed":9007199254740992)", "seed/invalid_value"},
        {R"("seed":9007199254740993)", "seed/invalid_value"},
        {R"("seed":-9007199254740992)", "seed/invalid_value"},
        {R"("seed":-9007199254740993)", "seed/invalid_value"},
        {R"("seed":-9223372036854775808)", "seed/invalid_value"},
        {R"("stream":1)", "stream/invalid_value"},
        {R"("stop":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"])",
         "stop/invalid_value"},
        {R"("stop":[1])", "stop/invalid_value"},
        {R"("presence_penalty":2.5)", "presence_penalty/invalid_value"},
        {R"("frequency_penalty":-2.1)", "frequency_penalty/invalid_value"},
        {R"("logit_bias":[])", "logit_bias/invalid_value"},
        {R"("tools":{})", "tools/invalid_value"},
        {R"("response_format":"json")", "response_format/invalid_value"},
        {R"("parallel_tool_calls":1)", "parallel_tool_calls/invalid_value"},
    };
    for (const auto& [json, says] : wrong) EXPECT_EQ(with(json), says) << json;
    EXPECT_EQ(refused("{}"), "messages/missing_field");
    EXPECT_EQ(refused(R"({"messages":null})"), "messages/missing_field");
    EXPECT_EQ(refused(R"({"messages":[]})"), "messages/invalid_value");
    EXPECT_EQ(refused("[]"), "/");
    EXPECT_EQ(refused(R"({"prompt":"a"})", "tokenize"), "");
}

// They are kept for the log, cut and escaped; the first of many alone.
TEST(Fields, UnknownOnesAreNamed) {
    const auto of = [](const std::string& json) { return formats::JsonDocument::parse(json, ""); };
    const auto none = of(R"({"prompt":"a","user":"u","n":null})");
    EXPECT_TRUE(Fields(none.root(), "completions").unknown().empty());
    const auto two = of(R"({"prompt":"a","temprature":1,"zz\u001b[2J":null})");
    const Fields fields(two.root(), "completions");
    ASSERT_EQ(fields.unknown_count(), 2U);
    EXPECT_EQ(fields.unknown()[0].name, "temprature");
    EXPECT_EQ(fields.unknown()[0].meant, "temperature");
    EXPECT_EQ(fields.unknown()[1].name, "zz\\x1b[2J");
    EXPECT_EQ(fields.unknown()[1].meant, "");
    // Another route's field is unknown, too: it has no effect, whatever it is.
    const auto other = of(R"({"messages":[1],"max_tokens":1,"repetition_penalty":"x"})");
    const Fields messages(other.root(), "messages");
    EXPECT_EQ(messages.unknown_count(), 1U);
    EXPECT_FALSE(messages.given("repetition_penalty"));
    EXPECT_EQ(messages.number("repetition_penalty", 1.5), 1.5);
    const auto large = of(fmt::format(R"({{"prompt":"a","{}":1}})", std::string(8 << 20, 'x')));
    const Fields cut(large.root(), "completions");
    ASSERT_EQ(cut.unknown().size(), 1U);
    EXPECT_LE(cut.unknown()[0].name.size(), 103U);  // and "..."
    std::string many = R"({"prompt":"a")";
    for (int i = 0; i < 1000; ++i) many += fmt::format(R"(,"field {}":1)", i);
    const auto parsed = of(many + "}");
    const Fields all(parsed.root(), "completions");
    EXPECT_EQ(all.unknown_count(), 1000U);
    EXPECT_LE(all.unknown().size(), 100U);
}

// An error says what was sent and what is accepted.
TEST(Fields, ErrorsSayWhatWasSent) {
    const auto message = [](const std::string& field) {
        try {
            const auto body = formats::JsonDocument::parse(R"({"prompt":"a",)" + field + "}", "");
            const Fields fields(body.root(), "completions");
        } catch (const Failure& failure) {
            return failure.message;
        }
        return std::string("taken");
    };
    EXPECT_EQ(message(R"("max_tokens":1e3)"),
              "'max_tokens' is 1000.0, and must be a whole number without a point or an exponent, "
              "0 to 2147483647");
    EXPECT_EQ(message(R"("n":0)"), "'n' is 0, and must be 1 to 128");
    EXPECT_EQ(message(R"("stream":1)"), "'stream' is 1, and must be a boolean");
    EXPECT_EQ(message(R"("logit_bias":[2])"),
              "'logit_bias' is [2], and must be an object, 0 to 1024 entries");
    EXPECT_EQ(message(R"("stop":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o",)"
                      R"("p","q"])"),
              "'stop' has 17 entries, and must be 0 to 16 entries");
    EXPECT_EQ(message(R"("suffix":"ab")"), "'suffix' is not supported; leave it out");
}

// docs/server.md contains the current tables.
TEST(Fields, TheDocumentationHasTheTables) {
    std::ifstream file(std::string(MR_SOURCE_DIR) + "/docs/server.md");
    std::stringstream text;
    text << file.rdbuf();
    for (const std::string_view route : routes_with_fields()) {
        EXPECT_NE(text.str().find(field_table(route)), std::string::npos)
            << "docs/server.md should have for " << route << ":\n"
            << field_table(route);
    }
}

TEST(JsonWriter, WhatIsWrittenCanBeRead) {
    formats::JsonWriter json;
    json.begin_object().member("a", 1).member("b", "x\"\\\n\x01\x7F").key("c").begin_array();
    json.value(true).null().value(0.5).begin_object().end_object().begin_array().end_array();
    json.value(-3).value(std::uint64_t{18446744073709551615U}).value("\xFF\xC3\xA9");
    json.end_array().end_object();
    EXPECT_EQ(json.text(),
              "{\"a\":1,\"b\":\"x\\\"\\\\\\n\\u0001\\u007f\",\"c\":[true,null,0.5,{},[],-3,"
              "18446744073709551615,\"\xEF\xBF\xBD\xC3\xA9\"]}");
    const auto document = formats::JsonDocument::parse(json.text(), "");
    EXPECT_EQ(document.root()["b"].text(), "x\"\\\n\x01\x7F");
    EXPECT_EQ(document.root()["c"].size(), 8U);
}

}  // namespace
}  // namespace mr::serve
