// The desk between requests and the engine: a queue for each client, and one thread that takes from
// them in turn, runs the engine through the scheduler, and hands out the results. A request that
// fails does not affect others.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "decode/generate.h"
#include "decode/scheduler.h"
#include "model/engine.h"
#include "serve/delivery.h"
#include "serve/failure.h"
#include "serve/metrics.h"
#include "serve/turns.h"

namespace mr::serve {

// Whether a text was cut off by `max_tokens` or by the context.
inline bool cut_short(decode::StopReason reason) {
    return reason == decode::StopReason::length || reason == decode::StopReason::context_full;
}

// Receives the texts of one request. Its members are called one after another, on the delivery
// thread (delivery.h); gone() by any thread.
class Sink {
  public:
    virtual ~Sink() = default;
    // The prompt's log-probabilities, if they are asked for: before any token.
    virtual void prompt(int /*choice*/, std::vector<decode::PromptToken> /*tokens*/) {}
    virtual void token(int /*choice*/, std::int32_t /*id*/, const decode::DrawnLogprobs*) {}
    virtual void text(int choice, std::string_view piece) = 0;
    // For a diffusion text, after every pass over its open block: which tokens are settled.
    virtual void block(int /*choice*/, std::span<const std::int32_t> /*tokens*/,
                       std::span<const std::uint8_t> /*settled*/) {}
    // Called once for every choice; nothing comes after the last.
    virtual void ended(int choice, const decode::Generated& made) = 0;
    // Called once, and nothing comes after it.
    virtual void failed(const Failure& failure) = 0;
    // Polled before every pass: true ends the work.
    virtual bool gone() const = 0;
};

// Receives embeddings.
class VectorSink {
  public:
    virtual ~VectorSink() = default;
    virtual void made(std::vector<std::vector<float>> vectors) = 0;  // [texts][dim]
    virtual void failed(const Failure& failure) = 0;
    virtual bool gone() const = 0;
};

struct DeskOptions {
    int sequences = 8;                  // texts that run together; the engine has one more
    std::size_t queue = 256;            // waiting texts and embedding requests, over all clients
    std::chrono::milliseconds most{0};  // from request to end; 0: no limit
};

class Desk {
  public:
    using Clock = std::chrono::steady_clock;

    struct Work {
        std::vector<std::int32_t> prompt{};
        decode::GenerateOptions options{};
        int choices = 1;            // number of texts; text i draws with seed + i
        bool shows_blocks = false;  // call block()
    };

    Desk(std::unique_ptr<model::Engine> engine, const DeskOptions& options, Metrics& metrics);
    ~Desk();
    Desk(const Desk&) = delete;
    Desk& operator=(const Desk&) = delete;

    // All works share one sink, with choices numbered consecutively. `client`: whose queue they
    // wait in. Throws Failure: 429 if the queue has no room for them, 503 if the desk is
    // closing. A request that waits may fail with 429 later, to make room for another client.
    void generate(const std::string& client, std::vector<Work> works, std::shared_ptr<Sink> sink);
    void embed(const std::string& client, std::vector<std::vector<std::int32_t>> texts, bool last,
               std::shared_ptr<VectorSink> sink);

    const model::Model& model() const { return *model_; }
    const model::EngineOptions& engine_options() const { return engine_options_; }
    std::int64_t most_positions() const { return most_positions_; }
    const DeskOptions& options() const { return options_; }
    // False once the engine has failed as a whole.
    bool healthy() const { return healthy_; }

    // Accepts nothing more; existing work continues.
    void drain();
    bool wait_drained(std::chrono::milliseconds most);
    // Fails all remaining requests.
    void cut();

  private:
    struct Job;
    using JobPtr = std::shared_ptr<Job>;
    struct Embedding;
    struct Unit {  // queue entry: a choice, or texts to embed
        JobPtr job;
        std::size_t work = 0;
        int number = 0, choice = 0;  // index in its work, and in the request
        std::shared_ptr<Embedding> embedding;
    };
    struct Open {
        JobPtr job;
        int choice = 0;
    };

    // desk_queue.cpp: any thread
    using Queue = Turns<Unit>::Queue;
    void put(const std::string& client, std::vector<Unit> units);
    // These two need the mutex.
    bool make_room(const std::string& client, std::size_t count);
    Failure queue_full() const;
    // Units at the end of `queue` that make up its latest requests, `need` units or a little more;
    // 0: fewer than `keep` units would be left, or such a request has begun.
    static std::size_t droppable(const Queue& queue, std::size_t need, std::size_t keep);
    // Units of the request whose last one is queue[end - 1]; 0: some of its texts have begun.
    static std::size_t waiting_units(const Queue& queue, std::size_t end);
    // desk_queue.cpp: the engine's thread
    std::optional<Unit> next_text();
    void take_embeddings();
    void forget_left();

    // desk.cpp: the engine's thread
    void drive();
    bool turn();
    void fill();
    void begin(const Unit& unit);
    void step();
    void take_ended();
    void end(Open& open, const decode::Generated& made);
    void fail(const JobPtr& job, const Failure& failure);
    void fail(Embedding& embedding, const Failure& failure);
    void fail(const Unit& unit, const Failure& failure);
    void fail_all(const Failure& failure);
    // Ends what is late or whose client has left; false: it is neither.
    bool give_up(const JobPtr& job);
    bool give_up(Embedding& embedding);
    void show();  // gauges
    bool busy() const { return !open_.empty() || !embeddings_.empty(); }

    // desk_embed.cpp: the engine's thread
    bool embed_piece();

    std::unique_ptr<model::Engine> engine_;
    const model::Model* model_;
    const model::EngineOptions engine_options_;
    const std::int64_t most_positions_;
    const DeskOptions options_;
    Metrics& metrics_;
    // Used only by the thread.
    Delivery delivery_;
    std::unique_ptr<decode::Scheduler> scheduler_;
    std::map<decode::Scheduler::Id, Open> open_;
    std::list<std::shared_ptr<Embedding>> embeddings_;
    bool embedding_waits_ = false;     // for pages: no text starts before it
    decode::Scheduler::Totals shown_;  // the totals last shown

    mutable std::mutex mutex_;
    std::condition_variable work_, drained_;
    Turns<Unit> waiting_;
    std::vector<Unit> dropped_;  // made room for others: to be told
    std::size_t embedding_ = 0;  // in embeddings_: counted as waiting
    double seconds_a_text_ = 1;  // recent run time of a text
    bool draining_ = false, cut_ = false, leaving_ = false, idle_ = true;
    std::atomic<bool> healthy_ = true;
    std::thread thread_;
};

}  // namespace mr::serve
