#include "cli/bench/serve_figures.h"

#include <fmt/format.h>

#include <chrono>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cli/terminal.h"
#include "decode/measure_batch.h"

namespace mr::cli {
namespace {

Json quantiles(const std::vector<double>& seconds) {
    Json out;
    for (const auto& [name, share] : {std::pair("p50", 0.5), {"p95", 0.95}, {"p99", 0.99}}) {
        out[name] = 1e3 * decode::quantile(seconds, share);
    }
    return out;
}

}  // namespace

Counts counts_of(const ModelServer& server) {
    const serve::Metrics& m = server.metrics();
    // The last pass is counted after its tokens are sent.
    for (int i = 0; i < 1000 && m.running > 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {m.passes,       m.generated_tokens, m.prompt_tokens,
            m.found_tokens, m.in_queue.count(), m.in_queue.total()};
}

Json level_json(const bench::LoadPlan& plan, const bench::LoadMeasured& m) {
    const auto rate = [&](std::int64_t tokens) {
        return m.seconds > 0 ? static_cast<double>(tokens) / m.seconds : 0;
    };
    Json row;
    row[plan.rate > 0 ? "rate" : "clients"] = plan.rate > 0 ? Json(plan.rate) : Json(plan.clients);
    row["requests"] = m.requests;
    row["failed"] = m.failed;
    if (m.failed > 0) row["first_failure"] = m.failure;
    row["seconds"] = m.seconds;
    row["input_tokens"] = m.input;
    row["output_tokens"] = m.output;
    row["output_tok_s"] = rate(m.output);
    row["total_tok_s"] = rate(m.input + m.output);
    row["first_token_ms"] = quantiles(m.first_token);
    row["per_token_ms"] = quantiles(m.per_token);
    row["gap_ms"] = quantiles(m.gaps);
    const double usual = decode::quantile(m.gaps, 0.5);
    row["gap_p99_to_p50"] = usual > 0 ? Json(decode::quantile(m.gaps, 0.99) / usual) : Json();
    return row;
}

Json server_json(const Counts& before, const Counts& after) {
    const auto share = [](double part, double all) { return all > 0 ? part / all : 0; };
    const auto passes = static_cast<double>(after.passes - before.passes);
    return {
        {"passes", after.passes - before.passes},
        {"rows_per_pass", share(static_cast<double>(after.generated - before.generated), passes)},
        {"found_percent", 100 * share(static_cast<double>(after.found - before.found),
                                      static_cast<double>(after.prompt - before.prompt))},
        {"queue_ms", 1e3 * share(after.in_queue - before.in_queue,
                                 static_cast<double>(after.queued - before.queued))}};
}

std::string level_title(const std::string& model, const std::string& where,
                        const bench::LoadShape& shape) {
    return fmt::format(
        "serve {}: {}, {} {} in, {} tokens out\n{:>8}{:>7}{:>5}{:>19}{:>27}{:>24}{:>32}{:>9}{:>8}\n"
        "{:>8}{:>7}{:>5}{:>10}{:>9}{:>11}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}{:>9}{:>8}\n",
        one_line(model), one_line(where), shape.input, shape.text ? "words" : "tokens",
        shape.output, "", "", "", "tok/s", "first token, ms", "ms per token",
        "between two tokens, ms", "rows per", "queue,", "clients", "asked", "fail", "output",
        "total", "p50", "p95", "p99", "p50", "p95", "p99", "p50", "p95", "p99", "p99/p50", "pass",
        "ms");
}

std::string level_text(const Json& row) {
    const bool open = row.contains("rate");
    std::string text =
        fmt::format("{:>8}{:>7}{:>5}{:>10.1f}{:>9.1f}",
                    open ? fmt::format("{:g}/s", row["rate"].get<double>())
                         : std::to_string(row["clients"].get<int>()),
                    row["requests"].get<int>(), row["failed"].get<int>(),
                    row["output_tok_s"].get<double>(), row["total_tok_s"].get<double>());
    for (const char* const name : {"first_token_ms", "per_token_ms", "gap_ms"}) {
        const bool first = std::string_view(name) == "first_token_ms";
        for (const Json& value : row[name]) {
            const bool begins = first && &value == &row[name].front();
            text += fmt::format("{:>{}.{}f}", value.get<double>(), begins ? 11 : 8, first ? 1 : 2);
        }
    }
    const Json& ratio = row["gap_p99_to_p50"];
    text +=
        ratio.is_null() ? fmt::format("{:>8}", "-") : fmt::format("{:>8.2f}", ratio.get<double>());
    if (row.contains("server")) {
        text += fmt::format("{:>9.1f}{:>8.1f}", row["server"]["rows_per_pass"].get<double>(),
                            row["server"]["queue_ms"].get<double>());
    }
    text += '\n';
    if (row.contains("first_failure")) {
        text += fmt::format("  the first that failed: {}\n",
                            one_line(row["first_failure"].get<std::string>()));
    }
    return text;
}

}  // namespace mr::cli
