// millrace profile: a generation, recorded stage by stage.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/diffusion.h"
#include "cli/engine.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/prompt_input.h"
#include "cli/sampling.h"
#include "cli/terminal.h"
#include "core/output_file.h"
#include "decode/prompt.h"
#include "decode/session.h"
#include "observe/device_bandwidth.h"
#include "observe/recorder.h"
#include "observe/roofline.h"
#include "observe/run_page.h"
#include "observe/run_report.h"
#include "observe/trace.h"
#include "observe/units.h"

namespace mr::cli {
namespace {

struct ProfileOptions {
    SharedOptions shared;
    std::string prompt;
    bool prompt_given = false;
    decode::GenerateOptions generate;
    ContextOptions context;
    DiffusionChoice diffusion;
    std::string trace, html;
    // Whether each step is kept, or only their sums.
    bool every_step() const { return !trace.empty() || !html.empty(); }
};

int profile(const Command& command, ProfileOptions options) {
    const InterruptGuard guard;
    const std::string prompt = prompt_text(options.prompt, options.prompt_given);
    // Fail before the run if a file cannot be written.
    for (const std::string& path : {options.trace, options.html}) {
        if (!path.empty()) {
            const OutputFile probe(path);
        }
    }
    std::vector<observe::RooflineSums> sums;
    for (const char* phase : {"decode", "prefill"}) sums.emplace_back(phase);
    const auto add = [&](const observe::Step& step) {
        for (observe::RooflineSums& phase : sums) phase.add(step);
    };
    observe::Recorder recorder(options.every_step() ? observe::Recorder::TakeStep() : add);
    const double load_begin = recorder.now();
    std::vector<std::int32_t> ids;
    const LoadedModel loaded = load(options.shared, [&](const model::Model& model) {
        ids = decode::encode_prompt(model, prompt);
        const int tokens = options.generate.max_tokens;
        model::EngineOptions wanted =
            options_for(options.shared, model, ids.size(), options.generate);
        require_streaming(command, options.context);
        make_stream(options.context, model.spec, tokens, wanted, options.generate);
        use_diffusion(command, options.diffusion, model.spec, wanted, options.generate);
        return wanted;
    });
    recorder.add_span("load", load_begin, loaded.seconds);
    const std::unique_ptr<model::Engine> opened = make_engine(loaded);
    model::Engine& engine = *opened;
    note_block(options.diffusion, engine.model().spec);

    options.generate.recorder = &recorder;
    const bool words = options.shared.json || !options.html.empty();
    options.generate.keep = words ? decode::Keep::words : decode::Keep::nothing;
    options.generate.cancelled = [] { return InterruptGuard::pending(); };
    decode::Session session(engine);
    if (!options.shared.json) out(prompt);
    const decode::Generated made =
        session.generate(ids, options.generate, [&](std::string_view text) {
            if (!options.shared.json) out(text);
            return true;
        });
    if (!options.shared.json) out("\n\n");

    const bool gpu = engine.options().cuda;
    const observe::Ceilings ceilings = observe::ceilings_of(gpu, *engine.context().pool, 0.2, true);

    const observe::RunReport report =
        report_of(engine.model().spec, made, loaded.seconds, ceilings.read);
    const observe::RunNames names{engine.model().source, observe::device_name(gpu)};
    std::vector<observe::Roofline> phases;
    for (const observe::Step& step : recorder.steps()) add(step);
    for (const observe::RooflineSums& sum : sums) {
        phases.push_back(sum.under(ceilings));
        if (phases.back().steps == 0) phases.pop_back();
    }
    if (!options.trace.empty()) {
        observe::write_trace(options.trace, names, recorder.spans(), recorder.steps(), ceilings);
    }
    std::string summary = observe::summary_line(report, observe::place_of(gpu));
    if (made.evicted > 0) {
        summary += fmt::format("; {} left the window", observe::counted(made.evicted, "token"));
    }
    if (!options.html.empty()) {
        observe::write_page(
            options.html,
            observe::run_page({names, summary, prompt, made.text, recorder.spans(),
                               recorder.steps(), phases,
                               model::plan_engine(engine.model(), engine.options())}));
    }

    if (options.shared.json) {
        Json json = {{"model", names.model},
                     {"device", names.device},
                     {"prompt", prompt},
                     {"text", made.text},
                     {"ids", made.ids},
                     {"stop_reason", decode::stop_reason_name(made.reason)},
                     {"evicted", made.evicted},
                     {"seed", options.generate.sampling.seed},
                     {"threads", engine.options().threads}};
        json.update(observe::report_json(report));
        for (const observe::Roofline& phase : phases) {
            json["roofline"][phase.phase] = observe::roofline_json(phase);
        }
        if (!options.trace.empty()) json["trace"] = options.trace;
        if (!options.html.empty()) json["html"] = options.html;
        out(json_text(json));
    } else {
        for (const observe::Roofline& phase : phases) {
            out(observe::roofline_table(phase) + "\n");
        }
        out(summary + "\n");
        if (!options.trace.empty()) {
            out(fmt::format("trace: {} (open it in ui.perfetto.dev or chrome://tracing)\n",
                            one_line(options.trace)));
        }
        if (!options.html.empty()) out(fmt::format("page: {}\n", one_line(options.html)));
    }
    return made.reason == decode::StopReason::cancelled ? InterruptGuard::exit_code() : 0;
}

}  // namespace

void add_profile(const Command& app, Action& action) {
    auto options = std::make_shared<ProfileOptions>();
    options->generate.max_tokens = 32;
    const Command command = app.add_subcommand(
        "profile", "Run a prompt and show where the time and the bytes went, stage by stage");
    add_model_options(command, options->shared);
    const Option prompt = command
                              .add_option("-p,--prompt", options->prompt,
                                          "Text to continue; '-': standard input. Without -p, a "
                                          "pipe on standard input is the prompt")
                              .shown_as("WORDS");
    command
        .add_option("--trace", options->trace,
                    "Write a trace for Perfetto or chrome://tracing to this file (JSON)")
        .shown_as("FILE");
    command
        .add_option("--html", options->html,
                    "Write a page with the timeline and the roofline to this file")
        .shown_as("FILE");
    add_sampling_options(command, options->generate);
    add_context_options(command, options->context, {"full", "streaming"});
    add_diffusion_options(command, options->diffusion, false);
    add_engine_options(command, options->shared);
    add_disable_option(command, options->shared);
    add_json_option(command, options->shared);
    command.footer(
        "Examples:\n"
        "  millrace profile -p \"Once upon a time\" --trace out.json\n"
        "  millrace profile model.gguf -p \"Hello\" -n 64 --html out.html\n"
        "  millrace profile model.gguf -p \"Hello\" -n 500 --context streaming --window 124\n"
        "How to read the table: docs/observe.md.");
    command.callback([=, &action] {
        options->prompt_given = prompt.given();
        if (!command.given("--seed")) options->generate.sampling.seed = fresh_seed();
        action = [options, command] { return profile(command, *options); };
    });
}

}  // namespace mr::cli
