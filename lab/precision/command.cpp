// millrace-lab precision: the same training in every precision of the trainer, and the sums that
// explain the differences.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/json.h"
#include "cli/model_name.h"
#include "cli/next_token_spec.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/cuda/device.h"
#include "core/error.h"
#include "lab/experiments.h"
#include "lab/outcome.h"
#include "lab/precision/accumulation.h"
#include "lab/precision/study.h"
#include "model/io/random.h"
#include "model/io/source.h"
#include "model/train/params.h"
#include "observe/device_bandwidth.h"
#include "observe/units.h"

namespace mr::cli {
namespace {

struct BenchPrecisionOptions {
    SharedOptions shared;
    OutcomeOptions outcome;  // --device, --threads, --json
    std::string model;
    std::string data;                // empty: random tokens
    std::vector<std::string> types;  // empty: all
    std::int64_t cpu_steps = 0;      // 0: the same as steps
    precision::StudyOptions study;
};

constexpr const char* kBase = "f32";  // the reference for the others
constexpr double kValue = 0.01;       // summand, and how often it is added
constexpr std::int64_t kTimes = 1000;
constexpr std::int64_t kSeeds = 1000;  // for the mean of stochastic rounding

// The precisions asked for: to measure, and to report as absent.
struct Chosen {
    std::vector<precision::Way> here, absent;
    std::string why;  // why they are absent
};

Chosen choose(const BenchPrecisionOptions& options) {
    Chosen out;
    const bool cuda = use_cuda(options.shared);
    if (!cuda) {
        out.why = options.shared.device == "cpu" ? "it needs a GPU, and the device is cpu"
                                                 : "it needs a GPU: " + cuda::why_no_device();
    }
    for (const precision::Way& way : precision::ways()) {
        const bool asked = options.types.empty() || std::ranges::count(options.types, way.name) > 0;
        if (!asked) continue;
        (way.cuda && !cuda ? out.absent : out.here).push_back(way);
    }
    if (out.here.empty()) {
        throw Error::device({.field = "--types",
                             .value = out.absent.front().name,
                             .problem = out.why,
                             .remedy = "name one of the CPU: f32, f32-nearest, f32-stochastic"});
    }
    return out;
}

const char* masters_name(precision::Masters masters) {
    return masters == precision::Masters::f32 ? "f32" : "bf16";
}
Json rounding_name(precision::Masters masters) {
    switch (masters) {
        case precision::Masters::f32:
            break;
        case precision::Masters::bf16_nearest:
            return "nearest";
        case precision::Masters::bf16_stochastic:
            return "stochastic";
    }
    return nullptr;
}

// The plan in four parts; workspace of passes counts as activations.
struct Memory {
    std::uint64_t weights = 0, gradients = 0, optimizer = 0, activations = 0;
};
Memory memory_of(const MemoryPlan& plan) {
    Memory out;
    for (const MemoryPlan::Item& item : plan.items()) {
        if (item.name.starts_with("parameters")) {
            out.weights += item.bytes;
        } else if (item.name == "gradients") {
            out.gradients += item.bytes;
        } else if (item.name == "optimizer") {
            out.optimizer += item.bytes;
        } else {
            out.activations += item.bytes;
        }
    }
    return out;
}

Json way_json(const precision::Way& way, const precision::Measured& m, std::int64_t cpu_steps,
              const std::optional<double>& f32_loss) {
    const Memory memory = memory_of(m.plan);
    return {{"way", way.name},
            {"about", way.about},
            {"device", way.cuda ? "cuda" : "cpu"},
            {"products", dtype_name(m.compute)},
            {"masters", masters_name(way.masters)},
            {"rounding", rounding_name(way.masters)},
            {"steps", m.steps},
            {"ms_per_step", m.step_seconds() * 1e3},
            {"loss", m.loss},
            {"loss_at_cpu_steps", m.loss_at_cpu_steps},
            {"difference", f32_loss ? Json(m.loss_at_cpu_steps - *f32_loss) : Json()},
            {"grad_norm", m.grad_norms.back()},
            {"grad_norm_at_cpu_steps", m.grad_norms[static_cast<std::size_t>(cpu_steps - 1)]},
            {"moved", m.moved},
            {"memory",
             {{"weights", memory.weights},
              {"gradients", memory.gradients},
              {"optimizer", memory.optimizer},
              {"activations", memory.activations},
              {"total", m.plan.total()}}},
            {"memory_taken_bytes", m.memory_taken > 0 ? Json(m.memory_taken) : Json()},
            {"seconds", m.seconds},
            {"losses", m.losses},
            {"grad_norms", m.grad_norms}};
}

std::string bytes_text(const Json& bytes) { return format_bytes(bytes.get<std::uint64_t>()); }

std::string way_line(const Json& way, std::int64_t compared) {
    const Json& memory = way["memory"];
    const bool base = way["difference"].is_null() || way["way"] == kBase;
    std::string text =
        fmt::format("  {:<15}{:>9.2f}{:>12}{:>12}{:>12}{:>12}{:>13.5f}{:>10}{:>10.4f}{:>7.1f}%",
                    way["way"].get<std::string>(), way["ms_per_step"].get<double>(),
                    bytes_text(memory["weights"]), bytes_text(memory["gradients"]),
                    bytes_text(memory["optimizer"]), bytes_text(memory["activations"]),
                    way["loss_at_cpu_steps"].get<double>(),
                    base ? "" : fmt::format("{:+.5f}", way["difference"].get<double>()),
                    way["grad_norm_at_cpu_steps"].get<double>(), 100 * way["moved"].get<double>());
    if (way["steps"].get<std::int64_t>() > compared) {
        text += fmt::format("{:>13.5f}", way["loss"].get<double>());
    }
    return text + "\n";
}

std::string study_text(const Json& json) {
    const auto steps = json["steps"].get<std::int64_t>();
    const auto compared = json["cpu_steps"].get<std::int64_t>();
    const bool longer = std::ranges::any_of(
        json["ways"], [&](const Json& way) { return way["steps"].get<std::int64_t>() > compared; });
    const auto at = [](const char* what, std::int64_t step) {
        return fmt::format("{}@{}", what, step);
    };
    std::string text =
        fmt::format("precision {}: {} parameters, batch {} of {} tokens, rate {}, seed {}\n  {}\n",
                    one_line(json["model"].get<std::string>()),
                    observe::short_count(json["parameters"].get<double>()),
                    json["batch"].get<int>(), json["seq"].get<int>(), json["lr"].get<double>(),
                    json["seed"].get<std::uint64_t>(), one_line(json["data"].get<std::string>()));
    text += fmt::format("  CPU, threads {}: {} steps", json["threads"].get<int>(), compared);
    if (!json["gpu"].is_null()) {
        text += fmt::format("; {}: {} steps", json["gpu"].get<std::string>(), steps);
    }
    text += fmt::format("\n\n  {:<15}{:>9}{:>12}{:>12}{:>12}{:>12}{:>13}{:>10}{:>10}{:>8}", "",
                        "ms/step", "weights", "gradients", "optimizer", "activations",
                        at("loss", compared), "vs f32", at("norm", compared), "moved");
    text += longer ? fmt::format("{:>13}\n", at("loss", steps)) : "\n";
    for (const Json& way : json["ways"]) text += way_line(way, compared);
    for (const Json& way : json["absent"]) {
        text += fmt::format("  {:<15} absent: {}\n", way["way"].get<std::string>(),
                            way["why"].get<std::string>());
    }
    return text;
}

const char* format_name(precision::Format format) {
    switch (format) {
        case precision::Format::f32:
            return "f32";
        case precision::Format::f16:
            return "f16";
        case precision::Format::bf16:
            return "bf16";
    }
    return "";
}

Json accumulation_json(std::uint64_t seed) {
    Json rows = Json::array();
    const double exact = kValue * static_cast<double>(kTimes);
    for (const precision::Accumulation& row : precision::accumulation_rows()) {
        const bool stochastic = row.rounding == precision::Rounding::stochastic;
        const precision::Accumulated sum = precision::accumulate(row, kValue, kTimes, seed);
        Json one = {{"addend", format_name(row.addend)},
                    {"sum", format_name(row.sum)},
                    {"rounding", stochastic ? "stochastic" : "nearest"},
                    {"added", sum.addend},
                    {"result", sum.result},
                    {"error", sum.result - exact},
                    {"stalled_after", sum.stalled_after >= 0 ? Json(sum.stalled_after) : Json()}};
        if (stochastic) {
            const precision::Spread spread =
                precision::accumulate_often(row, kValue, kTimes, kSeeds);
            one["seeds"] = kSeeds;
            one["mean"] = spread.mean;
            one["deviation"] = spread.deviation;
        }
        rows.push_back(std::move(one));
    }
    return rows;
}

std::string accumulation_text(const Json& rows) {
    std::string text = fmt::format("\n{} added {} times\n  {:<8}{:<6}{:<12}{:>12}{:>12}\n", kValue,
                                   kTimes, "addend", "sum", "rounding", "result", "error");
    for (const Json& row : rows) {
        text +=
            fmt::format("  {:<8}{:<6}{:<12}{:>12.6f}{:>+12.6f}", row["addend"].get<std::string>(),
                        row["sum"].get<std::string>(), row["rounding"].get<std::string>(),
                        row["result"].get<double>(), row["error"].get<double>());
        if (!row["stalled_after"].is_null()) {
            text += fmt::format("  unchanged after addition {}",
                                row["stalled_after"].get<std::int64_t>());
        }
        if (row.contains("mean")) {
            text += fmt::format("  mean of {} seeds {:.4f}, deviation {:.4f}",
                                row["seeds"].get<std::int64_t>(), row["mean"].get<double>(),
                                row["deviation"].get<double>());
        }
        text += "\n";
    }
    return text;
}

int precision_bench(BenchPrecisionOptions options) {  // a copy: defaults are filled in
    check_outcome(options.outcome);
    const InterruptGuard guard;
    precision::StudyOptions& study = options.study;
    if (options.cpu_steps > study.steps) {
        throw Error::usage({.field = "--cpu-steps",
                            .value = std::to_string(options.cpu_steps),
                            .problem = fmt::format("is more than the {} of --steps", study.steps),
                            .remedy = "give at most that"});
    }
    const model::ModelSpec spec = next_token_spec(options.model, options.study.seq);
    const Chosen chosen = choose(options);
    study.threads = thread_count(options.shared);
    study.cpu_steps = options.cpu_steps > 0 ? options.cpu_steps : study.steps;
    const precision::StudyTokens tokens =
        options.data.empty() ? precision::made_up_tokens(
                                   spec.vocab, study.seed, study.seq, study.steps * study.batch,
                                   precision::StudyOptions::kHeldOutBatches * study.batch)
                             : precision::read_tokens(options.data, spec.vocab);
    Json json = {{"experiment", "precision"},
                 {"model", options.model},
                 {"family", spec.family},
                 {"parameters", spec.parameters()},
                 {"batch", study.batch},
                 {"seq", study.seq},
                 {"steps", study.steps},
                 {"cpu_steps", study.cpu_steps},
                 {"lr", study.lr},
                 {"seed", study.seed},
                 {"data", tokens.about},
                 {"threads", study.threads},
                 {"gpu", use_cuda(options.shared) ? Json(observe::device_name(true)) : Json()},
                 {"ways", Json::array()},
                 {"absent", Json::array()}};
    ProgressLine line;
    std::optional<double> f32_loss;
    for (const precision::Way& way : chosen.here) {
        const precision::Measured m = precision::study(spec, way, study, tokens, line.callback());
        if (way.name == std::string_view(kBase)) f32_loss = m.loss_at_cpu_steps;
        json["ways"].push_back(way_json(way, m, study.cpu_steps, f32_loss));
    }
    line.remove();
    for (const precision::Way& way : chosen.absent) {
        json["absent"].push_back({{"way", way.name}, {"about", way.about}, {"why", chosen.why}});
    }
    json["accumulation"] = accumulation_json(study.seed);
    show(options.outcome, json, study_text(json) + accumulation_text(json["accumulation"]));
    return 0;
}

}  // namespace

void add_precision(const Command& lab, Action& action) {
    auto options = std::make_shared<BenchPrecisionOptions>();
    precision::StudyOptions& study = options->study;
    const Command command = lab.add_subcommand(
        "precision", "The same training in f32 and bf16: time, memory, loss, gradient norm");
    command
        .add_option("model", options->model,
                    "The model's shape: random:SHAPE, or a model's file or folder; weights are new")
        .required();
    command
        .add_option("--types", options->types,
                    "Products, and how bf16 masters are rounded: f32 ones on the CPU, bf16 ones on "
                    "the GPU; else all")
        .separated_by(',')
        .one_of({"f32", "f32-nearest", "f32-stochastic", "bf16", "bf16-stochastic"});
    command.add_option("--steps", study.steps, "Steps of training")
        .range(std::int64_t{1}, std::int64_t{100000})
        .shows_default();
    command
        .add_option("--cpu-steps", options->cpu_steps,
                    "... of those on the CPU, after which losses are compared; default: --steps")
        .range(std::int64_t{1}, std::int64_t{100000});
    command.add_option("--batch", study.batch, "Sequences per step")
        .range(1, 1 << 16)
        .shows_default();
    command.add_option("--seq", study.seq, "Tokens per sequence").range(2, 1 << 20).shows_default();
    command
        .add_option("--data", options->data,
                    "A folder of 'millrace data pack', or any file, read byte by byte; else tokens "
                    "are made up")
        .shown_as("FILE");
    command.add_option("--lr", study.lr, "Learning rate of all steps")
        .range(1e-9, 1.0)
        .shows_default();
    command
        .add_option("--seed", study.seed,
                    "Seed of the weights, the order of the data and stochastic rounding")
        .shows_default();
    add_machine_options(command, options->shared);
    add_outcome_options(command, options->outcome);
    command.footer(
        "The loss is that of a text held out, the norm that of the gradient before the step's "
        "update,\nmoved the share of matrix elements that the steps changed. docs/precision.md "
        "explains the rows.\n"
        "Examples:\n"
        "  millrace-lab precision random:gpt2 --steps 200 --cpu-steps 20\n"
        "  millrace-lab precision storyteller --types f32,f32-nearest,f32-stochastic --lr 3e-5\n"
        "  millrace-lab precision random:gpt2 --types bf16,bf16-stochastic --data data/ --json");
    command.callback(
        [options, &action] { action = [options] { return precision_bench(*options); }; });
}

}  // namespace mr::cli
