// The line that shows how far a pull is: bytes, rate, time left.
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
    Meter(std::uint64_t total, bool quiet);
    ~Meter() { remove(); }
    Meter(const Meter&) = delete;
    Meter& operator=(const Meter&) = delete;

    // So many bytes are to be found or to come from here on.
    void begin(std::uint64_t total) {
        total_ = total;
        done_ = 0;
    }
    // The file that comes now, by a name from outside.
    void show(std::string_view name);
    // Bytes that have come over the network, and those that were here before.
    void add(std::uint64_t bytes);
    void found(std::uint64_t bytes);
    // They are of no use: they come again.
    void drop(std::uint64_t bytes);
    void remove();

    std::uint64_t fetched() const { return fetched_; }
    // Bytes per second over the last seconds; 0: not known yet.
    double rate() const;
    std::string line() const;

  private:
    using Clock = std::chrono::steady_clock;
    void draw();

    std::uint64_t total_, done_ = 0, fetched_ = 0;
    bool enabled_, drawn_ = false;
    std::string name_;
    std::deque<std::pair<Clock::time_point, std::uint64_t>> marks_;  // fetched_ at that time
    Clock::time_point last_{};
};

}  // namespace mr::pull
