// Counters for an operator, that any thread may add to, as Prometheus' text. Names are vLLM's
// where they mean the same, so that its dashboards work.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace mr::serve {

// Seconds, in buckets of fixed bounds.
class Histogram {
  public:
    static constexpr std::array kBounds{0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3,
                                        0.6,   1.0,    2.5,   5.0,  10.0, 30.0, 60.0, 120.0};

    void add(double seconds);
    std::uint64_t count() const;
    double seconds() const;  // of all that were added
    std::string text(std::string_view name, std::string_view label) const;

  private:
    std::array<std::atomic<std::uint64_t>, kBounds.size() + 1> counts_{};
    std::atomic<std::uint64_t> microseconds_ = 0;
};

struct Metrics {
    using Counter = std::atomic<std::uint64_t>;

    // Gauges, as of the engine's last step.
    std::atomic<std::int64_t> running = 0, waiting = 0, sequences = 0, queue_limit = 0;
    std::atomic<std::int64_t> cache_tokens = 0, cache_free = 0;
    // Counters.
    Counter prompt_tokens = 0, found_tokens = 0, generated_tokens = 0, passes = 0;
    Counter ended_stop = 0, ended_length = 0, ended_abort = 0, ended_error = 0;
    Counter refused_full = 0, timed_out = 0, embedded_texts = 0;
    std::array<Counter, 6> responses{};  // by the first digit of their status; 0: the client left
    Histogram first_token, between_tokens, whole_request, in_queue;

    std::string text(const std::string& model, std::int64_t connections) const;
};

}  // namespace mr::serve
