// millrace bench train: training steps compared with the device's peak matrix throughput.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/engine.h"
#include "cli/json.h"
#include "cli/model_name.h"
#include "cli/next_token_spec.h"
#include "cli/options.h"
#include "cli/peer.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "model/io/random.h"
#include "model/io/source.h"
#include "model/train/params.h"
#include "observe/device_bandwidth.h"
#include "observe/run_report.h"
#include "observe/units.h"
#include "train/measure.h"

namespace mr::cli {
namespace {

struct BenchTrainOptions {
    SharedOptions shared;  // --device, --threads, --json
    std::string model;
    std::string batch = "8";  // or "auto"
    int seq = 1024;
    int accumulate = 1, grains = 1;
    std::string objective;  // empty: the model's own
    int block = 0;          // 0: the model's own, or kUsualBlock
    std::string recompute = "none";
    std::string masters = "f32";
    int steps = 10, warmup = 3;
    std::string peer;
};

// The share of the device's memory for a batch of "auto": some is the driver's.
constexpr double kMemoryShare = 0.95;

constexpr int kUsualBlock = 16;  // the default of `train`

// The objective that `train` would use: block diffusion, or the next token.
model::ModelSpec objective_spec(const BenchTrainOptions& options) {
    model::ModelSpec spec =
        model::trainable_spec(model::planned_model(named_model(options.model)).spec);
    const std::string own = spec.diffusion ? "diffusion" : "ar";
    const std::string objective = options.objective.empty() ? own : options.objective;
    if (spec.diffusion && objective == "ar") {
        throw Error::usage({.field = "--objective",
                            .value = objective,
                            .problem = "this is a diffusion model",
                            .remedy = "use --objective diffusion"});
    }
    if (objective == "ar") {
        if (options.block == 0) return spec;
        throw Error::usage({.field = "--block",
                            .value = std::to_string(options.block),
                            .problem = "only applies with --objective diffusion",
                            .remedy = "leave it out, or give that"});
    }
    const int usual = spec.diffusion && spec.diffusion->block > 0 ? spec.diffusion->block : 0;
    const int block = options.block > 0 ? options.block : usual > 0 ? usual : kUsualBlock;
    if (options.seq % block != 0) {
        throw Error::usage({.field = "--seq",
                            .value = std::to_string(options.seq),
                            .problem = fmt::format("is not a multiple of the block, {}", block),
                            .remedy = "give one that is, or another --block"});
    }
    // A model without a mask token gets one more token, as in training.
    const std::int32_t mask = spec.diffusion ? spec.diffusion->mask : spec.vocab;
    return model::diffusion_spec(std::move(spec), mask, block);
}

// 0: auto.
int batch_size(const std::string& text, bool cuda) {
    if (text == "auto") {
        if (cuda) return 0;
        throw Error::usage({.field = "--batch",
                            .value = text,
                            .problem = "needs a GPU, whose memory it fills",
                            .remedy = "give a number, for example --batch 8"});
    }
    try {
        std::size_t used = 0;
        const int batch = std::stoi(text, &used);
        if (used == text.size() && batch >= 1 && batch <= 1 << 16) return batch;
    } catch (const std::exception&) {
    }
    throw Error::usage({.field = "--batch",
                        .value = text,
                        .problem = cuda ? "is neither a number of sequences nor 'auto'"
                                        : "is no number of sequences",
                        .remedy = "for example --batch 32"});
}

// The spec as arguments for bench/peers/torch_train.py.
std::string peer_arguments(const model::ModelSpec& spec, const BenchTrainOptions& options,
                           int batch) {
    if (spec.family != "gpt2" && spec.family != "llama" && spec.family != "mistral") {
        throw Error::usage({.field = "--peer",
                            .value = "torch",
                            .problem = fmt::format("has no {} model", spec.family),
                            .remedy = "compare a Llama or a GPT-2"});
    }
    return fmt::format(
        "speed --family {} --dim {} --layers {} --heads {} --kv-heads {} --hidden {} --vocab {} "
        "--context {} --tied {} --batch {} --seq {} --steps {} --warmup {} --accumulate {} "
        "--device {}",
        spec.family == "gpt2" ? "gpt2" : "llama", spec.dim, spec.layers, spec.heads, spec.kv_heads,
        spec.hidden, spec.vocab, std::max<std::int64_t>(spec.context, options.seq),
        spec.tied_embeddings ? 1 : 0, options.batch == "auto" ? 0 : batch, options.seq,
        options.steps, options.warmup, options.accumulate,
        use_cuda(options.shared) ? "cuda" : "cpu");
}

Json measured_json(const BenchTrainOptions& options, const model::ModelSpec& spec, int batch,
                   const train::TrainMeasured& m, double peak) {
    Json plan = Json::object();
    for (const MemoryPlan::Item& item : m.plan.items()) {
        plan[item.name] = plan.value(item.name, std::uint64_t{0}) + item.bytes;
    }
    return {{"bench", "train"},
            {"model", options.model},
            {"family", spec.family},
            {"parameters", spec.parameters()},
            {"device", observe::device_name(use_cuda(options.shared))},
            {"type", dtype_name(m.compute)},
            {"batch", batch},
            {"seq", options.seq},
            {"accumulate", options.accumulate},
            {"grains", options.grains},
            {"objective", spec.diffusion ? "diffusion" : "ar"},
            {"block", spec.diffusion ? Json(spec.diffusion->block) : Json()},
            {"recompute", options.recompute},
            {"masters", options.masters},
            {"tokens_per_step", m.tokens},
            {"tok_s", m.tokens_per_second()},
            {"tok_s_best", static_cast<double>(m.tokens) / m.best_seconds()},
            {"ms_per_step", m.step_seconds() * 1e3},
            {"seconds", m.seconds},
            {"flops_per_token", m.flops_per_token},
            {"tflop_s", m.flops_per_second() / 1e12},
            {"matrix_peak_tflop_s", peak / 1e12},
            {"percent_of_matrix_peak", peak > 0 ? 100 * m.flops_per_second() / peak : 0},
            {"first_loss", m.first_loss},
            {"last_loss", m.last_loss},
            {"memory_bytes", m.plan.total()},
            {"memory_taken_bytes", m.memory_taken > 0 ? Json(m.memory_taken) : Json()},
            {"memory_plan", plan},
            {"ledger", observe::ledger_json(m.ledger)}};
}

// Groups operations by name and size, in the order of their first occurrence: where the time of a
// step goes.
std::string stage_table(const std::vector<Stage>& stages) {
    struct Row {
        std::string name;
        OpRecord one, all;
    };
    std::vector<Row> rows;
    double total = 0;
    for (const Stage& stage : stages) {
        // A stage without a name of its own has its operation's.
        std::string name = op_name(stage.kind);
        if (stage.name && name != stage.name) name += fmt::format(": {}", stage.name);
        auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& each) {
            return each.name == name && each.one.flops == stage.work.flops &&
                   each.one.bytes() == stage.work.bytes();
        });
        if (row == rows.end()) row = rows.insert(rows.end(), {name, stage.work, {}});
        row->all += stage.work;
        total += stage.work.seconds;
    }
    std::string text = fmt::format("{:<38}{:>6}{:>11}{:>10}{:>8}{:>9}{:>9}\n", "operation", "calls",
                                   "us each", "ms", "share", "GB/s", "TFLOP/s");
    for (const Row& row : rows) {
        const double seconds = row.all.seconds > 0 ? row.all.seconds : 1e-12;
        text += fmt::format("{:<38}{:>6}{:>11.1f}{:>10.3f}{:>7.1f}%{:>9.0f}{:>9.1f}\n", row.name,
                            row.all.calls, seconds / static_cast<double>(row.all.calls) * 1e6,
                            seconds * 1e3, total > 0 ? 100 * seconds / total : 0.0,
                            static_cast<double>(row.all.bytes()) / seconds * 1e-9,
                            static_cast<double>(row.all.flops) / seconds * 1e-12);
    }
    return text + fmt::format("{:<44}{:>21.3f}\n", "sum", total * 1e3);
}

