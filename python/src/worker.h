// An engine and the one thread that drives it: any number of threads ask it, each waits for what it
// asked for. Generations share the passes of one scheduler; what needs the engine for itself waits
// until those before it are over.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "decode/generate.h"
#include "decode/scheduler.h"
#include "model/engine.h"

namespace mr::python {

// What was asked for, from both sides: the worker fills it, the caller waits for it.
class Ticket {
  public:
    // Waits at most so many seconds until it has ended, or has text where that is wanted too.
    bool wait(double seconds, bool text);
    std::string take_text();  // what has come since it was taken last
    bool ended();
    // Throws what ended it, where an error did.
    void check();
    void cancel() { stop_ = true; }
    bool cancelled() const { return stop_; }

    decode::Generated made;  // of a generation, once it has ended

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
};
using TicketPtr = std::shared_ptr<Ticket>;

class Worker {
  public:
    // Has the engine for itself, and may put another in its place.
    using Body = std::function<void(std::unique_ptr<model::Engine>& engine, Ticket& ticket)>;

    explicit Worker(std::unique_ptr<model::Engine> engine);
    // Calls that are still going on end with an Error.
    ~Worker();
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    // `streams`: text goes to the ticket as it comes. `on_host`: Scheduler::guess_on_host().
    TicketPtr generate(std::vector<std::int32_t> prompt, decode::GenerateOptions options,
                       bool streams, bool on_host);
    TicketPtr alone(Body body);
    // Whether this is the process that the worker lives in.
    bool here() const;

  private:
    struct Job {
        TicketPtr ticket;
        std::vector<std::int32_t> prompt;
        decode::GenerateOptions options;
        bool streams = false, on_host = false;
        Body body;  // of one that runs alone
    };
    using Open = std::map<decode::Scheduler::Id, TicketPtr>;

    TicketPtr put(Job job);
    void drive();
    bool next_jobs(bool idle, std::vector<Job>& out);
    void begin(Job& job);
    void run_alone(Job& job);
    void step();
    void take_ended();

    const pid_t process_;
    std::unique_ptr<model::Engine> engine_;
    // The thread's own.
    std::unique_ptr<decode::Scheduler> scheduler_;
    Open open_;

    std::mutex mutex_;
    std::condition_variable work_;
    std::deque<Job> jobs_;
    TicketPtr alone_;  // of the job that has the engine for itself
    bool leaving_ = false;
    std::thread thread_;
};

// Destroys a worker, but not in a fork: that has none of its threads, and to wait for one, or to
// destroy what one was waiting for, would never end.
struct EndWorker {
    void operator()(Worker* worker) const {
        if (worker->here()) delete worker;
    }
};
using WorkerPtr = std::unique_ptr<Worker, EndWorker>;

}  // namespace mr::python
