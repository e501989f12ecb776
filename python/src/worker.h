// An engine and the one thread that drives it: any number of threads send requests, and each waits
// for its own. Generations share the passes of one scheduler; work that needs the engine alone
// waits until all earlier work is done.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "decode/generate.h"
#include "decode/scheduler.h"
#include "model/engine.h"

namespace mr::python {

// A request, shared by both sides: the worker fills it, the caller waits for it.
class Ticket {
  public:
    // `cancels` counts the cancelled tickets of a worker.
    using Cancels = std::shared_ptr<std::atomic<std::uint64_t>>;
    explicit Ticket(Cancels cancels) : cancels_(std::move(cancels)) {}
    // Waits at most this many seconds until it has ended, or, if `text`, has new text.
    bool wait(double seconds, bool text);
    std::string take_text();  // text since the last call
    bool ended();
    // Throws the error that ended it, if any.
    void check();
    void cancel() {
        if (!stop_.exchange(true)) ++*cancels_;
    }
    bool cancelled() const { return stop_; }

    decode::Generated made;  // result of a generation that has ended

  private:
    friend class Worker;
    void add_text(std::string_view text);
    void end(std::exception_ptr error = nullptr);

    std::mutex mutex_;
    std::condition_variable changed_;
    std::string text_;
    bool ended_ = false;
    std::exception_ptr error_;
    std::atomic<bool> stop_ = false;
    const Cancels cancels_;
};
using TicketPtr = std::shared_ptr<Ticket>;

class Worker {
  public:
    // Has the engine alone, and may replace it.
    using Body = std::function<void(std::unique_ptr<model::Engine>& engine, Ticket& ticket)>;

    explicit Worker(std::unique_ptr<model::Engine> engine);
    // Calls still in progress end with an Error.
    ~Worker();
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    // `streams`: text goes to the ticket as it arrives. `on_host`: Scheduler::guess_on_host().
    TicketPtr generate(std::vector<std::int32_t> prompt, decode::GenerateOptions options,
                       bool streams, bool on_host);
    TicketPtr alone(Body body);
    // Whether this is the process of the worker's thread.
    bool here() const;

  private:
    struct Job {
        TicketPtr ticket;
        std::vector<std::int32_t> prompt;
        decode::GenerateOptions options;
        bool streams = false, on_host = false;
        Body body;  // for a job that runs alone
    };
    using Open = std::list<std::pair<decode::Scheduler::Id, TicketPtr>>;

    TicketPtr put(Job job);
    void drive();
    bool has_work();
    std::optional<Job> next_job();
    void end_cancelled();
    void begin(Job& job);
    void run_alone(Job& job);
    void step();
    void take_ended();

    const pid_t process_;
    const Ticket::Cancels cancels_ = std::make_shared<std::atomic<std::uint64_t>>(0);
    std::unique_ptr<model::Engine> engine_;
    // Used only by the thread.
    std::unique_ptr<decode::Scheduler> scheduler_;
    Open open_;  // in order of arrival
    std::uint64_t seen_cancels_ = 0;

    std::mutex mutex_;
    std::condition_variable work_;
    std::deque<Job> jobs_;
    TicketPtr alone_;  // of the job that has the engine alone
    bool leaving_ = false;
    std::thread thread_;
};

// Destroys a worker, but not in a fork: a fork has none of its threads, and waiting for one, or
// destroying what one waited for, would never end.
struct EndWorker {
    void operator()(Worker* worker) const {
        if (worker->here()) delete worker;
    }
};
using WorkerPtr = std::unique_ptr<Worker, EndWorker>;

}  // namespace mr::python
