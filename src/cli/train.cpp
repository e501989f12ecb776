// millrace train: trains a model on packed text, new or from an existing one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "cli/caller.h"
#include "cli/command_line.h"
#include "cli/engine.h"
#include "cli/json.h"
#include "cli/model_name.h"
#include "cli/ranks.h"
#include "cli/terminal.h"
#include "cli/train_options.h"
#include "cli/train_screen.h"
#include "cli/version.h"
#include "observe/device_bandwidth.h"
#include "observe/units.h"
#include "train/parallel/schedule.h"
#include "train/trainer.h"

namespace mr::cli {
namespace {

Json result_json(const train::TrainResult& r) {
    Json json = {{"run", r.folder},
                 {"step", r.step},
                 {"steps", r.steps},
                 {"objective", r.objective},
                 {"block", nullptr},
                 {"diffusion_weight", nullptr},
                 {"interrupted", r.interrupted},
                 {"loss", nullptr},
                 {"val_loss", nullptr},
                 {"bits_per_byte", nullptr},
                 {"val_step", nullptr},
                 {"val_tokens", r.val_tokens},
                 {"skipped", r.skipped},
                 {"seconds", r.seconds},
                 {"tokens_per_second", r.tokens_per_second},
                 {"data_wait_seconds", r.data_wait_seconds},
                 {"parameters", r.parameters},
                 {"memory_bytes", r.memory_planned},
                 {"memory_taken_bytes", nullptr},
                 {"checkpoint", r.checkpoint},
                 {"ranks", r.ranks},
                 {"grains", r.grains},
                 {"exchange_seconds", r.exchange_seconds},
                 {"exchange_wait_seconds", r.exchange_wait_seconds},
                 {"stages", r.stages},
                 {"micro_batches", r.micro_batches},
                 {"bubble_expected", nullptr},
                 {"bubble_measured", nullptr}};
    if (r.stages > 1) {
        json["bubble_expected"] = r.bubble_expected;
        json["bubble_measured"] = r.bubble_measured;
    }
    if (r.block > 0) {
        json["block"] = r.block;
        json["diffusion_weight"] = r.diffusion_weight;
    }
    if (std::isfinite(r.loss)) json["loss"] = r.loss;
    if (r.memory_taken > 0) json["memory_taken_bytes"] = r.memory_taken;
    if (r.val_loss) json["val_loss"] = *r.val_loss;
    if (r.val_loss) json["val_step"] = r.val_step;
    if (r.bits_per_byte) json["bits_per_byte"] = *r.bits_per_byte;
    return json;
}

// Starts or resumes a run. `line`: the call in words; `comm`: null for this process alone. Fills in
// the fields of `events` that describe machine and program.
train::TrainResult train_as_asked(const TrainAsked& asked, const std::string& line,
                                  train::TrainEvents& events, comm::Comm* comm) {
    const bool resumed = asked.resumed();
    events.sampling = engine_switches(asked.shared);
    events.program = version_line();
    // A run stays on its device unless told otherwise. MILLRACE_DEVICE is not about this run.
    const auto settle = [&](train::TrainOptions& o) {
        if (!resumed || asked.command.given("--device")) {
            o.cuda = use_cuda(asked.shared);
            if (!comm || comm->first()) note_gpu_passed_over(asked.shared, o.cuda);
        }
        if (!resumed || asked.command.given("--threads")) o.threads = asked.shared.threads;
        // A single rank has all stages unless told otherwise.
        if (resumed && (!comm || comm->alone())) o.pipeline = 1;
        // The first command line stays: it made the run.
        if (!resumed) {
            o.command = line;
        } else if (!("\n" + o.command).ends_with("\n" + line)) {
            o.command += "\n" + line;
        }
        SharedOptions threads;
        threads.threads = o.threads;
        events.device = "CPU, " + observe::counted(thread_count(threads), "thread");
        if (!o.cuda) return;
        events.device = observe::device_name(true);
        // Measured before the model fills the device, since it needs memory for a moment.
        events.matrix_peak = observe::device_ceilings().matrix;
    };
    if (resumed) {
        return train::resume(
            asked.resume,
            [&](train::TrainOptions& o) {
                settle(o);
                for (const TrainAsked::Change& change : asked.changes) {
                    if (asked.command.given(change.name)) change.take(o, asked.train);
                }
            },
            events, comm);
    }
    train::TrainOptions wanted = asked.train;
    if (train::schedule_of(wanted.schedule)) {  // of the pipeline, not of the learning rate
        wanted.pipeline_schedule = wanted.schedule;
        wanted.schedule = train::TrainOptions().schedule;
    }
    if (!wanted.init.empty()) {
        wanted.init = named_model(wanted.init, "--init");
        if (!asked.command.given("--lr")) wanted.lr = kInitRate;
    }
    settle(wanted);
    return train::train(wanted, events, comm);
}

// The summary for the user.
void tell_result(TrainScreen& screen, const train::TrainResult& result) {
    const std::string& folder = result.folder;
    std::string validation;
    if (result.val_loss) {
        validation = fmt::format(", validation {:.4f}", *result.val_loss);
        if (result.bits_per_byte) {
            validation += fmt::format(" ({:.3f} bits per byte)", *result.bits_per_byte);
        }
        validation += fmt::format(" over {} tokens", result.val_tokens);
        if (result.val_step != result.step) {
            validation += fmt::format(" after step {}", result.val_step);
        }
    }
    const std::string memory =
        result.memory_taken > 0
            ? fmt::format(", {} of memory planned and {} taken",
                          format_bytes(result.memory_planned), format_bytes(result.memory_taken))
            : "";
    const bool worked = result.tokens_per_second > 0;  // did at least one step
    screen.say(fmt::format(
        "{} after step {}{}{}{}, {} of training{}; {}{}", result.interrupted ? "stopped" : "done",
        result.step, std::isnan(result.loss) ? "" : fmt::format(": loss {:.4f}", result.loss),
        validation, worked ? fmt::format(", {:.0f} tok/s", result.tokens_per_second) : "",
        observe::long_seconds(result.seconds), memory, one_line(folder),
        result.reported ? "/report.html" : ""));
    if (result.stages > 1 && worked) {
        screen.say(fmt::format(
            "{} stages, {} micro-batches: bubble {:.1f}% expected, {:.1f}% measured", result.stages,
            result.micro_batches, 100 * result.bubble_expected, 100 * result.bubble_measured));
    }
    if (result.ranks > result.stages) {
        screen.say(fmt::format(
            "{} ranks, {} grains: the exchange took {}, the run waited {} for it", result.ranks,
            result.grains, observe::short_seconds(result.exchange_seconds),
            observe::short_seconds(result.exchange_wait_seconds)));
    }
    if (result.interrupted) {
        screen.say(fmt::format("resume with: millrace train --resume {}", one_line(folder)));
    } else if (!worked) {
        screen.say(fmt::format("no step was left: for more, give --steps beyond {}", result.steps));
    }
}

int run(const TrainAsked& asked, comm::Comm& comm) {
    const InterruptGuard guard;
    TrainScreen screen;
    ProgressLine loading;
    train::TrainEvents events;
    events.begun = [&](const train::TrainEvents::Begun& begun) {
        loading.remove();
        screen.set_peak(events.matrix_peak);
        screen.begun(begun);
        InterruptGuard::set_answer(
            "stopping: this step is finished and saved first; again: leave at once without it");
    };
    events.step = [&](const train::TrainEvents::Step& step) { screen.step(step); };
    events.sample = [&](std::int64_t step, const std::string& text) {
        screen.say(fmt::format("--- a sample after step {}:\n{}\n---", step, text));
    };
    events.note = [&](const std::string& line) {
        loading.remove();
        screen.say("millrace: " + one_line(line));
    };
    events.saved = [&](std::int64_t, const std::string& path) {
        screen.say("saved " + one_line(path));
    };
    events.saving = [](bool begins) { InterruptGuard::set_unbroken(begins); };
    events.stop = [] { return InterruptGuard::pending(); };
    events.loading = loading.callback();
    const train::TrainResult result = train_as_asked(asked, command_line(), events, &comm);
    // The signal may have come to another rank.
    const int code =
        result.interrupted && InterruptGuard::pending() ? InterruptGuard::exit_code() : 0;
    if (!comm.first()) return code;
    if (asked.shared.json) {
        out(json_line(result_json(result)));
    } else {
        tell_result(screen, result);
    }
    return code;
}

}  // namespace

void add_train(const Command& app, Action& action, Caller* caller) {
    const std::shared_ptr<TrainAsked> asked = add_train_options(app);
    asked->command.callback([asked, caller, &action] {
        action = [asked, caller] {
            asked->check();
            if (!caller) {
                return as_rank(asked->timeout, [&](comm::Comm& comm) { return run(*asked, comm); });
            }
            train::TrainEvents events = caller->training;
            events.loading = caller->progress;
            const train::TrainResult result = train_as_asked(*asked, caller->line, events, nullptr);
            caller->result = json_line(result_json(result));
            return 0;
        };
    });
}

void add_train(const Command& app, Action& action) { add_train(app, action, nullptr); }

}  // namespace mr::cli
