// How the load generator parses answers, and its requests.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "bench/serve/answer_reader.h"
#include "bench/serve/load.h"
#include "core/error.h"
#include "formats/json.h"

namespace mr::bench {
namespace {

const Clock::time_point kNow{};

std::string chunk(const std::string& text) {
    char size[16];
    std::snprintf(size, sizeof size, "%zx\r\n", text.size());
    return size + text + "\r\n";
}

std::string event(const std::string& json) { return "data: " + json + "\n\n"; }

constexpr const char* kHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    "Transfer-Encoding: chunked\r\n\r\n";

// Two tokens, the second without text yet; the end; the counts.
std::string stream() {
    return kHead + chunk(event(R"({"choices":[{"index":0,"text":"a","finish_reason":null}]})")) +
           chunk(event(R"({"choices":[{"index":0,"text":"","finish_reason":null}]})") +
                 event(R"({"choices":[{"index":0,"text":"","finish_reason":"length"}]})")) +
           chunk(event(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}})") +
                 event("[DONE]")) +
           "0\r\n\r\n";
}

TEST(ServeLoad, EventsAreReadWithoutAParser) {
    EXPECT_TRUE(read_event(R"( {"text":"x","finish_reason":null})").token);
    EXPECT_TRUE(read_event(R"({"text": "x", "finish_reason": "stop"})").token);  // Python's spaces
    EXPECT_TRUE(read_event(R"({"text":"","finish_reason":null})").token);
    EXPECT_FALSE(read_event(R"({"text":"","finish_reason":"length"})").token);
    EXPECT_TRUE(read_event(" [DONE]").done);
    EXPECT_TRUE(read_event(R"({"error":{"message":"m"}})").error);
    // A string that spells a key is only a string.
    const EventLine spelt = read_event(R"({"text":"\"error\": \"usage\":{","finish_reason":null})");
    EXPECT_TRUE(spelt.token);
    EXPECT_FALSE(spelt.error);
    EXPECT_EQ(spelt.completion_tokens, -1);
    const EventLine counts = read_event(
        R"({"choices":[],"usage":{"prompt_tokens": 3,"completion_tokens":12,"total_tokens":15}})");
    EXPECT_FALSE(counts.token);
    EXPECT_EQ(counts.prompt_tokens, 3);
    EXPECT_EQ(counts.completion_tokens, 12);
    EXPECT_EQ(read_event(R"({"text":"x","usage":null})").completion_tokens, -1);
}

TEST(ServeLoad, AStreamIsTheSameHoweverItIsCut) {
    const std::string all = stream() + "HTTP/1.1";  // of the next answer
    const std::size_t length = all.size() - 8;
    for (std::size_t piece = 1; piece <= all.size(); ++piece) {
        AnswerReader reader;
        std::size_t used = 0;
        for (std::size_t at = 0; at < all.size() && !reader.whole(); at += piece) {
            used += reader.put(std::string_view(all).substr(at, piece), kNow);
        }
        ASSERT_TRUE(reader.whole()) << piece;
        ASSERT_EQ(used, length) << piece;
        ASSERT_EQ(reader.tokens().size(), 2U) << piece;
        ASSERT_EQ(reader.usage().completion_tokens, 2) << piece;
        ASSERT_EQ(reader.usage().prompt_tokens, 7) << piece;
        ASSERT_TRUE(reader.done() && reader.keep_alive() && reader.error().empty()) << piece;
    }
}

TEST(ServeLoad, TokensHaveTheTimeOfTheirRead) {
    AnswerReader reader;
    const std::string all = stream();
    const std::size_t cut = all.find("\"a\"");  // in the middle of the first line
    reader.put(all.substr(0, cut), kNow);
    EXPECT_TRUE(reader.tokens().empty());
    reader.put(all.substr(cut), kNow + std::chrono::seconds(1));
    ASSERT_EQ(reader.tokens().size(), 2U);
    EXPECT_EQ(reader.tokens()[0], kNow + std::chrono::seconds(1));
}

