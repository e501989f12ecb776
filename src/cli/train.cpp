// millrace train: a model from packed text, new or going on from one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/engine.h"
#include "cli/json.h"
#include "cli/model_name.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "cli/terminal.h"
#include "cli/train_screen.h"
#include "cli/version.h"
#include "core/error.h"
#include "observe/device_bandwidth.h"
#include "observe/units.h"
#include "train/parallel/schedule.h"
#include "train/trainer.h"

namespace mr::cli {
namespace {

struct Options {
    SharedOptions shared;  // --device, --threads, --json
    train::TrainOptions train;
    std::string resume;
    double timeout = 600;  // seconds, of a rank that does not answer
    // Every option but those of the machine is one of three; add_train() says which.
    std::vector<std::string> of_models;    // a new model's: neither --init nor --resume has them
    std::vector<std::string> of_new_runs;  // --resume refuses them
    struct Change {                        // --resume takes it
        std::string name;
        std::function<void(train::TrainOptions& to, const train::TrainOptions& from)> take;
    };
    std::vector<Change> changes;
};

// As the shell had it, for the report. The system's file has no size to map it by.
std::string command_line() {
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    std::string out{std::istreambuf_iterator<char>(file), {}};
    while (!out.empty() && out.back() == '\0') out.pop_back();
    std::replace(out.begin(), out.end(), '\0', ' ');
    std::replace(out.begin(), out.end(), '\n', ' ');
    return out.empty() ? "millrace train" : out;
}

Json result_json(const train::TrainResult& r, const std::string& run) {
    Json json = {{"run", run},
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

int run(const Options& options, const Command& command, comm::Comm& comm) {
    const InterruptGuard guard;
    const bool resumed = !options.resume.empty();
    const std::string folder = resumed ? options.resume : options.train.out;
    train::TrainEvents events;
    events.sampling = engine_switches(options.shared);
    // A run goes on where it was, unless it is told otherwise.
    const auto settle = [&](train::TrainOptions& o) {
        if (!resumed || command.given("--device")) o.cuda = use_cuda(options.shared);
        if (!resumed || command.given("--threads")) o.threads = options.shared.threads;
        // One rank has all stages, unless it is told otherwise.
        if (resumed && comm.alone()) o.pipeline = 1;
        // The first one stays: it made the run.
        const std::string line = command_line();
        if (!resumed) {
            o.command = line;
        } else if (!("\n" + o.command).ends_with("\n" + line)) {
            o.command += "\n" + line;
        }
        // Measured before the model fills the device: it takes memory for the time.
        if (o.cuda) events.matrix_peak = observe::device_ceilings().matrix;
    };
    TrainScreen screen;
    ProgressLine loading;
    events.begun = [&](const train::TrainEvents::Begun& begun) {
        const train::TrainOptions& o = begun.options;
        loading.remove();
        SharedOptions threads;
        threads.threads = o.threads;
        events.device = fmt::format("CPU, {} threads", thread_count(threads));
        if (o.cuda) events.device = observe::device_name(true);
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
    events.program = version_line();

    train::TrainResult result;
    if (resumed) {
        result = train::resume(
            options.resume,
            [&](train::TrainOptions& o) {
                settle(o);
                for (const Options::Change& change : options.changes) {
                    if (command.given(change.name)) change.take(o, options.train);
                }
            },
            events, &comm);
    } else {
        train::TrainOptions wanted = options.train;
        if (train::schedule_of(wanted.schedule)) {  // of the pipeline, not of the rate
            wanted.pipeline_schedule = wanted.schedule;
            wanted.schedule = train::TrainOptions().schedule;
        }
        if (!wanted.init.empty()) wanted.init = named_model(wanted.init, "--init");
        settle(wanted);
        result = train::train(wanted, events, &comm);
    }
    // The signal may have come to another rank.
    const int code =
        result.interrupted && InterruptGuard::pending() ? InterruptGuard::exit_code() : 0;
    if (!comm.first()) return code;
    if (options.shared.json) {
        out(json_line(result_json(result, folder)));
    } else {
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
        const std::string memory = result.memory_taken > 0
                                       ? fmt::format(", {} of memory planned and {} taken",
                                                     format_bytes(result.memory_planned),
                                                     format_bytes(result.memory_taken))
                                       : "";
        const bool worked = result.tokens_per_second > 0;  // took at least one step
        screen.say(fmt::format(
            "{} after step {}{}{}{}, {} of training{}; {}{}",
            result.interrupted ? "stopped" : "done", result.step,
            std::isnan(result.loss) ? "" : fmt::format(": loss {:.4f}", result.loss), validation,
            worked ? fmt::format(", {:.0f} tok/s", result.tokens_per_second) : "",
            observe::long_seconds(result.seconds), memory, one_line(folder),
            result.reported ? "/report.html" : ""));
        if (result.stages > 1 && worked) {
            screen.say(fmt::format(
                "{} stages, {} micro-batches: bubble {:.1f}% expected, {:.1f}% measured",
                result.stages, result.micro_batches, 100 * result.bubble_expected,
                100 * result.bubble_measured));
        }
        if (result.ranks > result.stages) {
            screen.say(fmt::format(
                "{} ranks, {} grains: the exchange took {}, and {} were waited for it",
                result.ranks, result.grains, observe::short_seconds(result.exchange_seconds),
                observe::short_seconds(result.exchange_wait_seconds)));
        }
        if (result.interrupted) {
            screen.say(fmt::format("go on with: millrace train --resume {}", one_line(folder)));
        } else if (!worked) {
            screen.say(
                fmt::format("no step was left: for more, give --steps beyond {}", result.steps));
        }
    }
    return code;
}

void check_together(const Options& options, const Command& command) {
    const auto refuse = [&](const std::vector<std::string>& names, const char* problem,
                            const char* remedy) {
        for (const std::string& name : names) {
            if (!command.given(name)) continue;
            throw Error::usage({.field = name, .problem = problem, .remedy = remedy});
        }
    };
    // A negative value stands for the default; it cannot be given.
    if (command.given("--min-lr") && options.train.min_lr < 0) {
        throw Error::usage({.field = "--min-lr",
                            .value = fmt::format("{}", options.train.min_lr),
                            .problem = "must not be negative"});
    }
    if (command.given("--warmup") && options.train.warmup < 0) {
        throw Error::usage({.field = "--warmup",
                            .value = fmt::format("{}", options.train.warmup),
                            .problem = "must not be negative"});
    }
    if (!options.resume.empty()) {
        if (command.given("--schedule") && train::schedule_of(options.train.schedule)) {
            throw Error::usage({.field = "--schedule",
                                .value = options.train.schedule,
                                .problem = "is of new runs",
                                .remedy = "give --pipeline-schedule with --resume"});
        }
        for (const auto* names : {&options.of_models, &options.of_new_runs}) {
            refuse(*names, "cannot be changed by --resume: the run has its own",
                   "leave it out, or start a new run with --init");
        }
        return;
    }
    if (train::schedule_of(options.train.schedule)) {
        refuse({"--pipeline-schedule"}, "and --schedule both say how stages take turns",
               "leave one of the two out");
    }
    if (options.train.pipeline == 1) {
        refuse({"--pipeline-schedule"}, "is of --pipeline", "give that, or leave it out");
        if (train::schedule_of(options.train.schedule)) {
            throw Error::usage({.field = "--schedule",
                                .value = options.train.schedule,
                                .problem = "is of --pipeline",
                                .remedy = "give that, or leave it out"});
        }
    }
    if (!options.train.diffusion()) {
        refuse({"--block", "--diffusion-weight"}, "is of --objective diffusion",
               "give that, or leave it out");
    }
    if (options.train.data.empty() || options.train.out.empty()) {
        throw Error::usage({.field = options.train.data.empty() ? "--data" : "--out",
                            .problem = "is needed for a new run",
                            .remedy = "give --data FOLDER --out RUN, or --resume RUN"});
    }
    if (!options.train.init.empty()) {
        refuse(options.of_models, "is said by the model of --init", "leave one of the two out");
    }
}

}  // namespace

void add_train(const Command& app, Action& action) {
    auto options = std::make_shared<Options>();
    train::TrainOptions& t = options->train;
    const Command c =
        app.add_subcommand("train", "Train a model on packed text, or go on with one");
    // Which of them --resume takes is said where they are made, so that none is forgotten.
    const auto of_model = [&](const char* name, auto& to, const char* about) {
        options->of_models.emplace_back(name);
        return c.add_option(name, to, about);
    };
    const auto of_new_run = [&](const char* name, auto& to, const char* about) {
        options->of_new_runs.emplace_back(name);
        return c.add_option(name, to, about);
    };
    const auto changed = [&](const char* name, auto member, const char* about) {
        options->changes.push_back(
            {name, [member](train::TrainOptions& to, const train::TrainOptions& from) {
                 to.*member = from.*member;
             }});
        return c.add_option(name, t.*member, about);
    };
    c.group("A new model");
    of_model("--model", t.model.family, "llama, mistral, qwen2, qwen3, gpt2 or gpt-neox")
        .shown_as("FAMILY")
        .shows_default();
    of_model("--dim", t.model.dim, "Width of the residual stream").shows_default();
    of_model("--layers", t.model.layers, "Layers").shows_default();
    of_model("--heads", t.model.heads, "Attention heads").shows_default();
    of_model("--kv-heads", t.model.kv_heads, "Heads of keys and values; default: --heads");
    of_model("--head-dim", t.model.head_dim, "Size of a head; default: --dim / --heads").rare();
    of_model("--hidden", t.model.hidden, "Width of the MLP; default: the family's usual");
    of_model("--context", t.model.context, "Positions of the model; default: --seq");
    of_model("--tied", t.model.tied, "Whether the LM head is the embedding table")
        .one_of({"yes", "no"})
        .rare();
    c.group("The run");
    of_new_run("--init", t.init,
               "A model to go on from, or a bundled one's name, instead of a new one")
        .shown_as("MODEL");
    changed("--data", &train::TrainOptions::data, "A folder made by 'millrace data pack'")
        .shown_as("FOLDER");
    of_new_run("--out", t.out, "The run's folder: checkpoints, metrics.jsonl, report.html")
        .shown_as("FOLDER");
    c.add_option("--resume", options->resume,
                 "Go on with this run from its newest checkpoint, bit for bit")
        .shown_as("RUN");
    changed("--steps", &train::TrainOptions::steps, "Steps of the optimizer").shows_default();
    of_new_run("--batch", t.batch, "Sequences of a pass").shows_default();
    of_new_run("--seq", t.seq, "Tokens of a sequence").shows_default();
    of_new_run("--accumulate", t.accumulate, "Passes of a step").shows_default();
    options->of_new_runs.emplace_back("--bos");
    c.add_flag("--bos", t.bos,
               "Begin every sequence, and later every text, with the tokenizer's beginning-of-text "
               "token");
    add_json_option(c, options->shared);
    c.group("The objective");
    of_new_run("--objective", t.objective,
               "ar: the next token; diffusion: unknown tokens of a block, in any order")
        .one_of({"ar", "diffusion"})
        .shows_default();
    of_new_run("--block", t.block, "diffusion: tokens of a block").shows_default();
    of_new_run("--diffusion-weight", t.diffusion_weight,
               "diffusion: a masked token counts 1 / the rate of masks; none: once, and every "
               "sequence comes twice with complementary masks")
        .one_of({"1/t", "none"})
        .shows_default();
    c.group("The optimizer");
    of_new_run("--lr", t.lr, "Learning rate after the warm-up").shows_default();
    of_new_run("--min-lr", t.min_lr, "... at the end; default: --lr / 10");
    of_new_run("--warmup", t.warmup, "Steps in which it rises; default: a twentieth");
    of_new_run("--schedule", t.schedule,
               "Of the rate; wsd: warm up, stay, decay. 1f1b, gpipe: as --pipeline-schedule")
        .one_of({"cosine", "wsd", "constant", "1f1b", "gpipe"})
        .shows_default();
    of_new_run("--decay", t.decay, "wsd: the last part of the steps, in which the rate falls")
        .shows_default();
    of_new_run("--weight-decay", t.weight_decay, "Of matrices, by AdamW").shows_default();
    of_new_run("--beta1", t.beta1, "AdamW's").shows_default().rare();
    of_new_run("--beta2", t.beta2, "AdamW's").shows_default().rare();
    of_new_run("--clip", t.clip, "Norm that gradients are brought down to; 0: none")
        .shows_default();
    of_new_run("--masters", t.masters,
               "Type that matrices are kept in between steps; bf16, rounded by chance, saves 4 "
               "bytes a parameter on a GPU")
        .one_of({"f32", "bf16"})
        .shows_default()
        .rare();
    of_new_run(
        "--seed", t.seed,
        "Of the weights, the order of the data, diffusion's masks, and bf16 masters' chances")
        .shows_default();
    changed("--max-skips", &train::TrainOptions::max_skips,
            "Steps in a row without a finite gradient before the run stops")
        .shows_default()
        .rare();
    c.group("Checkpoints and looks at it");
    changed("--eval-every", &train::TrainOptions::eval_every,
            "Steps between validations; 0: at the end")
        .shows_default();
    changed("--eval-batches", &train::TrainOptions::eval_batches, "Batches of a validation; 0: all")
        .shows_default();
    changed("--save-every", &train::TrainOptions::save_every,
            "Steps between checkpoints; 0: at the end")
        .shows_default();
    changed("--sample-every", &train::TrainOptions::sample_every,
            "Steps between samples; 0: at the end")
        .shows_default();
    changed("--sample-tokens", &train::TrainOptions::sample_tokens, "Length of a sample; 0: none")
        .shows_default();
    changed("--prompt", &train::TrainOptions::prompt, "What samples begin with").shown_as("WORDS");
    changed("--keep", &train::TrainOptions::keep, "Checkpoints that stay; 0: all").shows_default();
    c.group("Machine");
    changed("--recompute", &train::TrainOptions::recompute,
            "What is made again in the backward, to save memory")
        .one_of({"none", "light", "full"})
        .shows_default();
    changed("--prefetch", &train::TrainOptions::prefetch, "Batches read ahead; 0: none")
        .shows_default()
        .rare();
    add_machine_options(c, options->shared);
    c.group("Several ranks (mpirun)");
    of_new_run("--grains", t.grains,
               "Parts that a step is summed from: a power of two that the ranks divide. Runs of "
               "equal grains have equal bits on any number of ranks; default: the ranks");
    changed("--zero", &train::TrainOptions::zero,
            "What ranks share instead of each having all: 1: the optimizer's moments; 2: and "
            "gradients; 3: and parameters")
        .shows_default();
    changed("--pipeline", &train::TrainOptions::pipeline,
            "Stages that the layers are cut into, a rank each; more ranks are replicas of all "
            "stages")
        .shows_default();
    changed("--micro-batches", &train::TrainOptions::micro_batches,
            "Parts of a step that go through the stages one behind another, a power of two: "
            "grains / replicas");
    changed("--pipeline-schedule", &train::TrainOptions::pipeline_schedule,
            "1f1b: a stage turns back as soon as it can; gpipe: all forward, then all back")
        .one_of({"1f1b", "gpipe"})
        .shows_default();
    changed("--reduce", &train::TrainOptions::reduce,
            "exact: the same bits on any number of ranks; fast: NCCL's own sum, in bf16")
        .one_of({"exact", "fast"})
        .shows_default()
        .rare();
    changed("--bucket", &train::TrainOptions::bucket, "MiB of gradients that are sent at a time")
        .shows_default()
        .rare();
    c.add_option("--comm-timeout", options->timeout,
                 "Seconds after which a rank that does not answer is given up; 0: never")
        .range(0.0, 1e6)
        .shows_default()
        .rare();
    c.footer(
        "Examples:\n"
        "  millrace train --model llama --dim 256 --layers 6 --heads 8 --kv-heads 4 --data data/ "
        "\\\n"
        "      --out runs/story --steps 5000 --batch 64 --seq 512\n"
        "  millrace train --init model.gguf --data data/ --out runs/tuned --lr 1e-4\n"
        "  millrace train --objective diffusion --block 16 --init model.gguf --data data/ --out "
        "runs/d\n"
        "  millrace train --resume runs/story\n"
        "  millrace run runs/story -p \"Once upon a time\"");
    c.callback([options, c, &action] {
        action = [options, c] {
            check_together(*options, c);
            return as_rank(options->timeout,
                           [&](comm::Comm& comm) { return run(*options, c, comm); });
        };
    });
}

}  // namespace mr::cli
