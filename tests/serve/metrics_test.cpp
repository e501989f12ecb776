// The text of /metrics, and the names that dashboards for vLLM use.
#include "serve/metrics.h"

#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <vector>

namespace mr::serve {
namespace {

bool has(const std::string& text, const std::string& line) {
    return text.find("\n" + line + "\n") != std::string::npos;
}

TEST(Metrics, AHistogramCountsWhatIsAtMostABound) {
    Histogram seconds;
    for (const double value : {0.0005, 0.001, 0.5, 1000.0}) seconds.add(value);
    const std::string text = "\n" + seconds.text("t", "a=\"b\"");
    EXPECT_TRUE(has(text, "t_bucket{a=\"b\",le=\"0.001\"} 2")) << text;
    EXPECT_TRUE(has(text, "t_bucket{a=\"b\",le=\"0.3\"} 2")) << text;
    EXPECT_TRUE(has(text, "t_bucket{a=\"b\",le=\"0.6\"} 3")) << text;
    EXPECT_TRUE(has(text, "t_bucket{a=\"b\",le=\"120\"} 3")) << text;
    EXPECT_TRUE(has(text, "t_bucket{a=\"b\",le=\"+Inf\"} 4")) << text;
    EXPECT_TRUE(has(text, "t_sum{a=\"b\"} 1000.5015")) << text;
    EXPECT_TRUE(has(text, "t_count{a=\"b\"} 4")) << text;
    Histogram tokens(Histogram::kTokens);
    tokens.add(1500);
    EXPECT_TRUE(has("\n" + tokens.text("n", "a=\"b\""), "n_bucket{a=\"b\",le=\"2000\"} 1"));
}

TEST(Metrics, DashboardsFindTheirNames) {
    Metrics metrics;
    metrics.cache_tokens = 400;
    metrics.cache_free = 100;
    metrics.running = 3;
    metrics.between_tokens.add(0.02);
    const std::string text = metrics.text("a \"model\"", 2);
    const std::string label = "{model_name=\"a \\\"model\\\"\"} ";
    for (const char* const line : {"vllm:num_requests_running|3",
                                   "vllm:num_requests_waiting|0",
                                   "vllm:kv_cache_usage_perc|0.75",
                                   "vllm:gpu_cache_usage_perc|0.75",
                                   "vllm:num_preemptions_total|0",
                                   "vllm:prompt_tokens_total|0",
                                   "vllm:generation_tokens_total|0",
                                   "vllm:prefix_cache_queries_total|0",
                                   "vllm:prefix_cache_hits_total|0",
                                   "vllm:time_to_first_token_seconds_count|0",
                                   "vllm:inter_token_latency_seconds_count|1",
                                   "vllm:time_per_output_token_seconds_count|1",
                                   "vllm:request_time_per_output_token_seconds_count|0",
                                   "vllm:e2e_request_latency_seconds_count|0",
                                   "vllm:request_queue_time_seconds_sum|0",
                                   "vllm:request_prefill_time_seconds_sum|0",
                                   "vllm:request_decode_time_seconds_sum|0",
                                   "vllm:request_inference_time_seconds_sum|0",
                                   "vllm:request_prompt_tokens_count|0",
                                   "vllm:request_generation_tokens_count|0",
                                   "vllm:request_max_num_generation_tokens_count|0",
                                   "millrace_bytes_read_total|0",
                                   "millrace_flops_total|0",
                                   "millrace_connections|2"}) {
        std::string wanted(line);
        wanted.replace(wanted.find('|'), 1, label);
        EXPECT_TRUE(has(text, wanted)) << wanted << " is not in:\n" << text;
    }
    EXPECT_TRUE(has(text,
                    "vllm:request_success_total{model_name=\"a \\\"model\\\"\","
                    "finished_reason=\"stop\"} 0"));
    // Every name is declared once, before its values.
    for (std::size_t at = text.find("# TYPE "); at != std::string::npos;
         at = text.find("# TYPE ", at + 1)) {
        const std::string line = text.substr(at, text.find('\n', at) - at);
        EXPECT_EQ(text.find(line + "\n", at + 1), std::string::npos) << line;
    }
}

double metric_in(const std::string& text, const std::string& name) {
    const std::size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::strtod(text.c_str() + at + name.size() + 2, nullptr);
}

// The names that Prometheus' own clients use, and values that change as they should.
TEST(Metrics, TheProcessHasItsOwn) {
    const std::string before = process_metrics();
    const auto now = static_cast<double>(std::time(nullptr));
    EXPECT_NEAR(metric_in(before, "process_start_time_seconds"), now, 3600);
    EXPECT_LE(metric_in(before, "process_start_time_seconds"), now + 2);
    EXPECT_GT(metric_in(before, "process_resident_memory_bytes"), 1 << 20);
    EXPECT_LT(metric_in(before, "process_resident_memory_bytes"),
              metric_in(before, "process_virtual_memory_bytes"));
    EXPECT_GE(metric_in(before, "process_threads"), 1);
    EXPECT_GE(metric_in(before, "process_max_fds"), metric_in(before, "process_open_fds"));
    std::vector<std::ifstream> open;
    for (int i = 0; i < 10; ++i) open.emplace_back("/proc/self/stat");
    std::vector<char> memory(64 << 20, 'x');
    volatile std::size_t sum = 0;
    const std::clock_t begin = std::clock();
    while (std::clock() - begin < CLOCKS_PER_SEC / 5) sum = sum + memory[sum % memory.size()];
    const std::string after = process_metrics();
    EXPECT_NEAR(metric_in(after, "process_open_fds"), metric_in(before, "process_open_fds") + 10,
                3);
    EXPECT_GT(metric_in(after, "process_resident_memory_bytes"),
              metric_in(before, "process_resident_memory_bytes") + (32 << 20));
    EXPECT_GT(metric_in(after, "process_cpu_seconds_total"),
              metric_in(before, "process_cpu_seconds_total") + 0.1);
    EXPECT_TRUE(Metrics().text("m", 0).find(R"(# TYPE process_open_fds gauge)") !=
                std::string::npos);
}

}  // namespace
}  // namespace mr::serve
