// Keeps the rate of a link, with a host thread.
//
// Streams signal with a word in memory that a phase has begun, and wait on another word until the
// rounds of the phase are released: stream memory operations, which occupy no multiprocessor. A
// kernel that waits for the clock would occupy one, and a GEMM with one block per multiprocessor
// would need a second turn. Host functions in a stream run on a driver thread, whose delays a link
// does not have.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace mr::overlap {

class Pacer {
  public:
    // Both words are 0 now and must outlive the pacer; a device may read and write them.
    Pacer(std::uint32_t* started, std::uint32_t* released);
    // Releases everything announced.
    ~Pacer();
    Pacer(const Pacer&) = delete;
    Pacer& operator=(const Pacer&) = delete;

    // A phase begins when *started has reached `start`, and the link is free. Round k (from 0) is
    // over, and round k + 1 may begin, when *released has reached first + k + 1. Both words count
    // up and wrap around.
    struct Ticket {
        std::uint32_t start = 0, first = 0;
    };
    // Phases begin in the order of calls. times: nanoseconds per round.
    Ticket announce(std::span<const std::uint64_t> times);

  private:
    using Clock = std::chrono::steady_clock;
    struct Phase {
        Ticket ticket;
        std::vector<std::uint64_t> times;
    };
    void work();
    void pace(const Phase& phase);
    bool stopped();

    std::uint32_t* started_;
    std::uint32_t* released_;
    Ticket next_{1, 0};
    Clock::time_point free_{};  // when the link is free
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Phase> phases_;
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace mr::overlap
