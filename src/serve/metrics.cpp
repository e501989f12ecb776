#include "serve/metrics.h"

#include <fmt/format.h>

#include "formats/json.h"

namespace mr::serve {

void Histogram::add(double value) {
    std::size_t i = 0;
    while (i < bounds_.size() && value > bounds_[i]) ++i;
    ++counts_[i];
    millionths_ += value > 0 ? static_cast<std::uint64_t>(1e6 * value) : 0;
}

std::uint64_t Histogram::count() const {
    std::uint64_t sum = 0;
    for (const auto& count : counts_) sum += count;
    return sum;
}

double Histogram::total() const { return 1e-6 * static_cast<double>(millionths_.load()); }

std::string Histogram::text(std::string_view name, std::string_view label) const {
    std::string out;
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < bounds_.size(); ++i) {
        sum += counts_[i];
        out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, label, bounds_[i], sum);
    }
    sum += counts_.back();
    out += fmt::format("{}_bucket{{{},le=\"+Inf\"}} {}\n", name, label, sum);
    out += fmt::format("{}_sum{{{}}} {}\n", name, label, total());
    return out + fmt::format("{}_count{{{}}} {}\n", name, label, sum);
}

std::string Metrics::text(const std::string& model, std::int64_t connections) const {
    // JSON's quoting is valid for Prometheus, too.
    const std::string label = "model_name=" + formats::json_quoted(model);
    std::string out;
    const auto head = [&](std::string_view name, std::string_view kind, std::string_view about) {
        out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, about, name, kind);
    };
    const auto one = [&](std::string_view name, std::string_view kind, std::string_view about,
                         auto value) {
        head(name, kind, about);
        out += fmt::format("{}{{{}}} {}\n", name, label, value);
    };
    const auto histogram = [&](std::string_view name, std::string_view about, const Histogram& of) {
        head(name, "histogram", about);
        out += of.text(name, label);
    };
    const std::int64_t tokens = cache_tokens, free = cache_free;
    one("vllm:num_requests_running", "gauge", "Texts that are being made.", running.load());
    one("vllm:num_requests_waiting", "gauge", "Texts that wait.", waiting.load());
    const double used =
        tokens > 0 ? 1 - static_cast<double>(free) / static_cast<double>(tokens) : 0.0;
    one("vllm:kv_cache_usage_perc", "gauge", "Share of the cache that is reserved; 1: all.", used);
    one("vllm:gpu_cache_usage_perc", "gauge", "The same under its older name.", used);
    one("vllm:num_preemptions_total", "counter", "Texts that lost their pages: none ever does.", 0);
    one("vllm:prompt_tokens_total", "counter", "Tokens of prompts.", prompt_tokens.load());
    one("vllm:generation_tokens_total", "counter", "Tokens that were made.",
        generated_tokens.load());
    one("vllm:prefix_cache_queries_total", "counter", "Tokens of prompts that were looked for.",
        prompt_tokens.load());
    one("vllm:prefix_cache_hits_total", "counter", "... and found in the cache.",
        found_tokens.load());
    head("vllm:request_success_total", "counter", "Texts that ended, by why they did.");
    const std::pair<const char*, std::uint64_t> ends[] = {{"stop", ended_stop},
                                                          {"length", ended_length},
                                                          {"abort", ended_abort},
                                                          {"error", ended_error}};
    for (const auto& [why, count] : ends) {
        out += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", label,
                           why, count);
    }
    histogram("vllm:time_to_first_token_seconds", "From the request to its first token.",
              first_token);
    histogram("vllm:inter_token_latency_seconds", "Between two tokens of a text.", between_tokens);
    histogram("vllm:time_per_output_token_seconds", "The same under its older name.",
              between_tokens);
    histogram("vllm:request_time_per_output_token_seconds",
              "Of a text: its decoding over the tokens behind the first.", mean_token_time);
    histogram("vllm:e2e_request_latency_seconds", "From the request to the end of its text.",
              whole_request);
    histogram("vllm:request_queue_time_seconds", "From the request until the engine took it.",
              in_queue);
    histogram("vllm:request_prefill_time_seconds",
              "From when the engine took a request to its first token.", prefill_time);
    histogram("vllm:request_decode_time_seconds", "From the first token of a text to its last.",
              decode_time);
    histogram("vllm:request_inference_time_seconds", "Both together.", inference_time);
    histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", prompt_length);
    histogram("vllm:request_generation_tokens", "Tokens of a text.", made_length);
    histogram("vllm:request_max_num_generation_tokens", "Tokens that a text may have.",
              most_length);
    one("millrace_sequences", "gauge", "Texts that may run together.", sequences.load());
    one("millrace_queue_limit", "gauge", "Texts that may wait.", queue_limit.load());
    one("millrace_cache_tokens", "gauge", "Positions of the cache.", tokens);
    one("millrace_cache_free_tokens", "gauge", "... that could be reserved.", free);
    one("millrace_passes_total", "counter", "Passes of the engine.", passes.load());
    one("millrace_bytes_read_total", "counter", "Bytes that passes read, by their operations.",
        bytes_read.load());
    one("millrace_flops_total", "counter", "Floating-point operations of passes.", flops.load());
    one("millrace_decode_bytes_read_total", "counter",
        "... of them by passes that make tokens of texts.", decode_bytes_read.load());
    one("millrace_decode_seconds_total", "counter", "Seconds that these passes took.",
        1e-9 * static_cast<double>(decode_nanoseconds.load()));
    one("millrace_unknown_fields_total", "counter", "Fields of requests that were ignored.",
        unknown_fields.load());
    one("millrace_queue_full_total", "counter", "Requests that were answered 429.",
        refused_full.load());
    one("millrace_timed_out_total", "counter", "Requests past their deadline.", timed_out.load());
    one("millrace_embedded_texts_total", "counter", "Texts that were embedded.",
        embedded_texts.load());
    one("millrace_connections", "gauge", "Connections that are open.", connections);
    head("millrace_http_responses_total", "counter", "Answers, by the class of their status.");
    for (std::size_t i = 0; i < responses.size(); ++i) {
        if (i == 1) continue;  // no answer has such a status
        const std::string status = i == 0 ? "left" : fmt::format("{}xx", i);
        out += fmt::format("millrace_http_responses_total{{{},status=\"{}\"}} {}\n", label, status,
                           responses[i].load());
    }
    return out + process_metrics();
}

}  // namespace mr::serve
