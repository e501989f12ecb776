#include "train/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "observe/units.h"

namespace mr::train {
namespace {

using observe::Chart;
using observe::figure;
using observe::Page;
using observe::Table;
using observe::Unit;

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

using Value = double (*)(const StepMetrics&);

Chart::Curve curve(const char* name, std::span<const StepMetrics> steps, Value value) {
    Chart::Curve all{.name = name};
    all.points.reserve(steps.size());
    for (const StepMetrics& m : steps) all.points.emplace_back(m.step, value(m));
    return all;
}

Chart loss_chart(std::span<const StepMetrics> steps) {
    Chart chart{.title = "Loss, nats per token", .x_name = "step", .may_be_log = true};
    chart.curves.push_back(curve("loss", steps, [](const StepMetrics& m) { return m.loss; }));
    Chart::Curve val{.name = "validation", .dots = true};
    for (const StepMetrics& m : steps) {
        if (m.val_loss) val.points.emplace_back(m.step, *m.val_loss);
    }
    chart.curves.push_back(std::move(val));
    return chart;
}

void add_charts(Page& page, std::span<const StepMetrics> steps) {
    if (steps.empty()) return;
    page.add(loss_chart(steps));
    const auto add = [&](const char* title, const char* name, bool from_zero, bool log,
                         Value value) {
        page.add(Chart{.title = title,
                       .x_name = "step",
                       .curves = {curve(name, steps, value)},
                       .from_zero = from_zero,
                       .may_be_log = log});
    };
    add("Learning rate", "learning rate", true, false, [](const StepMetrics& m) { return m.lr; });
    add("Gradient norm, before clipping", "gradient norm", false, true,
        [](const StepMetrics& m) { return m.grad_norm; });
    add("Throughput", "tokens per second", true, false,
        [](const StepMetrics& m) { return m.tokens_per_second; });
    const bool waited = std::any_of(steps.begin(), steps.end(),
                                    [](const StepMetrics& m) { return m.data_wait_seconds > 0; });
    if (waited) {
        add("Data wait, per cent of a step", "data wait", true, false, [](const StepMetrics& m) {
            return 100 * observe::ratio(m.data_wait_seconds, m.seconds);
        });
    }
}

Table op_table(const Ledger& ledger, std::int64_t steps) {
    Table table{.title = "Stages",
                .columns = {{"operation"},
                            {"calls"},
                            {"time", Unit::seconds},
                            {"share", Unit::share},
                            {"bytes", Unit::bytes},
                            {"GB/s", Unit::figure},
                            {"FLOPs", Unit::count},
                            {"TFLOP/s", Unit::figure}},
                .keys = true};
    const OpRecord all = ledger.total();
    if (all.calls == 0) return table;
    const auto row = [&](const char* name, const OpRecord& op, bool sum) {
        table.rows.push_back(
            {{name, op.calls, op.seconds, observe::ratio(op.seconds, all.seconds), op.bytes(),
              observe::ratio(static_cast<double>(op.bytes()), op.seconds) / 1e9, op.flops,
              observe::ratio(static_cast<double>(op.flops), op.seconds) / 1e12},
             sum});
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
    table.notes.push_back(fmt::format(
        "Bytes and FLOPs by the operations' contracts, {}. Copied to the device {}, to the host "
        "{}.",
        steps > 0 ? fmt::format("of {} {}", steps, steps == 1 ? "step" : "steps")
                  : "since this process started",
        observe::short_bytes(static_cast<double>(ledger.host_to_device().bytes)),
        observe::short_bytes(static_cast<double>(ledger.device_to_host().bytes))));
    return table;
}

Table fact_table(const RunDescription& run) {
    Table table{.title = "The run", .columns = {{"what"}, {"value"}}};
    const auto row = [&](const std::string& name, const std::string& value) {
        if (!value.empty()) table.rows.push_back({{name, value}});
    };
    row("model", run.model);
    row("device", run.device);
    for (const auto& [name, value] : run.facts) row(name, value);
    return table;
}

}  // namespace

Page train_page(const RunDescription& run, std::span<const StepMetrics> steps) {
    Page page(run.name);
    page.add_line(summary(run, steps, add_up(run, steps)));
    add_charts(page, steps);
    page.add(op_table(run.ledger, run.ledger_steps));
    page.add(observe::plan_table(run.plan, run.memory_taken));
    page.add(fact_table(run));
    if (!run.command.empty()) page.add(observe::Texts{"Command", {{"", run.command}}});
    observe::Texts samples{"Samples"};
    for (auto sample = run.samples.rbegin(); sample != run.samples.rend(); ++sample) {
        samples.parts.push_back({fmt::format("step {}", sample->step), sample->text});
    }
    page.add(samples);
    return page;
}

}  // namespace mr::train
