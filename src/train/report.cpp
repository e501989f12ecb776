#include "train/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "observe/chart_svg.h"
#include "observe/html.h"
#include "observe/roofline_svg.h"
#include "observe/units.h"

namespace mr::train {
namespace {

using observe::Chart;
using observe::figure;
using observe::html_escaped;

// What the steps add up to.
struct Totals {
    std::int64_t skipped = 0;
    double seconds = 0, wait = 0, tokens = 0;
    const StepMetrics *last_val = nullptr, *best_val = nullptr;

    double tokens_per_second() const { return seconds > 0 ? tokens / seconds : 0; }
};

Totals add_up(const RunDescription& run, std::span<const StepMetrics> steps) {
    Totals sum;
    for (const StepMetrics& m : steps) {
        sum.skipped += m.skipped;
        sum.seconds += m.seconds;
        sum.wait += m.data_wait_seconds;
        sum.tokens += static_cast<double>(run.tokens_per_step);
        if (!m.val_loss || !std::isfinite(*m.val_loss)) continue;
        sum.last_val = &m;
        if (!sum.best_val || *m.val_loss < *sum.best_val->val_loss) sum.best_val = &m;
    }
    return sum;
}

std::string count_text(double count) {
    if (count >= 1e9) return fmt::format("{:.2f}G", count / 1e9);
    if (count >= 1e6) return fmt::format("{:.1f}M", count / 1e6);
    if (count >= 1e4) return fmt::format("{:.1f}k", count / 1e3);
    return fmt::format("{:.0f}", count);
}

std::string summary(const RunDescription& run, std::span<const StepMetrics> steps,
                    const Totals& sum) {
    if (steps.empty()) return "no step yet";
    const StepMetrics& last = steps.back();
    std::string line = fmt::format("step {}", last.step);
    if (run.steps > 0) line += fmt::format(" of {}", run.steps);
    line += fmt::format("; loss {:.4f}", last.loss);
    if (sum.last_val) {
        line += fmt::format("; validation {:.4f} at step {}", *sum.last_val->val_loss,
                            sum.last_val->step);
        if (sum.last_val->bits_per_byte) {
            line += fmt::format(", {:.4f} bits per byte", *sum.last_val->bits_per_byte);
        }
        if (sum.best_val != sum.last_val) {
            line +=
                fmt::format(" (lowest {:.4f} at {})", *sum.best_val->val_loss, sum.best_val->step);
        }
        if (run.entropy > 0) {
            line += fmt::format(", {:.4f} above the corpus's entropy of {:.4f}",
                                *sum.last_val->val_loss - run.entropy, run.entropy);
        }
    }
    if (run.tokens_per_step > 0) {
        line +=
            fmt::format("; {} tokens in {}, {} tok/s", count_text(sum.tokens),
                        observe::long_seconds(sum.seconds), count_text(sum.tokens_per_second()));
    }
    const double rate = sum.tokens_per_second() * run.flops_per_token;
    if (rate > 0) line += fmt::format(", {} TFLOP/s", figure(rate / 1e12));
    if (rate > 0 && run.matrix_peak > 0) {
        line += fmt::format(" ({:.1f}% of the matrix peak)", 100 * rate / run.matrix_peak);
    }
    line += fmt::format("; data wait {:.2f}%", sum.seconds > 0 ? 100 * sum.wait / sum.seconds : 0);
    if (sum.skipped > 0) line += fmt::format("; {} steps skipped", sum.skipped);
    return line;
}

template <typename Value>
Chart::Curve curve(const char* name, int hue, std::span<const StepMetrics> steps, Value value) {
    Chart::Curve all{name, hue, {}, false};
    all.points.reserve(steps.size());
    for (const StepMetrics& m : steps) all.points.emplace_back(m.step, value(m));
    return all;
}

std::string loss_chart(const RunDescription& run, std::span<const StepMetrics> steps) {
    Chart chart{.title = "loss by step", .x_name = "step", .may_be_log = true};
    chart.curves.push_back(curve("loss", 210, steps, [](const StepMetrics& m) { return m.loss; }));
    Chart::Curve val{"validation", 30, {}, true};
    for (const StepMetrics& m : steps) {
        if (m.val_loss) val.points.emplace_back(m.step, *m.val_loss);
    }
    chart.curves.push_back(std::move(val));
    if (run.entropy > 0) {
        chart.levels.push_back(
            {fmt::format("entropy of the corpus {:.4f}", run.entropy), run.entropy});
    }
    return "<h2>Loss, nats a token</h2>\n" + chart_svg(chart);
}

template <typename Value>
std::string small_chart(const char* head, const char* name, int hue, bool from_zero, bool log,
                        std::span<const StepMetrics> steps, Value value) {
    Chart chart{.title = head, .x_name = "step", .from_zero = from_zero, .may_be_log = log};
    chart.curves.push_back(curve(name, hue, steps, value));
    const std::string svg = chart_svg(chart);
    return svg.empty() ? "" : fmt::format("<h2>{}</h2>\n{}", head, svg);
}

std::string charts(const RunDescription& run, std::span<const StepMetrics> steps) {
    if (steps.empty()) return "";
    std::string html = loss_chart(run, steps);
    html += small_chart("Learning rate", "learning rate", 150, true, false, steps,
                        [](const StepMetrics& m) { return m.lr; });
    html += small_chart("Gradient norm, before clipping", "gradient norm", 275, false, true, steps,
                        [](const StepMetrics& m) { return m.grad_norm; });
    html += small_chart("Throughput", "tokens a second", 185, true, false, steps,
                        [](const StepMetrics& m) { return m.tokens_per_second; });
    const bool waited = std::any_of(steps.begin(), steps.end(),
                                    [](const StepMetrics& m) { return m.data_wait_seconds > 0; });
    if (waited) {
        html += small_chart("Data wait, per cent of a step", "data wait", 5, true, false, steps,
                            [](const StepMetrics& m) {
                                return m.seconds > 0 ? 100 * m.data_wait_seconds / m.seconds : 0;
                            });
    }
    return html;
}

std::string op_rows(const Ledger& ledger, std::int64_t steps) {
    const OpRecord all = ledger.total();
    if (all.calls == 0) return "";
    std::string html =
        "<h2>Stages</h2>\n<div class=\"wide\"><table><tr><th>operation<th>calls<th>time<th>share"
        "<th>bytes<th>GB/s<th>FLOPs<th>TFLOP/s</tr>\n";
    const auto rate = [](std::uint64_t count, double seconds) {
        return seconds > 0 ? static_cast<double>(count) / seconds : 0;
    };
    const auto row = [&](const char* name, const OpRecord& op, bool sum) {
        const double share = all.seconds > 0 ? op.seconds / all.seconds : 0;
        html += fmt::format(
            "<tr{}><td>{}{}<td>{}<td>{}<td>{:.1f}%<span class=\"bar\" style=\"width:{:.1f}px\">"
            "</span><td>{}<td>{}<td>{}<td>{}</tr>\n",
            sum ? " class=\"sum\"" : "",
            sum ? ""
                : fmt::format("<span class=\"key\" style=\"background:hsl({} 60% 55%)\">"
                              "</span>",
                              observe::stage_hue(name)),
            name, op.calls, observe::short_seconds(op.seconds), 100 * share, sum ? 0 : 80 * share,
            observe::short_bytes(static_cast<double>(op.bytes())),
            figure(rate(op.bytes(), op.seconds) / 1e9), count_text(static_cast<double>(op.flops)),
            figure(rate(op.flops, op.seconds) / 1e12));
    };
    // The longest first.
    std::vector<OpKind> kinds;
    for (std::size_t i = 0; i < Ledger::kOps; ++i) {
        if (ledger.op(static_cast<OpKind>(i)).calls) kinds.push_back(static_cast<OpKind>(i));
    }
    std::stable_sort(kinds.begin(), kinds.end(), [&](OpKind a, OpKind b) {
        return ledger.op(a).seconds > ledger.op(b).seconds;
    });
    for (const OpKind kind : kinds) row(op_name(kind), ledger.op(kind), false);
    row("all", all, true);
    return html + fmt::format(
                      "</table></div>\n<p class=\"dim\">Bytes and FLOPs by the operations' "
                      "contracts, {}. Copied to the device {}, to the host {}.</p>\n",
                      steps > 0 ? fmt::format("of {} {}", steps, steps == 1 ? "step" : "steps")
                                : "since this process started",
                      observe::short_bytes(static_cast<double>(ledger.host_to_device().bytes)),
                      observe::short_bytes(static_cast<double>(ledger.device_to_host().bytes)));
}

std::string fact_rows(const RunDescription& run) {
    std::string rows;
    const auto row = [&](std::string_view name, std::string_view value) {
        if (value.empty()) return;
        rows += fmt::format("<tr><td>{}<td>{}</tr>\n", html_escaped(name), html_escaped(value));
    };
    row("model", run.model);
    row("device", run.device);
    for (const auto& [name, value] : run.facts) row(name, value);
    if (rows.empty()) return "";
    return "<h2>The run</h2>\n<div class=\"wide\"><table>" + rows + "</table></div>\n";
}

}  // namespace

std::string train_page(const RunDescription& run, std::span<const StepMetrics> steps) {
    const Totals sum = add_up(run, steps);
    std::string html = observe::html_begin(run.name);
    html += fmt::format("<h1>{}</h1>\n<p>{}</p>\n", html_escaped(run.name),
                        html_escaped(summary(run, steps, sum)));
    html += charts(run, steps);
    html += op_rows(run.ledger, run.ledger_steps);
    if (!run.plan.items().empty()) html += observe::plan_html(run.plan, run.memory_taken);
    html += fact_rows(run);
    if (!run.command.empty()) {
        html += fmt::format("<h2>Command</h2>\n<pre>{}</pre>\n", html_escaped(run.command));
    }
    if (!run.samples.empty()) html += "<h2>Samples</h2>\n";
    for (auto sample = run.samples.rbegin(); sample != run.samples.rend(); ++sample) {
        html += fmt::format("<p class=\"dim\">step {}</p>\n<pre>{}</pre>\n", sample->step,
                            html_escaped(sample->text));
    }
    return html + "</body>\n</html>\n";
}

void write_train_report(const std::string& path, const RunDescription& run,
                        std::span<const StepMetrics> steps) {
    observe::write_page(path, train_page(run, steps));
}

}  // namespace mr::train
