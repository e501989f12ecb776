// The line that shows how far a pull is: bytes, rate, time left; or what it waits for.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

namespace mr::pull {

// "model.safetensors  1.20 of 4.98 GB (24%)  45.2 MB/s  1:23 min left". On a terminal alone.
class Meter {
  public:
    explicit Meter(bool quiet);
    ~Meter() { remove(); }
    Meter(const Meter&) = delete;
    Meter& operator=(const Meter&) = delete;

    // So many bytes are to be found or to come from here on. Before, there are no numbers to draw.
    void begin(std::uint64_t total) {
        total_ = total;
        done_ = 0;
    }
    // The file that comes now, by a name from outside.
    void show(std::string_view name);
    // A request begins: the time until its first bytes is no part of the rate.
    void pause() { flowing_ = false; }
    // Bytes that have come over the network, and those that were here before.
    void add(std::uint64_t bytes);
    void found(std::uint64_t bytes);
    // They are of no use: they come again.
    void drop(std::uint64_t bytes);
    // Call it again and again while no bytes come. `what`, which is done instead, is drawn once
    // that has lasted for two seconds.
    void idle(std::string_view what);
    void remove();
    // cli::remark, on a row of its own.
    void remark(std::string_view line);

    std::uint64_t fetched() const { return fetched_; }
    // Something of the model is here: the same command continues.
    bool began() const { return fetched_ > 0 || done_ > 0; }

  private:
    using Clock = std::chrono::steady_clock;
    void draw();
    bool due();
    // Bytes per second over the last seconds; 0: not known yet.
    double rate() const;
    std::string line() const;

    const bool enabled_;
    bool drawn_ = false, flowing_ = false;
    std::uint64_t total_ = 0, done_ = 0, fetched_ = 0;
    std::string name_;
    // A clock that goes only while an answer's bytes come, what came by it, and both over time.
    Clock::duration flow_{};
    std::uint64_t flowed_ = 0;
    std::deque<std::pair<Clock::duration, std::uint64_t>> marks_{{flow_, flowed_}};
    Clock::time_point moved_ = Clock::now(), last_{};
};

}  // namespace mr::pull