std::string measured_text(const Json& json, const train::TrainMeasured& m,
                          const BenchTrainOptions& options, double peak) {
    std::string text =
        fmt::format("train {}: {} parameters, batch {} of {} tokens{}, {}, recompute {}: {}\n",
                    options.model, observe::short_count(json["parameters"].get<double>()),
                    json["batch"].get<int>(), options.seq,
                    json["block"].is_null()
                        ? ""
                        : fmt::format(", diffusion in blocks of {}", json["block"].get<int>()),
                    dtype_name(m.compute), options.recompute, json["device"].get<std::string>());
    text += fmt::format("  median of {}  {:.0f} tok/s  {:.2f} ms per step  {} TFLOP/s",
                        m.seconds.size(), m.tokens_per_second(), m.step_seconds() * 1e3,
                        observe::figure(m.flops_per_second() / 1e12));
    if (peak > 0) {
        text += fmt::format("  {:.1f}% of the {:.0f} TFLOP/s of matrix products",
                            100 * m.flops_per_second() / peak, peak / 1e12);
    }
    text += fmt::format("\n  best         {:.0f} tok/s  {:.2f} ms\n",
                        static_cast<double>(m.tokens) / m.best_seconds(), m.best_seconds() * 1e3);
    text += fmt::format("  memory planned {}", format_bytes(m.plan.total()));
    if (m.memory_taken > 0) {
        text += fmt::format(", taken {} by the driver's account", format_bytes(m.memory_taken));
    }
    text += ":";
    const char* comma = "";
    for (const MemoryPlan::Item& item : m.plan.items()) {
        text += fmt::format("{} {} {}", comma, item.name, format_bytes(item.bytes));
        comma = ",";
    }
    return text + "\n\n" + observe::op_table(m.ledger) +
           "\nthe step in its order, a row for each name and size:\n" + stage_table(m.stages);
}

