// millrace run: text from a model, as it is made.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/engine.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/sampling.h"
#include "cli/terminal.h"
#include "decode/prompt.h"
#include "decode/session.h"
#include "observe/device_bandwidth.h"
#include "observe/recorder.h"
#include "observe/roofline.h"
#include "observe/run_report.h"
#include "story/storybook.h"

namespace mr::cli {
namespace {

struct RunOptions {
    SharedOptions shared;
    std::string prompt;
    std::string prompt_file;
    decode::GenerateOptions generate;
    int count = 1;  // texts, each with the next seed
    bool no_echo = false;
    bool quiet = false;
    bool verbose = false;
    bool roofline = false;
};

std::string prompt_text(const RunOptions& options) {
    if (!options.prompt_file.empty()) return read_input(options.prompt_file);
    return options.prompt == "-" ? read_input("-") : options.prompt;
}

void print_json(const decode::Generated& made, const std::string& prompt,
                std::span<const std::int32_t> prompt_ids, const observe::RunReport& report,
                std::span<const observe::Roofline> rooflines, const model::Engine& engine,
                const Ledger& loading, std::uint64_t seed) {
    Json json = {{"model", engine.model().source},
                 {"prompt", prompt},
                 {"prompt_ids", prompt_ids},
                 {"text", made.text},
                 {"ids", made.ids},
                 {"stop_reason", decode::stop_reason_name(made.reason)},
                 {"seed", seed},
                 {"threads", engine.options().threads}};
    json.update(observe::report_json(report));
    json["ledger"] = {{"load", observe::ledger_json(loading)},
                      {"prefill", observe::ledger_json(report.prefill)},
                      {"decode", observe::ledger_json(report.decode)}};
    for (const observe::Roofline& r : rooflines) {
        json["roofline"][r.phase] = observe::roofline_json(r);
    }
    // A prompt may be any bytes; JSON may not.
    out(json_line(json));
}

void add_phase(decode::Phase& sum, const decode::Phase& phase) {
    sum.tokens += phase.tokens;
    sum.seconds += phase.seconds;
    sum.ledger.add(phase.ledger);
}

int run(RunOptions options) {
    const InterruptGuard guard;
    const std::string prompt = prompt_text(options);
    std::vector<std::int32_t> ids;
    const LoadedModel loaded = load(options.shared, [&](const model::Model& model) {
        ids = decode::encode_prompt(model, prompt);
        return options_for(options.shared, model, ids.size(), options.generate);
    });
    model::Engine engine = make_engine(loaded);
    decode::Session session(engine);

    options.generate.cancelled = [] { return InterruptGuard::pending(); };
    std::optional<observe::Recorder> recorder;
    const bool stream = !options.shared.json;
    const std::uint64_t first_seed = options.generate.sampling.seed;
    observe::Ceilings ceilings;
    const auto measure_ceilings = [&] {
        ceilings = observe::ceilings_of(engine.options().cuda, *engine.context().pool, 0.1);
    };
    const auto rooflines = [&] {
        std::vector<observe::Roofline> made;
        for (const char* phase : {"prefill", "decode"}) {
            if (!options.roofline) break;
            made.push_back(observe::make_roofline(recorder->steps(), phase, ceilings));
        }
        return made;
    };
    decode::Generated all;  // the phases of all texts, and how the last one ended
    for (int i = 0; i < options.count && all.reason != decode::StopReason::cancelled; ++i) {
        options.generate.sampling.seed = first_seed + static_cast<std::uint64_t>(i);
        if (options.roofline && (i == 0 || options.shared.json)) {
            options.generate.recorder = &recorder.emplace();
        }
        bool shown = false;
        const decode::Generated made =
            session.generate(ids, options.generate, [&](std::string_view text) {
                if (stream) {
                    if (!shown && !options.no_echo) out(prompt);
                    out(text);
                    shown = true;
                }
                return true;
            });
        if (stream && shown) out("\n");
        // A text that was cut short is none that others should take for a whole one.
        const bool whole = made.reason != decode::StopReason::cancelled;
        if (stream && options.count > 1 && whole) out(fmt::format("{}\n", train::kStorySeparator));
        add_phase(all.prefill, made.prefill);
        add_phase(all.decode, made.decode);
        all.reason = made.reason;
        if (!options.shared.json) continue;
        if (i == 0) measure_ceilings();
        print_json(made, prompt, ids, report_of(made, loaded.seconds, ceilings.read), rooflines(),
                   engine, loaded.ledger, options.generate.sampling.seed);
    }

    if (!options.shared.json && (!options.quiet || options.roofline)) measure_ceilings();
    const observe::RunReport report = report_of(all, loaded.seconds, ceilings.read);
    if (!options.shared.json) {
        for (const observe::Roofline& r : rooflines()) {
            err(fmt::format("\n{}", observe::roofline_table(r)));
        }
    }
    if (!options.quiet) {
        err(fmt::format("{}; seed {}\n",
                        observe::summary_line(report, observe::place_of(engine.options().cuda)),
                        options.count == 1
                            ? fmt::format("{}", first_seed)
                            : fmt::format("{} and on, {} texts", first_seed, options.count)));
    }
    if (options.verbose) {
        err(fmt::format("\nprompt:\n{}\nanswer:\n{}", observe::op_table(report.prefill),
                        observe::op_table(report.decode)));
    }
    return all.reason == decode::StopReason::cancelled ? InterruptGuard::exit_code() : 0;
}

}  // namespace

void add_run(const Command& app, Action& action) {
    auto options = std::make_shared<RunOptions>();
    const Command command =
        app.add_subcommand("run", "Continue a prompt; text streams as it is made");
    add_model_options(command, options->shared);
    const Option prompt = command.add_option("-p,--prompt", options->prompt,
                                             "What to continue; '-' reads standard input");
    command.add_option("--prompt-file", options->prompt_file, "A file to continue")
        .excludes(prompt);
    add_sampling_options(command, options->generate);
    command
        .add_option("--count", options->count,
                    fmt::format("So many texts, each with the next seed and a line {} after it",
                                train::kStorySeparator))
        .range(1, 1 << 30)
        .shows_default();
    command.add_flag("--no-echo", options->no_echo, "Print what is made, without the prompt");
    command.add_flag("-q,--quiet", options->quiet, "No summary after the text");
    command.add_flag("-v,--verbose", options->verbose, "After the text, where the time went by op");
    command.add_flag("--roofline", options->roofline,
                     "After the text, every stage beside what this machine can do at most");
    add_engine_options(command, options->shared);
    add_json_option(command, options->shared);
    command.footer(
        "Examples:\n"
        "  millrace run -p \"Once upon a time\"\n"
        "  millrace run model.gguf -p \"Hello\" -n 200 --temp 0.8 --top-k 40 --top-p 0.9 --seed 7\n"
        "  cat question.txt | millrace run model.gguf -p - --temp 0 --stop '###'");
    command.callback([options, command, &action] {
        if (!command.given("--seed")) options->generate.sampling.seed = fresh_seed();
        action = [options] { return run(*options); };
    });
}

}  // namespace mr::cli
