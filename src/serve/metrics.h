// Counters for an operator, which any thread may add to, in Prometheus' text format. They have
// vLLM's names where the meaning is the same, so that its dashboards work.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

namespace mr::serve {

// Counts of values in buckets with fixed bounds.
class Histogram {
  public:
    using Bounds = std::array<double, 17>;
    static constexpr Bounds kSeconds{0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3,
                                     0.6,   1.0,    2.5,   5.0,  10.0, 30.0, 60.0, 120.0};
    static constexpr Bounds kTokens{1,   2,   5,   10,  20,  50,  100, 200, 500,
                                    1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5};

    explicit Histogram(const Bounds& bounds = kSeconds) : bounds_(bounds) {}

    void add(double value);
    std::uint64_t count() const;
    double total() const;  // sum of all values
    std::string text(std::string_view name, std::string_view label) const;

  private:
    const Bounds& bounds_;  // one of those above
    std::array<std::atomic<std::uint64_t>, std::tuple_size_v<Bounds> + 1> counts_{};
    std::atomic<std::uint64_t> millionths_ = 0;  // of the sum
};

inline constexpr std::string_view kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

struct Metrics {
    using Counter = std::atomic<std::uint64_t>;

    // Gauges, as of the engine's last step.
    std::atomic<std::int64_t> running = 0, waiting = 0, sequences = 0, queue_limit = 0;
    std::atomic<std::int64_t> cache_tokens = 0, cache_free = 0;
    // Counters.
    Counter prompt_tokens = 0, found_tokens = 0, generated_tokens = 0, passes = 0;
    Counter ended_stop = 0, ended_length = 0, ended_abort = 0, ended_error = 0;
    Counter refused_full = 0, timed_out = 0, embedded_texts = 0;
    std::array<Counter, 6> responses{};  // by the first digit of the status; 0: the client left
    Counter bytes_read = 0, flops = 0;   // over all passes, by the contracts of their operations
    Counter decode_bytes_read = 0, decode_nanoseconds = 0;  // passes with rows that decode
    Counter unknown_fields = 0;                             // of requests: they were ignored
    Histogram first_token, between_tokens, whole_request, in_queue;
    Histogram prefill_time, decode_time, inference_time, mean_token_time;  // of texts that ended
    Histogram prompt_length{Histogram::kTokens}, made_length{Histogram::kTokens},
        most_length{Histogram::kTokens};

    std::string text(const std::string& model, std::int64_t connections) const;
};

// What Prometheus' clients say of every process: memory, time, descriptors. What the system does
// not tell is left out.
std::string process_metrics();

}  // namespace mr::serve
