// Requests whose schemas are compiled apart from the others.
#include "serve/compile_queue.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
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
    std::promise<void> begun, go_on;
    std::promise<std::string> all;
    std::string order;
    CompileQueue queue;  // ends before what its thread uses
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
    const auto refused = [&](std::size_t bytes, const char* client = "c") {
        try {
            queue.put(client, {wire, bytes, [] {}});
        } catch (const Failure& failure) {
            EXPECT_EQ(failure.code, "schemas_full");
            EXPECT_GT(failure.retry_after_ms, 0);
            return failure.status;
        }
        return 0;
    };
    EXPECT_EQ(refused(CompileQueue::kMostBytes), 503);
    for (std::size_t i = 0; i < CompileQueue::kMostOfClient; ++i) queue.put("d", job(""));
    EXPECT_EQ(refused(1, "d"), 503);  // it leaves room for the others
    while (queue.waiting() + 1 < CompileQueue::kMost) queue.put("e", job(""));
    queue.put("e", {wire, 1, [&] { all.set_value(order); }});
    EXPECT_EQ(refused(1), 503);
    go_on.set_value();
    EXPECT_EQ(all.get_future().get(), "1423");
    EXPECT_TRUE(left->was_cut);
    EXPECT_FALSE(wire->was_cut);
}

TEST(CompileQueue, WhatWaitsIsDroppedAtTheEnd) {
    const auto wire = std::make_shared<CompiledWire>();
    std::promise<void> begun, go_on;
    std::thread later;
    {
        CompileQueue queue;
        queue.put("a", {wire, 1, [&] {
                            begun.set_value();
                            go_on.get_future().wait();
                        }});
        begun.get_future().wait();
        queue.put("a", {wire, 1, [] { ADD_FAILURE() << "was run"; }});
        later = std::thread([&] {  // when the queue's destructor has begun
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            go_on.set_value();
        });
    }
    later.join();
    EXPECT_EQ(wire.use_count(), 1);
}

// However large, a request may wait where no other does: later it would not be smaller.
TEST(CompileQueue, OneLargeRequestMayWaitAlone) {
    const auto wire = std::make_shared<CompiledWire>();
    std::promise<void> begun, go_on, done, next;
    CompileQueue queue;
    queue.put("a", {wire, CompileQueue::kMostBytes, [&] {
                        begun.set_value();
                        go_on.get_future().wait();
                    }});
    begun.get_future().wait();
    queue.put("a", {wire, CompileQueue::kMostBytes + 1, [&] { done.set_value(); }});
    EXPECT_THROW(queue.put("b", {wire, 1, [] {}}), Failure);
    go_on.set_value();
    done.get_future().wait();
    queue.put("b", {wire, 1, [&] { next.set_value(); }});
    next.get_future().wait();
}

// The thread that compiles asks whether its client is there yet: it is held there.
class HeldExchange final : public CaughtExchange {
  public:
    using CaughtExchange::CaughtExchange;
    bool gone() const override {
        std::call_once(once_, [&] { reached_.set_value(); });
        released_.wait();
        return false;
    }
    bool reached() {
        return reached_.get_future().wait_for(test::kHang) == std::future_status::ready;
    }
    void release() { release_.set_value(); }

  private:
    mutable std::once_flag once_;
    mutable std::promise<void> reached_;
    std::promise<void> release_;
    const std::shared_future<void> released_ = release_.get_future().share();
};

// Releases it at the end of a test, also of one that fails.
class CompileHold {
  public:
    CompileHold(Api& api, const Json& body)
        : exchange_(std::make_shared<HeldExchange>("/v1/chat/completions", body.dump())) {
        std::thread worker([&] { api.handle(exchange_); });
        EXPECT_TRUE(exchange_->reached());
        worker_ = std::move(worker);
    }
    ~CompileHold() { release(); }
    void release() {
        if (!worker_.joinable()) return;
        exchange_->release();
        worker_.join();
    }
    HeldExchange& exchange() { return *exchange_; }

  private:
    std::shared_ptr<HeldExchange> exchange_;
    std::thread worker_;
};

Json new_schema(int which) { return {{"enum", {which}}}; }

// While the thread for schemas is held, workers hand such requests on and answer others, those with
// a grammar that is known among them.
TEST_F(ApiTest, SchemasAreCompiledApartFromOtherRequests) {
    open([](text::TokenizerData&) {});
    const Json chat = Json::parse(R"([{"role": "user", "content": "a"}])");
    const Json plain = {{"messages", chat}, {"max_tokens", 1}};
    Json known = plain;
    known["response_format"] = {{"type", "json_object"}};
    ok("/v1/chat/completions", known);
    Json fresh = plain;
    fresh["guided_json"] = new_schema(0);
    CompileHold hold(*api_, fresh);
    std::vector<std::shared_ptr<CaughtExchange>> waiting;
    for (int i = 1; i <= 4; ++i) {
        fresh["guided_json"] = new_schema(i);
        waiting.push_back(std::make_shared<CaughtExchange>("/v1/chat/completions", fresh.dump()));
        api_->handle(waiting.back());
    }
    ok("/v1/chat/completions", plain);
    ok("/v1/chat/completions", known);
    EXPECT_FALSE(hold.exchange().over());
    for (const auto& one : waiting) EXPECT_FALSE(one->over());
    hold.release();
    EXPECT_EQ(hold.exchange().wait().first, 200);
    for (const auto& one : waiting) EXPECT_EQ(one->wait().first, 200);
}

// What waits is the parsed body: here five times the bytes that were sent.
TEST_F(ApiTest, RequestsThatWaitForSchemasAreCountedAsParsed) {
    open([](text::TokenizerData&) {});
    Json body = {{"messages", Json::parse(R"([{"role": "user", "content": "a"}])")},
                 {"max_tokens", 1},
                 {"guided_json", new_schema(0)}};
    CompileHold hold(*api_, body);
    body["metadata"] = Json::array();
    std::string lists = "[";
    for (int i = 0; i < 1 << 20; ++i) lists += "[],";
    lists += "[]]";
    std::vector<std::shared_ptr<CaughtExchange>> sent;
    for (int i = 1; i <= 5; ++i) {
        body["guided_json"] = new_schema(i);
        std::string text = body.dump();
        text.replace(text.find("[]"), 2, lists);
        sent.push_back(std::make_shared<CaughtExchange>("/v1/chat/completions", text));
        api_->handle(sent.back());
    }
    ASSERT_TRUE(sent.back()->over());
    const auto [status, answer] = sent.back()->wait();
    EXPECT_EQ(status, 503);
    EXPECT_EQ(Json::parse(answer)["error"]["code"], "schemas_full");
    EXPECT_FALSE(sent.front()->over());
    hold.release();
    EXPECT_EQ(sent.front()->wait().first, 200);
    for (const auto& one : sent) one->wait();
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
