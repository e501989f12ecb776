// millrace-lab ladder: from one GEMM on the GPU to everything there, one change at a time.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/engine.h"
#include "cli/json.h"
#include "cli/model_name.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/cpu.h"
#include "core/cuda/device.h"
#include "lab/experiments.h"
#include "lab/ladder/ladder.h"
#include "lab/outcome.h"
#include "observe/units.h"

namespace mr::cli {
namespace {

struct BenchLadderOptions {
    SharedOptions shared;
    OutcomeOptions outcome;
    ladder::Options ladder;
};

std::string bytes_text(double bytes) {
    if (bytes == 0) return "0";
    if (bytes < 1e4) return fmt::format("{:.0f} B", bytes);
    if (bytes < 1e7) return fmt::format("{:.1f} kB", bytes / 1e3);
    return fmt::format("{:.1f} MB", bytes / 1e6);
}

std::string check_text(const ladder::Rung& rung) {
    if (rung.reference) return "the reference";
    const ladder::Check& check = rung.check;
    std::string text =
        check.by_rms ? fmt::format("rms {:.2g} of {:.2g}", check.rms, check.rms_limit)
                     : fmt::format("largest {:.2g} of {:.2g}", check.largest, check.largest_limit);
    if (check.by_rms) text += fmt::format(", {:.2g} from f32", check.rms_of_f32);
    text += fmt::format(", {}/{} tokens", check.same_tokens, check.tokens);
    return check.failed.empty() ? "ok: " + text : "FAILED: " + check.failed + ": " + text;
}

Json rung_json(const ladder::Rung& rung) {
    Json json = {{"rung", rung.id},
                 {"name", rung.name},
                 {"weights", dtype_name(rung.weights)},
                 {"tok_s", rung.tokens_per_second},
                 {"us_per_token", 1e6 / rung.tokens_per_second},
                 {"host_to_device_bytes_per_token", rung.to_device},
                 {"device_to_host_bytes_per_token", rung.to_host},
                 {"gain", rung.gain > 0 ? Json(rung.gain) : Json()}};
    if (rung.split) {
        json["share"] = {{"copies", rung.split->copies},
                         {"kernels", rung.split->kernels},
                         {"device_memory", rung.split->memory}};
    }
    if (rung.reference) return json;
    const ladder::Check& check = rung.check;
    json["check"] = {{"passed", check.failed.empty()},         {"failed", check.failed},
                     {"by", check.by_rms ? "rms" : "largest"}, {"largest", check.largest},
                     {"largest_limit", check.largest_limit},   {"rms", check.rms},
                     {"rms_limit", check.rms_limit},           {"rms_of_f32", check.rms_of_f32},
                     {"same_tokens", check.same_tokens},       {"tokens", check.tokens}};
    return json;
}

std::string rung_text(const ladder::Rung& rung) {
    return fmt::format(
        "  {:>7}  {:<16}  {:>7}  {:>9.1f}  {:>9.1f}  {:>9}  {:>9}  {:>6}  {:>6}  {}\n", rung.id,
        rung.name, dtype_name(rung.weights), rung.tokens_per_second, 1e6 / rung.tokens_per_second,
        bytes_text(rung.to_device), bytes_text(rung.to_host),
        rung.split ? fmt::format("{:.0f}%", 100 * rung.split->copies) : "-",
        rung.gain > 0 ? fmt::format("{:.2f}x", rung.gain) : "-", check_text(rung));
}

int ladder_bench(const BenchLadderOptions& options) {
    check_outcome(options.outcome);
    const InterruptGuard guard;
    ladder::Options wanted = options.ladder;
    ladder::check_rungs(wanted.rungs);
    wanted.cuda = use_cuda(options.shared);
    wanted.threads = thread_count(options.shared);
    wanted.engine = engine_switches(options.shared);
    ProgressLine line;
    // Refused before the weights are read or made.
    const auto planned = [](const model::Model& model) {
        ladder::require_plain(model);
        ladder::host_plan(model).require(cpu_info().memory_bytes, "use a smaller model");
    };
    auto model = std::make_shared<const model::Model>(model::load_model(
        model_source(options.shared), {.tokenizer = tokenizer_source(options.shared.tokenizer),
                                       .progress = line.callback(),
                                       .planned = planned,
                                       .ignore_keys = options.shared.ignore_keys}));
    const std::string source = model->source;
    const std::uint64_t parameters = model->spec.parameters();
    const ladder::Ladder ladder = ladder::climb(std::move(model), wanted, line.callback());
    line.remove();

    const std::string why = ladder.absent.empty()            ? ""
                            : options.shared.device == "cpu" ? "--device cpu was asked for"
                                                             : cuda::why_no_device();
    Json json = {{"experiment", "ladder"},
                 {"model", source},
                 {"parameters", parameters},
                 {"cpu", cpu_info().model},
                 {"threads", wanted.threads},
                 {"isa", isa_name(active_isa())},
                 {"device", wanted.cuda ? cuda::device()->name : "cpu"},
                 {"prompt", wanted.prompt},
                 {"tokens", wanted.tokens},
                 {"repetitions", wanted.repetitions},
                 {"passed", ladder.passed()},
                 {"rungs", Json::array()},
                 {"absent", Json::array()},
                 {"why_absent", why}};
    std::string text = fmt::format(
        "ladder {}: {} and {}, {}\n"
        "  {:>7}  {:<16}  {:>7}  {:>9}  {:>9}  {:>9}  {:>9}  {:>6}  {:>6}  {}\n",
        one_line(source), wanted.cuda ? cuda::device()->name : "no GPU",
        observe::counted(wanted.threads, "thread"), isa_name(active_isa()), "rung", "", "weights",
        "tok/s", "us/token", "to GPU", "from GPU", "copies", "gain", "check against the CPU");
    for (const ladder::Rung& rung : ladder.rungs) {
        json["rungs"].push_back(rung_json(rung));
        text += rung_text(rung);
    }
    for (const ladder::Absent& absent : ladder.absent) {
        json["absent"].push_back({{"rung", absent.id}, {"name", absent.name}});
        text += fmt::format("  {:>7}  {:<16}  not run\n", absent.id, absent.name);
    }
    if (!why.empty()) text += fmt::format("  not run: {}\n", why);
    show(options.outcome, json, text);
    return ladder.passed() ? 0 : 1;
}

}  // namespace

void add_ladder(const Command& lab, Action& action) {
    auto options = std::make_shared<BenchLadderOptions>();
    const Command command = lab.add_subcommand(
        "ladder", "From one matrix product on the GPU to the whole model, each rung checked");
    add_model_options(command, options->shared);
    add_machine_options(command, options->shared);
    ladder::Options& ladder = options->ladder;
    command
        .add_option("--rungs", ladder.rungs,
                    "Which of 0 to 9, scalar, host and process, as in 0,host,4-9")
        .shown_as("LIST")
        .shows_default();
    command.add_option("--prompt", ladder.prompt, "Tokens of the prompt")
        .range(1, 1 << 16)
        .shows_default();
    command
        .add_option("-n,--tokens", ladder.tokens,
                    "Tokens generated per repetition; fewer on slow rungs")
        .range(2, 1 << 16)
        .shows_default();
    command.add_option("--reps", ladder.repetitions, "Repetitions; the median counts")
        .range(1, 1000)
        .shows_default();
    command.add_option("--check", ladder.check, "Tokens whose logits are compared with the CPU's")
        .range(1, 256)
        .shows_default();
    add_outcome_options(command, options->outcome);
    command.footer(
        "Exits with 1 where a rung's logits are not the CPU's. docs/ladder.md explains the rungs.\n"
        "Examples:\n"
        "  millrace-lab ladder random:stories-42m\n"
        "  millrace-lab ladder random:stories-110m --rungs 0,4-9 --json");
    command.callback([options, &action] { action = [options] { return ladder_bench(*options); }; });
}

}  // namespace mr::cli