std::string peer_text(Json& peer, const train::TrainMeasured& m) {
    const auto number = [&](const char* key) {
        return peer.contains(key) && peer[key].is_number() ? peer[key].get<double>() : 0.0;
    };
    const double theirs = number("tok_s");
    if (theirs <= 0) {
        return fmt::format("\nPyTorch did not train: {}\n", peer.value("error", std::string("?")));
    }
    peer["times_as_fast"] = m.tokens_per_second() / theirs;
    return fmt::format(
        "\n{}: batch {:.0f}, {:.0f} tok/s, {:.2f} ms per step, peak memory {}; this is {:.2f} "
        "times "
        "as fast\n",
        peer.value("peer", std::string("PyTorch")), number("batch"), theirs, number("ms_per_step"),
        format_bytes(static_cast<std::uint64_t>(number("peak_memory_bytes"))),
        m.tokens_per_second() / theirs);
}

int train_bench(const BenchTrainOptions& options) {
    const InterruptGuard guard;
    const model::ModelSpec spec = objective_spec(options);
    require_context(spec, options.seq);
    const bool cuda = use_cuda(options.shared);
    note_gpu_passed_over(options.shared, cuda);
    const int given = batch_size(options.batch, cuda);
    const double peak = cuda ? observe::device_ceilings().matrix : 0;
    train::TrainMeasureOptions measure;
    measure.engine.cuda = cuda;
    measure.engine.threads = thread_count(options.shared);
    measure.engine.shape.seq = options.seq;
    measure.engine.shape.block = spec.diffusion ? spec.diffusion->block : 0;
    measure.engine.bf16_masters = options.masters == "bf16";
    measure.engine.recompute = *model::recompute_of(options.recompute);
    measure.accumulate = options.accumulate;
    if (!std::has_single_bit(static_cast<unsigned>(options.grains)) ||
        options.accumulate % options.grains != 0) {
        throw Error::usage(
            {.field = "--grains",
             .value = fmt::format("{}", options.grains),
             .problem = fmt::format("is not a power of two that divides --accumulate {}",
                                    options.accumulate),
             .remedy = "give one that does"});
    }
    measure.engine.grains = options.grains;
    measure.engine.apart = options.grains > 1;
    measure.steps = options.steps;
    measure.warmup = options.warmup;
    const int batch = given > 0 ? given : train::largest_batch(spec, measure.engine, kMemoryShare);
    measure.engine.shape.sequences = batch;
    // The other engine runs first, alone on the device.
    Json peer;
    if (!options.peer.empty()) {
        peer = ask_peer("torch_train.py", peer_arguments(spec, options, batch)).back();
    }
    ProgressLine line;
    const train::TrainMeasured m = train::measure_training(spec, measure, line.callback());
    line.remove();
    Json json = measured_json(options, spec, batch, m, peak);
    std::string text = measured_text(json, m, options, peak);
    if (!peer.is_null()) {
        text += peer_text(peer, m);
        json["torch"] = peer;
    }
    out(options.shared.json ? json_text(json) : text);
    return 0;
}

}  // namespace

