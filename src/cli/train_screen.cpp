#include "cli/train_screen.h"

#include <algorithm>
#include <cstdint>

#include "core/arena.h"
#include "observe/units.h"

namespace mr::cli {

void TrainScreen::begun(const train::TrainEvents::Begun& run) {
    const model::ModelSpec& spec = run.spec;
    const train::TrainOptions& options = run.options;
    say(fmt::format("{}: {} of {}, {} parameters, vocabulary {}", spec.family,
                    observe::counted(spec.layers, "layer"), spec.dim,
                    observe::short_count(static_cast<double>(spec.parameters())), spec.vocab));
    std::string parts;
    for (const MemoryPlan::Item& item : run.plan.items()) {
        parts +=
            fmt::format("{} {} {}", parts.empty() ? ":" : ",", item.name, format_bytes(item.bytes));
    }
    say(fmt::format("memory {}{}{}", format_bytes(run.plan.total()),
                    !run.pipeline.empty() ? " per rank of the first stage"
                    : run.ranks > 1       ? " per rank"
                                          : "",
                    parts));
    say(fmt::format(
        "{} {} of {} ({} x {}{}), recompute {}",
        run.from ? fmt::format("going on after {} of", run.from) : "training",
        observe::counted(options.steps, "step"),
        observe::counted(options.tokens_per_step(), "token"), options.batch, options.seq,
        options.accumulate > 1 ? fmt::format(" x {}", options.accumulate) : "", run.recompute));
    if (!run.pipeline.empty()) say(run.pipeline);
}

void TrainScreen::step(const train::TrainEvents::Step& step) {
    const train::StepMetrics& m = step.metrics;
    const auto now = std::chrono::steady_clock::now();
    const bool last = m.step == step.steps;
    const bool stays = m.val_loss || m.skipped || last;
    const std::int64_t every = std::max<std::int64_t>(step.steps / 20, 1);
    // Into a file: a line every twentieth of the steps, or every minute if they take long.
    const auto pause = terminal_ ? std::chrono::milliseconds(100) : std::chrono::minutes(1);
    const bool due = now - drawn_ >= pause || (!terminal_ && m.step % every == 0);
    if (!stays && !due) return;
    drawn_ = now;
    std::string line = fmt::format("step {}/{}  loss {:.4f}", m.step, step.steps, m.loss);
    if (m.val_loss) line += fmt::format("  val {:.4f}", *m.val_loss);
    if (m.skipped) line += "  skipped: gradient not finite";
    line += fmt::format("  {:.0f} tok/s", m.tokens_per_second);
    if (peak_ > 0) line += fmt::format("  {:.0f}% of peak", 100 * step.flops_per_second / peak_);
    line += fmt::format("  data wait {:.0f}%  {}  {} left", 100 * m.data_wait_seconds / m.seconds,
                        format_bytes(step.memory), observe::long_seconds(step.seconds_left));
    if (terminal_ && !stays) {
        redraw(line);
        open_ = true;
    } else {
        say(line);
    }
}

}  // namespace mr::cli
