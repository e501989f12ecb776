#include "observe/run_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "observe/units.h"

namespace mr::observe {
namespace {

double as_double(std::uint64_t value) { return static_cast<double>(value); }

}  // namespace

double RunReport::prefill_tokens_per_second() const {
    return ratio(static_cast<double>(prefill_tokens), prefill_seconds);
}
double RunReport::tokens_per_second() const {
    return ratio(static_cast<double>(decode_steps), decode_seconds);
}
double RunReport::bytes_per_token() const {
    return ratio(as_double(decode.total().bytes_read), static_cast<double>(decode_steps));
}
double RunReport::bytes_per_second() const {
    return ratio(as_double(decode.total().bytes_read), decode_seconds);
}
double RunReport::fraction_of_bandwidth() const {
    return ratio(bytes_per_second(), read_bandwidth);
}

bool fits(const RunReport& report, const RunPlace& place) {
    return report.bytes_per_token() < as_double(place.cache_bytes);
}

bool disturbed(const RunReport& report, const RunPlace& place) {
    return !report.stated && report.fraction_of_bandwidth() > 1 && !fits(report, place);
}

std::string summary_line(const RunReport& report, const RunPlace& place) {
    std::string line;
    if (report.decode_steps > 0) {
        line = fmt::format("{} tok/s, {} GB/s", figure(report.tokens_per_second()),
                           figure(report.bytes_per_second() / 1e9));
        if (disturbed(report, place)) {
            line += fmt::format(
                ", more than the {} GB/s {} read when that was measured: other work disturbed it",
                figure(report.read_bandwidth / 1e9), place.reader);
        } else if (report.stated) {
            line += fmt::format(", {:.0f}% of the {} GB/s that {} is said to read",
                                100 * report.fraction_of_bandwidth(),
                                figure(report.read_bandwidth / 1e9), place.reader);
        } else if (report.read_bandwidth > 0) {
            line += fmt::format(", {:.0f}% of the {} GB/s {} reads",
                                100 * report.fraction_of_bandwidth(),
                                figure(report.read_bandwidth / 1e9), place.reader);
        }
        line += fmt::format(", {} per token", short_bytes(report.bytes_per_token()));
        if (fits(report, place)) {
            line += fmt::format(" (it fits into {})", place.cache);
        }
        line += fmt::format(
            "; {} in {:.2f} s",
            counted(report.decode_steps, report.passes || report.together ? "token" : "step"),
            report.decode_seconds);
    }
    if (report.prefill_tokens > 0) {
        line += fmt::format("{}prompt{} {}", line.empty() ? "" : "; ", report.together ? "s" : "",
                            counted(report.prefill_tokens, "token"));
        // A pass with prompts and answers counts as decode, so prompts have no rate of their own.
        if (!report.together) {
            line += fmt::format(" at {} tok/s", figure(report.prefill_tokens_per_second()));
        }
    }
    line += fmt::format("{}loaded in {:.2f} s", line.empty() ? "" : "; ", report.load_seconds);
    return line;
}

std::string op_table(const Ledger& ledger) {
    const OpRecord total = ledger.total();
    std::string table = fmt::format("{:<11}{:>9}{:>11}{:>8}{:>11}{:>9}{:>10}\n", "op", "calls",
                                    "ms", "share", "bytes", "GB/s", "GFLOP/s");
    const auto row = [&](const char* name, const OpRecord& op) {
        table += fmt::format("{:<11}{:>9}{:>11.3f}{:>7.1f}%{:>11}{:>9.2f}{:>10.2f}\n", name,
                             op.calls, op.seconds * 1e3, 100 * ratio(op.seconds, total.seconds),
                             short_bytes(as_double(op.bytes())),
                             ratio(as_double(op.bytes()), op.seconds) / 1e9,
                             ratio(as_double(op.flops), op.seconds) / 1e9);
    };
    for (std::size_t i = 0; i < Ledger::kOps; ++i) {
        const auto kind = static_cast<OpKind>(i);
        if (ledger.op(kind).calls) row(op_name(kind), ledger.op(kind));
    }
    row("all", total);
    return table;
}

nlohmann::ordered_json decoded_json(std::int64_t tokens,
                                    const std::optional<std::int64_t>& passes) {
    if (!passes) return {{"decode_steps", tokens}};
    return {{"decode_tokens", tokens},
            {"passes", *passes},
            {"tokens_per_pass", ratio(static_cast<double>(tokens), static_cast<double>(*passes))}};
}

nlohmann::ordered_json report_json(const RunReport& report, const RunPlace& place) {
    nlohmann::ordered_json json = {{"load_s", report.load_seconds},
                                   {"prompt_tokens", report.prompt_tokens},
                                   {"prefill_tokens", report.prefill_tokens},
                                   {"prefill_s", report.prefill_seconds},
                                   {"prefill_tok_s", report.prefill_tokens_per_second()}};
    json.update(decoded_json(report.decode_steps, report.passes));
    json.update({{"decode_s", report.decode_seconds},
                 {"tok_s", report.tokens_per_second()},
                 {"gb_s", report.bytes_per_second() / 1e9},
                 {"read_bandwidth_gb_s", nullptr},
                 {"percent_of_bandwidth", nullptr},
                 {"bytes_per_token", report.bytes_per_token()}});
    if (report.read_bandwidth > 0) {
        json["read_bandwidth_gb_s"] = report.read_bandwidth / 1e9;
        if (!disturbed(report, place)) {
            json["percent_of_bandwidth"] = 100 * report.fraction_of_bandwidth();
        }
    }
    return json;
}

nlohmann::ordered_json ledger_json(const Ledger& ledger) {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i < Ledger::kOps; ++i) {
        const auto kind = static_cast<OpKind>(i);
        const OpRecord& op = ledger.op(kind);
        if (!op.calls) continue;
        json[op_name(kind)] = {{"calls", op.calls},
                               {"seconds", op.seconds},
                               {"bytes_read", op.bytes_read},
                               {"bytes_written", op.bytes_written},
                               {"flops", op.flops}};
    }
    json["host_to_device_bytes"] = ledger.host_to_device().bytes;
    json["device_to_host_bytes"] = ledger.device_to_host().bytes;
    return json;
}

}  // namespace mr::observe