void add_bench_train(const Command& bench, Action& action) {
    auto options = std::make_shared<BenchTrainOptions>();
    const Command command = bench.add_subcommand(
        "train", "Training tokens per second, and the share of the device's peak");
    command
        .add_option("model", options->model,
                    "The model's shape: random:SHAPE, or a model's file or folder")
        .required();
    command
        .add_option("--batch", options->batch,
                    "Sequences per pass; 'auto': as many as fit into the GPU")
        .shown_as("N|auto")
        .shows_default();
    command.add_option("--seq", options->seq, "Tokens per sequence")
        .range(2, 1 << 20)
        .shows_default();
    command.add_option("--grains", options->grains, "Parts that a step is summed from, as in train")
        .range(1, 1 << 20)
        .shows_default();
    command.add_option("--accumulate", options->accumulate, "Passes per step")
        .range(1, 1 << 16)
        .shows_default();
    command
        .add_option(
            "--objective", options->objective,
            "ar: the next token; diffusion: unknown tokens of a block; default: the model's")
        .one_of({"ar", "diffusion"});
    command
        .add_option("--block", options->block,
                    "diffusion: tokens per block; default: the model's, or 16")
        .range(1, 1 << 20);
    command.add_option("--recompute", options->recompute, "What to recompute in the backward pass")
        .one_of({"none", "light", "full"})
        .shows_default();
    command.add_option("--masters", options->masters, "Type of the matrices between steps")
        .one_of({"f32", "bf16"})
        .shows_default();
    command.add_option("--steps", options->steps, "Steps that are measured")
        .range(1, 100000)
        .shows_default();
    command.add_option("--warmup", options->warmup, "Warm-up steps before them")
        .range(0, 100000)
        .shows_default();
    command.add_option("--peer", options->peer, "Also PyTorch, compiled, in the same run")
        .one_of({"torch"});
    add_machine_options(command, options->shared);
    add_json_option(command, options->shared);
    command.footer(
        "Examples:\n"
        "  millrace bench train random:gpt2 --batch 32 --seq 1024 --peer torch\n"
        "  millrace bench train random:tinyllama-1.1b --batch auto --seq 2048 --recompute light\n"
        "  millrace bench train model.gguf --objective diffusion --block 4 --batch 64 --seq 512\n"
        "The peer needs a python with PyTorch: name it in MILLRACE_PYTHON.");
    command.callback([options, &action] { action = [options] { return train_bench(*options); }; });
}

}  // namespace mr::cli
