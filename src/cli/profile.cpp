// millrace profile: a generation, recorded stage by stage.
#include "decode/profile.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/diffusion.h"
#include "cli/engine.h"
#include "cli/existing_file.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/prompt_input.h"
#include "cli/sampling.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "core/output_file.h"
#include "decode/prompt.h"
#include "observe/own_file.h"

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
    const auto probe = [](const std::string& path, const observe::ReportMark& mark) {
        if (path.empty()) return;
        observe::require_own_file(path, mark);
        const OutputFile file(path);
    };
    probe(options.trace, observe::kTraceMark);
    probe(options.html, observe::kPageMark);
    if (!options.html.empty() && !options.trace.empty() && same_file(options.html, options.trace)) {
        throw Error::usage({.field = "--html",
                            .value = options.html,
                            .problem = "is the file of --trace",
                            .remedy = "give another name"});
    }
    decode::Profiler profiler(options.every_step());
    const double load_begin = profiler.recorder().now();
    const LoadedModel loaded = load(options.shared, [&](const model::Model& model) {
        use_advice(command, model.generation, options.generate);
        const auto ids = decode::encode_prompt(model, prompt);
        const int tokens = options.generate.max_tokens;
        model::EngineOptions wanted =
            options_for(options.shared, model, ids.size(), options.generate);
        require_streaming(command, options.context);
        make_stream(options.context, model.spec, tokens, wanted, options.generate);
        use_diffusion(command, options.diffusion, model.spec, wanted, options.generate);
        return wanted;
    });
    profiler.recorder().add_span("load", load_begin, loaded.seconds);
    const std::unique_ptr<model::Engine> opened = make_engine(loaded);
    model::Engine& engine = *opened;
    note_block(options.diffusion, engine.model().spec);

    const bool words = options.shared.json || !options.html.empty();
    options.generate.keep = words ? decode::Keep::words : decode::Keep::nothing;
    options.generate.cancelled = [] { return InterruptGuard::pending(); };
    ProgressLine reading(kPromptPatience, false);
    show_prompt(reading, options.generate);
    bool begun = options.shared.json;
    const auto begin = [&] {
        if (!begun) out(prompt);
        begun = true;
    };
    const auto on_text = [&](std::string_view text) {
        begin();
        if (!options.shared.json) out(text);
        return true;
    };
    reading.begin(kReadingPrompt);
    decode::Generated generated = profiler.generate(engine, prompt, options.generate, on_text);
    reading.remove();
    begin();
    ProgressLine line;
    line.begin("measuring this machine");
    const decode::Profiled run =
        profiler.report(engine, prompt, std::move(generated), loaded.seconds);
    line.remove();
    if (!options.shared.json) out("\n\n");
    const decode::Generated& made = run.made;
    if (!options.trace.empty()) run.save_trace(options.trace);
    if (!options.html.empty()) run.save_html(options.html);

    if (options.shared.json) {
        Json json = {{"model", run.names.model},
                     {"device", run.names.device},
                     {"prompt", prompt},
                     {"text", made.text},
                     {"ids", made.ids},
                     {"stop_reason", decode::stop_reason_name(made.reason)},
                     {"evicted", made.evicted},
                     {"seed", options.generate.sampling.seed},
                     {"threads", engine.options().threads}};
        json.update(observe::report_json(run.report, observe::place_of(engine.options().cuda)));
        for (const observe::Roofline& phase : run.phases) {
            json["roofline"][phase.phase] = observe::roofline_json(phase);
        }
        if (!options.trace.empty()) json["trace"] = options.trace;
        if (!options.html.empty()) json["html"] = options.html;
        out(json_text(json));
    } else {
        out(run.table());
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
                              .add_option("-p,--prompt,prompt", options->prompt,
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