TEST(ServeLoad, AnswersThatAreNoStream) {
    AnswerReader reader;
    const std::string refused = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 4\r\n\r\nno!!";
    EXPECT_EQ(reader.put(refused + "rest", kNow), refused.size());
    EXPECT_TRUE(reader.whole());
    EXPECT_EQ(reader.status(), 401);
    EXPECT_EQ(reader.body(), "no!!");
    reader.begin();
    reader.put("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\nall of it", kNow);
    EXPECT_FALSE(reader.whole());  // the connection's end ends it
    reader.put_end();
    EXPECT_TRUE(reader.whole());
    EXPECT_FALSE(reader.keep_alive());
    EXPECT_EQ(reader.body(), "all of it");
    reader.begin();
    reader.put("SSH-2.0-OpenSSH\r\n", kNow);
    EXPECT_TRUE(reader.broken());
    reader.begin();
    reader.put(std::string(kHead) + "zz\r\n", kNow);
    EXPECT_TRUE(reader.broken());
    reader.begin();  // cut off in the middle
    reader.put(stream().substr(0, 200), kNow);
    reader.put_end();
    EXPECT_FALSE(reader.whole());
}

TEST(ServeLoad, PromptsDifferButForTheirPrefix) {
    LoadShape shape{.model = "m", .input = 40, .output = 5, .vocab = 50, .avoided = 7, .seed = 3};
    std::set<std::vector<std::int32_t>> beginnings;
    for (std::uint64_t i = 0; i < 200; ++i) {
        const std::vector<std::int32_t> ids = prompt_ids(shape, i);
        ASSERT_EQ(ids.size(), 40U);
        for (const std::int32_t id : ids) ASSERT_TRUE(id >= 0 && id < 50 && id != 7);
        beginnings.emplace(ids.begin(), ids.begin() + 16);
        ASSERT_EQ(ids, prompt_ids(shape, i));
    }
    EXPECT_EQ(beginnings.size(), 200U);
    shape.shared_prefix = 20;
    const auto a = prompt_ids(shape, 1), b = prompt_ids(shape, 2);
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + 20, b.begin()));
    EXPECT_FALSE(std::equal(a.begin() + 20, a.end(), b.begin() + 20));
}

TEST(ServeLoad, RequestsAreJson) {
    LoadShape shape{.model = "a\"b", .input = 3, .output = 5};
    const std::string body = request_body(shape, 0);
    const auto json = formats::JsonDocument::parse(body, "body");
    EXPECT_TRUE(json.root()["model"] == "a\"b");
    EXPECT_EQ(json.root()["prompt"].size(), 3U);
    EXPECT_EQ(json.root()["max_tokens"].get<int>(), 5);
    EXPECT_TRUE(json.root()["stream"].get<bool>() && json.root()["ignore_eos"].get<bool>());
    shape.text = true;
    const std::string words = request_body(shape, 0);
    const auto text =
        formats::JsonDocument::parse(words, "body").root()["prompt"].get<std::string>();
    EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 2);
}

TEST(ServeLoad, PlacesAndRequests) {
    const Place place = Place::of("http://[::1]:8080/base/v1/", "secret");
    EXPECT_EQ(place.host, "::1");
    EXPECT_EQ(place.port, "8080");
    EXPECT_EQ(place.request("/v1/models"),
              "GET /base/v1/models HTTP/1.1\r\nHost: [::1]:8080\r\n"
              "Authorization: Bearer secret\r\n\r\n");
    EXPECT_EQ(Place::of("localhost", "").port, "80");
    for (const char* const bad : {"https://a:1", "http://", "http://a:b", "http://a b:1"}) {
        EXPECT_THROW(Place::of(bad, ""), Error) << bad;
    }
    EXPECT_EQ(error_words(R"({"error":{"message":"too many"}})"), "too many");
    EXPECT_EQ(error_words(R"({"detail":"Not Found"})"), "Not Found");
    EXPECT_EQ(error_words("<html>\n"), "<html>\\x0a");
}

}  // namespace
}  // namespace mr::bench
