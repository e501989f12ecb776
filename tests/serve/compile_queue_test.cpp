// Requests whose schemas are compiled apart from the others.
#include "serve/compile_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "api_cases.h"

namespace mr::serve {
namespace {

class CompiledWire final : public Exchange {
  public:
    const HttpRequest& request() const override { return request_; }
    void reply(HttpReply) override {}
    void begin(HttpReply) override {}
    bool write(std::string_view) override { return true; }
    void end() override {}
    void cut() override { was_cut = true; }
    bool gone() const override { return left; }

    std::atomic<bool> left = false, was_cut = false;

  private:
    HttpRequest request_;
};

TEST(CompileQueue, ClientsTakeTurnsAndThereIsABound) {
    CompileQueue queue;
    std::promise<void> begun, go_on;
    std::promise<std::string> all;
    std::string order;
    const auto wire = std::make_shared<CompiledWire>();
    const auto job = [&](const std::string& name) {
        return CompileQueue::Job{wire, 1, [&order, name] { order += name; }};
    };
    queue.put("a", {wire, 1, [&] {
                        begun.set_value();
                        go_on.get_future().wait();
                    }});
    begun.get_future().wait();
    for (const char* name : {"1", "2", "3"}) queue.put("a", job(name));
    const auto left = std::make_shared<CompiledWire>();
    left->left = true;
    queue.put("a", {left, 1, [&] { order += "gone"; }});
    queue.put("b", job("4"));
    EXPECT_EQ(queue.waiting(), 5U);
    const auto refused = [&](std::size_t bytes) {
        try {
            queue.put("c", {wire, bytes, [] {}});
        } catch (const Failure& failure) {
            EXPECT_EQ(failure.code, "schemas_full");
            EXPECT_GT(failure.retry_after_ms, 0);
            return failure.status;
        }
        return 0;
    };
    EXPECT_EQ(refused(CompileQueue::kMostBytes), 503);
    while (queue.waiting() + 1 < CompileQueue::kMost) queue.put("d", job(""));
    queue.put("d", {wire, 1, [&] { all.set_value(order); }});
    EXPECT_EQ(refused(1), 503);
    go_on.set_value();
    EXPECT_EQ(all.get_future().get(), "1423");
    EXPECT_TRUE(left->was_cut);
    EXPECT_FALSE(wire->was_cut);
}

TEST(CompileQueue, WhatWaitsIsDroppedAtTheEnd) {
    const auto wire = std::make_shared<CompiledWire>();
    std::promise<void> begun, go_on;
    {
        CompileQueue queue;
        queue.put("a", {wire, 1, [&] {
                            begun.set_value();
                            go_on.get_future().wait();
                        }});
        begun.get_future().wait();
        queue.put("a", {wire, 1, [] { ADD_FAILURE() << "was run"; }});
        std::thread later([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            go_on.set_value();
        });
        later.detach();
    }
    EXPECT_EQ(wire.use_count(), 1);
}

// Patterns that take long: some tenths of a second of a core for each schema.
Json slow_schema(int which) {
    Json properties = Json::object();
    for (int i = 1; i <= 12; ++i) {
        properties[fmt::format("p{}", i)] = {
            {"type", "string"},
            {"pattern", fmt::format("^[ab{0}]*a[ab{0}]{{10}}x{{{1}}}$", which, i)}};
    }
    return {{"type", "object"}, {"properties", properties}};
}

double seconds_of(const std::function<void()>& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A worker has handed a large schema on long before it is compiled, and other requests are answered
// meanwhile, those with a grammar that is known among them.
TEST_F(ApiTest, LargeSchemasAreCompiledApartFromOtherRequests) {
    open([](text::TokenizerData&) {});
    const Json chat = Json::parse(R"([{"role": "user", "content": "a"}])");
    const Json plain = {{"messages", chat}, {"max_tokens", 1}};
    Json known = plain;
    known["response_format"] = {{"type", "json_object"}};
    ok("/v1/chat/completions", known);
    ok("/v1/chat/completions", plain);
    Json slow = plain;
    slow["guided_json"] = slow_schema(0);
    const double alone = seconds_of([&] { ok("/v1/chat/completions", slow); });
    std::vector<std::shared_ptr<CaughtExchange>> waiting;
    const double handed_on = seconds_of([&] {
        for (int i = 1; i <= 4; ++i) {
            slow["guided_json"] = slow_schema(i);
            waiting.push_back(
                std::make_shared<CaughtExchange>("/v1/chat/completions", slow.dump()));
            api_->handle(waiting.back());
        }
    });
    const double others = seconds_of([&] {
        ok("/v1/chat/completions", plain);
        ok("/v1/chat/completions", known);
    });
    EXPECT_FALSE(waiting.back()->over());
    std::cout << fmt::format("a schema {:.3f} s; four handed on in {:.3f} s; two others {:.3f} s\n",
                             alone, handed_on, others);
    EXPECT_LT(handed_on, alone);
    for (const auto& one : waiting) EXPECT_EQ(one->wait().first, 200);
}

TEST_F(ApiTest, TextsObeyTheFieldsOfOtherServers) {
    open();
    const auto text = [&](const char* field, const char* value) {
        const Json asked = {
            {"prompt", "a"}, {"max_tokens", 60}, {"seed", 1}, {field, Json::parse(value)}};
        const Json answer = ok("/v1/completions", asked);
        Json chat = asked;
        chat.erase("prompt");
        chat["messages"] = Json::parse(R"([{"role": "user", "content": "a"}])");
        const Json message = ok("/v1/chat/completions", chat)["choices"][0]["message"];
        const std::string a = answer["choices"][0]["text"], b = message["content"];
        return std::set<std::string>{a, b};
    };
    const auto subset = [](const std::set<std::string>& some, const std::set<std::string>& all) {
        return std::includes(all.begin(), all.end(), some.begin(), some.end());
    };
    const std::set<std::string> words = {"left", "right"}, numbers = {"1", "2"};
    EXPECT_TRUE(subset(text("guided_choice", R"(["left", "right"])"), words));
    EXPECT_TRUE(subset(text("guided_regex", R"("left|right")"), words));
    EXPECT_TRUE(subset(text("structured_outputs", R"({"choice": ["left", "right"]})"), words));
    EXPECT_TRUE(subset(text("structured_outputs", R"({"regex": "(le|righ)t"})"),
                       {"left", "right", "let", "right"}));
    EXPECT_TRUE(subset(text("guided_json", R"({"enum": [1, 2]})"), numbers));
    EXPECT_TRUE(subset(text("guided_json", R"("{\"enum\": [1, 2]}")"), numbers));
    EXPECT_TRUE(subset(text("json_schema", R"({"enum": [1, 2]})"), numbers));
    EXPECT_TRUE(subset(text("structured_outputs", R"({"json": {"enum": [1, 2]}})"), numbers));
    EXPECT_TRUE(
        subset(text("response_format",
                    R"({"type": "json_schema", "json_schema": {"schema": {"enum": [1, 2]}}})"),
               numbers));
    const auto refused_at = [&](const Json& more) {
        Json body = {{"prompt", "a"}, {"max_tokens", 4}};
        body.update(more);
        return refused("/v1/completions", body)["param"].get<std::string>();
    };
    EXPECT_EQ(refused_at({{"guided_grammar", "root ::= x"}}), "guided_grammar");
    EXPECT_EQ(refused_at({{"grammar", "root ::= x"}}), "grammar");
    EXPECT_EQ(refused_at({{"guided_whitespace_pattern", "x"}}), "guided_whitespace_pattern");
    EXPECT_EQ(refused_at({{"structured_outputs", {{"grammar", "x"}}}}),
              "structured_outputs.grammar");
    EXPECT_EQ(refused_at({{"guided_regex", "("}}), "guided_regex");
    EXPECT_EQ(refused_at({{"guided_choice", Json::array()}}), "guided_choice");
    EXPECT_EQ(refused_at({{"guided_json", {{"not", Json::object()}}}}), "guided_json.not");
    EXPECT_EQ(refused_at({{"guided_regex", "a"}, {"guided_choice", {"b"}}}), "guided_choice");
    EXPECT_EQ(refused_at({{"guided_regex", "a"}, {"ignore_eos", true}}), "ignore_eos");
}

// The schema that once ended the server, by every way in.
TEST_F(ApiTest, WholeBoundsAreAnswered) {
    open();
    const Json schema = Json::parse(R"({"type": "object", "required": ["x"], "properties": {"x":
        {"type": "number", "minimum": 0, "exclusiveMaximum": 1}}})");
    const Json chat = Json::parse(R"([{"role": "user", "content": "a"}])");
    const Json format = {{"type", "json_schema"}, {"json_schema", {{"schema", schema}}}};
    const Json tool = {{"type", "function"}, {"function", {{"name", "f"}, {"parameters", schema}}}};
    ok("/v1/chat/completions",
       {{"messages", chat}, {"max_tokens", 9}, {"response_format", format}});
    ok("/v1/chat/completions", {{"messages", chat},
                                {"max_tokens", 9},
                                {"tools", Json::array({tool})},
                                {"response_format", format}});
    ok("/v1/messages", {{"messages", chat},
                        {"max_tokens", 9},
                        {"tools", Json::array({{{"name", "f"}, {"input_schema", schema}}})},
                        {"tool_choice", {{"type", "any"}}}});
}

}  // namespace
}  // namespace mr::serve
