// A desk over a tiny model, and sinks that keep what arrives, for tests of the desk.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>

#include "decode/eval.h"
#include "decode/prompt.h"
#include "patience.h"
#include "serve/desk.h"
#include "support.h"

namespace mr::serve {

using namespace std::chrono_literals;

inline constexpr int kLong = 30000;  // tokens of a text that does not end before its test

inline std::shared_ptr<const model::Model> tiny() {
    static const auto model =
        std::make_shared<const model::Model>(model::load_model(test::reference("llama2")));
    return model;
}

// Records what arrived, and when it was over.
class Kept : public Sink {
  public:
    explicit Kept(int choices = 1, std::atomic<int>* order = nullptr)
        : texts(static_cast<std::size_t>(choices)), order_(order), left_(choices) {}

    void text(int choice, std::string_view piece) override {
        const std::lock_guard lock(mutex_);
        texts[static_cast<std::size_t>(choice)] += piece;
        ++pieces;
        changed_.notify_all();
    }
    void ended(int, const decode::Generated& made) override {
        const std::lock_guard lock(mutex_);
        drawn += made.drawn;
        if (order_) place = ++*order_;
        over_ = --left_ == 0;
        changed_.notify_all();
    }
    void failed(const Failure& why) override {
        const std::lock_guard lock(mutex_);
        failure = why;
        over_ = true;
        changed_.notify_all();
    }
    bool gone() const override { return left; }

    bool wait(std::chrono::milliseconds most = test::kHang) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, most, [&] { return over_; });
    }
    bool wait_for_text() {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, test::kHang, [&] { return pieces > 0; });
    }

    std::vector<std::string> texts;
    std::optional<Failure> failure;
    std::int64_t drawn = 0;
    int place = 0, pieces = 0;
    std::atomic<bool> left = false;

  private:
    std::atomic<int>* order_;
    std::mutex mutex_;
    std::condition_variable changed_;
    int left_;
    bool over_ = false;
};
using KeptPtr = std::shared_ptr<Kept>;

class KeptVectors : public VectorSink {
  public:
    explicit KeptVectors(std::atomic<int>* order = nullptr) : order_(order) {}

    void made(std::vector<std::vector<float>> vectors) override {
        end(std::move(vectors), std::nullopt);
    }
    void failed(const Failure& why) override { end({}, why); }
    bool gone() const override { return left; }
    bool over(std::chrono::milliseconds most = test::kHang) {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, most, [&] { return over_; });
    }
    std::vector<std::vector<float>> wait() {
        EXPECT_TRUE(over());
        EXPECT_FALSE(failure) << failure->message;
        return vectors_;
    }
    // The status of its failure; 0: there is none.
    int status() {
        EXPECT_TRUE(over());
        return failure ? failure->status : 0;
    }

    std::optional<Failure> failure;
    int place = 0;
    std::atomic<bool> left = false;

  private:
    void end(std::vector<std::vector<float>> vectors, std::optional<Failure> why) {
        const std::lock_guard lock(mutex_);
        EXPECT_FALSE(over_) << "called once";
        vectors_ = std::move(vectors);
        failure = std::move(why);
        if (order_) place = ++*order_;
        over_ = true;
        changed_.notify_all();
    }
    std::atomic<int>* order_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::vector<float>> vectors_;
    bool over_ = false;
};
using VectorsPtr = std::shared_ptr<KeptVectors>;

// Stops the engine before every pass of one text, until the test lets it go on.
class Brake {
  public:
    ~Brake() { release(); }

    // Lets that many passes run, and returns when the engine stands before the next one.
    void run(int passes = 1) {
        std::unique_lock lock(state_->mutex);
        state_->allowed += passes;
        state_->changed.notify_all();
        EXPECT_TRUE(state_->changed.wait_for(
            lock, test::kHang, [&] { return state_->stands && state_->allowed == 0; }));
    }
    void wait_until_it_stands() { run(0); }
    void release() {
        const std::lock_guard lock(state_->mutex);
        state_->released = true;
        state_->changed.notify_all();
    }
    // For GenerateOptions::filter.
    std::function<std::unique_ptr<ops::TokenFilter>()> filter() const {
        return [state = state_] { return std::make_unique<Filter>(state); };
    }

  private:
    struct State {
        std::mutex mutex;
        std::condition_variable changed;
        int allowed = 0;
        bool stands = false, released = false;
    };
    class Filter final : public ops::TokenFilter {
      public:
        explicit Filter(std::shared_ptr<State> state) : state_(std::move(state)) {
            mask_.assign(static_cast<std::size_t>(tiny()->spec.vocab + 31) / 32, ~0U);
            const auto end = static_cast<std::uint32_t>(tiny()->tokenizer->eos().value());
            mask_[end / 32] &= ~(1U << end % 32);
        }
        std::span<const std::uint32_t> mask() override {
            std::unique_lock lock(state_->mutex);
            state_->stands = true;
            state_->changed.notify_all();
            state_->changed.wait(lock, [&] { return state_->allowed > 0 || state_->released; });
            if (state_->allowed > 0) --state_->allowed;
            state_->stands = false;
            return mask_;
        }
        void accept(std::int32_t) override {}
        bool finished() const override { return false; }

      private:
        const std::shared_ptr<State> state_;
        std::vector<std::uint32_t> mask_;
    };
    const std::shared_ptr<State> state_ = std::make_shared<State>();
};

class DeskTest : public testing::Test {
  protected:
    // `pool`: positions in the cache; 0: enough for all.
    void open(DeskOptions options = {}, std::int64_t pool = 0) {
        model::EngineOptions engine;
        engine.pool = pool;
        engine.threads = 2;
        engine.context = kLong + 100;
        engine.max_sequences = options.sequences + 1;
        engine.max_logits = decode::eval_logit_rows(tiny()->spec);
        desk_ = std::make_unique<Desk>(model::make_engine(tiny(), engine), options, metrics_);
    }
    Desk::Work work(const std::string& prompt, int tokens, std::uint64_t seed, int choices = 1) {
        Desk::Work out;
        out.prompt = decode::encode_prompt(*tiny(), prompt);
        out.options.max_tokens = tokens;
        out.options.ignore_end = true;
        out.options.sampling.seed = seed;
        out.options.keep = decode::Keep::nothing;
        out.choices = choices;
        return out;
    }
    KeptPtr ask(const std::string& client, Desk::Work work, std::atomic<int>* order = nullptr) {
        auto sink = std::make_shared<Kept>(work.choices, order);
        std::vector<Desk::Work> works;
        works.push_back(std::move(work));
        desk_->generate(client, std::move(works), sink);
        return sink;
    }
    // A text that does not end, and stops at the brake before every pass. It runs when this
    // returns.
    KeptPtr ask_with(Brake& brake, const std::string& client = "brake", int tokens = kLong) {
        Desk::Work braked = work("The cat", tokens, 1);
        braked.options.filter = brake.filter();
        KeptPtr sink = ask(client, std::move(braked));
        brake.wait_until_it_stands();
        return sink;
    }
    // As many short texts.
    VectorsPtr embed(const std::string& client, std::size_t texts = 1,
                     std::atomic<int>* order = nullptr) {
        auto sink = std::make_shared<KeptVectors>(order);
        desk_->embed(client, std::vector(texts, decode::encode_prompt(*tiny(), "x")), false, sink);
        return sink;
    }

    Metrics metrics_;
    std::unique_ptr<Desk> desk_;
};

}  // namespace mr::serve
