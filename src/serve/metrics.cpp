#include "serve/metrics.h"

#include <fmt/format.h>

#include "formats/json.h"

namespace mr::serve {

void Histogram::add(double seconds) {
    std::size_t i = 0;
    while (i < kBounds.size() && seconds > kBounds[i]) ++i;
    ++counts_[i];
    microseconds_ += seconds > 0 ? static_cast<std::uint64_t>(1e6 * seconds) : 0;
}

std::uint64_t Histogram::count() const {
    std::uint64_t sum = 0;
    for (const auto& count : counts_) sum += count;
    return sum;
}

double Histogram::seconds() const { return 1e-6 * static_cast<double>(microseconds_.load()); }

std::string Histogram::text(std::string_view name, std::string_view label) const {
    std::string out;
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < kBounds.size(); ++i) {
        sum += counts_[i];
        out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, label, kBounds[i], sum);
    }
    sum += counts_.back();
    out += fmt::format("{}_bucket{{{},le=\"+Inf\"}} {}\n", name, label, sum);
    out += fmt::format("{}_sum{{{}}} {}\n", name, label, seconds());
    return out + fmt::format("{}_count{{{}}} {}\n", name, label, sum);
}

std::string Metrics::text(const std::string& model, std::int64_t connections) const {
    // JSON's quotes are Prometheus' as well.
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
    one("vllm:kv_cache_usage_perc", "gauge", "Share of the cache that is reserved; 1: all.",
        tokens > 0 ? 1 - static_cast<double>(free) / static_cast<double>(tokens) : 0.0);
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
    histogram("vllm:e2e_request_latency_seconds", "From the request to the end of its text.",
              whole_request);
    histogram("vllm:request_queue_time_seconds", "From the request until the engine took it.",
              in_queue);
    one("millrace_sequences", "gauge", "Texts that may run together.", sequences.load());
    one("millrace_queue_limit", "gauge", "Texts that may wait.", queue_limit.load());
    one("millrace_cache_tokens", "gauge", "Positions of the cache.", tokens);
    one("millrace_cache_free_tokens", "gauge", "... that could be reserved.", free);
    one("millrace_passes_total", "counter", "Passes of the engine.", passes.load());
    one("millrace_queue_full_total", "counter", "Requests that were answered 429.",
        refused_full.load());
    one("millrace_timed_out_total", "counter", "Requests past their deadline.", timed_out.load());
    one("millrace_embedded_texts_total", "counter", "Texts that were embedded.",
        embedded_texts.load());
    one("millrace_connections", "gauge", "Connections that are open.", connections);
    head("millrace_http_responses_total", "counter", "Answers, by the class of their status.");
    for (std::size_t i = 0; i < responses.size(); ++i) {
        if (i == 1) continue;  // nothing is answered so
        const std::string status = i == 0 ? "left" : fmt::format("{}xx", i);
        out += fmt::format("millrace_http_responses_total{{{},status=\"{}\"}} {}\n", label, status,
                           responses[i].load());
    }
    return out;
}

}  // namespace mr::serve
