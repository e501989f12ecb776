// The API over a tiny model, without a transport.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "decode/eval.h"
#include "patience.h"
#include "serve/api.h"
#include "support.h"

namespace mr::serve {

using Json = nlohmann::json;

// An exchange that keeps its answer.
class CaughtExchange : public Exchange {
  public:
    CaughtExchange(std::string path, std::string body, std::string method = "POST") {
        request_.method = std::move(method);
        request_.path = std::move(path);
        request_.body = std::move(body);
    }

    const HttpRequest& request() const override { return request_; }
    void reply(HttpReply reply) override {
        const std::lock_guard lock(mutex_);
        status_ = reply.status;
        body_ = std::move(reply.body);
        finish();
    }
    void begin(HttpReply head) override { status_ = head.status; }
    bool write(std::string_view piece) override {
        const std::lock_guard lock(mutex_);
        body_ += piece;
        return true;
    }
    void end() override {
        const std::lock_guard lock(mutex_);
        finish();
    }
    void cut() override { end(); }
    bool gone() const override { return false; }

    // Waits for the end of the answer.
    std::pair<int, std::string> wait() {
        std::unique_lock lock(mutex_);
        EXPECT_TRUE(changed_.wait_for(lock, test::kHang, [&] { return over_; }));
        return {status_, body_};
    }

    bool over() {
        const std::lock_guard lock(mutex_);
        return over_;
    }

  private:
    void finish() {
        over_ = true;
        changed_.notify_all();
    }

    HttpRequest request_;
    std::mutex mutex_;
    std::condition_variable changed_;
    int status_ = 0;
    std::string body_;
    bool over_ = false;
};

// The data of a stream's events, without "[DONE]".
inline std::vector<Json> events_of(const std::string& stream) {
    std::vector<Json> out;
    for (std::size_t at = 0; (at = stream.find("data: ", at)) != std::string::npos;) {
        const std::size_t end = stream.find("\n\n", at);
        const std::string data = stream.substr(at + 6, end - at - 6);
        if (data != "[DONE]") out.push_back(Json::parse(data));
        at = end;
    }
    return out;
}

class ApiTest : public testing::Test {
  protected:
    // `change`: changes the tokenizer.
    void open(const std::function<void(text::TokenizerData&)>& change = {},
              const std::string& model = "llama2") {
        auto loaded = std::make_shared<model::Model>(model::load_model(test::reference(model)));
        if (change) {
            text::TokenizerData data = loaded->tokenizer->data();
            change(data);
            loaded->tokenizer = text::Tokenizer::from_data(std::move(data));
        }
        model::EngineOptions engine;
        engine.threads = 2;
        engine.context = kContext;
        engine.max_sequences = 3;
        engine.max_logits = decode::eval_logit_rows(loaded->spec);
        api_.reset();
        desk_ = std::make_unique<Desk>(model::make_engine(loaded, engine),
                                       DeskOptions{.sequences = 2}, metrics_);
        api_ = std::make_unique<Api>(*desk_, gate_, metrics_, options_);
    }
    std::pair<int, std::string> send(const std::string& path, const Json& body) {
        const auto exchange = std::make_shared<CaughtExchange>(path, body.dump());
        api_->handle(exchange);
        return exchange->wait();
    }
    std::pair<int, std::string> get(const std::string& path) {
        const auto exchange = std::make_shared<CaughtExchange>(path, "", "GET");
        api_->handle(exchange);
        return exchange->wait();
    }
    Json ok(const std::string& path, const Json& body) {
        const auto [status, answer] = send(path, body);
        EXPECT_EQ(status, 200) << answer;
        return Json::parse(answer);
    }
    std::vector<Json> streamed(const std::string& path, Json body) {
        body["stream"] = true;
        const auto [status, answer] = send(path, body);
        EXPECT_EQ(status, 200) << answer;
        return events_of(answer);
    }
    // The error of a request that is refused with status 400.
    Json refused(const std::string& path, const Json& body) {
        const auto [status, answer] = send(path, body);
        EXPECT_EQ(status, 400) << answer;
        return Json::parse(answer).value("error", Json());
    }

    static constexpr int kContext = 4096;
    ApiOptions options_{.model = "tiny", .aliases = {"a b%"}, .verbose_usage = true};
    Metrics metrics_;
    const Gate gate_{GateOptions{}};
    std::unique_ptr<Desk> desk_;
    std::unique_ptr<Api> api_;
};

}  // namespace mr::serve
