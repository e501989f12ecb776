// millrace eval: how well a model predicts a text.
#include "decode/eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/diffusion.h"
#include "cli/engine.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/prompt_input.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "core/output_file.h"
#include "decode/eval_diffusion.h"
#include "decode/eval_page.h"
#include "decode/prompt.h"
#include "observe/device_bandwidth.h"
#include "observe/own_file.h"
#include "text/documents.h"
#include "text/tokenizer.h"
#include "train/corpus.h"

namespace mr::cli {
namespace {

struct EvalCommandOptions {
    SharedOptions shared;
    std::string text;   // its file
    std::string piped;  // instead: what standard input had
    decode::EvalOptions eval;
    std::vector<std::string> modes = {"full"};  // of --context, one after another
    ContextOptions context;                     // sinks and window
    std::string plot;                           // a page to write
    DiffusionChoice diffusion;
    int bound = 4;  // for diffusion models
};

decode::ContextMode mode_of(const std::string& name) {
    using Mode = decode::ContextMode;
    for (const Mode mode : {Mode::window, Mode::streaming, Mode::recompute}) {
        if (name == decode::context_mode_name(mode)) return mode;
    }
    return Mode::full;
}

// Whether no document was cut, and the first token of each was predicted, too.
bool is_whole(const decode::EvalResult& result, const LoadedModel& loaded) {
    return result.cut == 0 && loaded.model->tokenizer->bos().has_value();
}

// Documents read at a time: short ones fill a pass together.
constexpr int kSideBySide = 16;

// One mode: what to evaluate, and its engine.
struct Planned {
    decode::EvalOptions eval;
    model::EngineOptions engine;
};

Planned plan(const EvalCommandOptions& options, const std::string& mode,
             const model::ModelSpec& spec) {
    Planned planned{options.eval, engine_options(options.shared)};
    model::EngineOptions& engine = planned.engine;
    engine.max_logits = decode::eval_logit_rows(spec);
    engine.max_sequences = kSideBySide;
    engine.graph = false;  // eval does not decode: there is no step to capture
    decode::EvalOptions& eval = planned.eval;
    eval.mode = mode_of(mode);
    if (eval.mode == decode::ContextMode::full) return planned;
    eval.stream = stream_for(options.context, spec);
    engine.stream = decode::stream_of(eval);
    if (eval.mode == decode::ContextMode::recompute) {
        const std::int64_t seen = std::int64_t{eval.stream.sinks} + eval.stream.window;
        engine.context = std::max(engine.context, seen + 1);
    }
    return planned;
}

// whole: each document was predicted from its beginning to its end.
Json json_of(const decode::EvalMode& mode, bool whole, const std::string& model,
             const std::string& text) {
    const decode::EvalResult& result = mode.result;
    Json json = {{"model", model},
                 {"text", text},
                 {"documents", result.documents},
                 {"tokens", result.tokens},
                 {"bytes", result.bytes},
                 {"nll", result.nll},
                 {"ppl", result.perplexity()},
                 {"bits_per_byte", result.bits_per_byte()},
                 {"nats_per_document", result.nats_per_document()},
                 {"cut", result.cut},
                 {"ctx", mode.context},
                 {"context", decode::context_mode_name(mode.mode)},
                 {"sinks", mode.stream.sinks},
                 {"window", mode.stream.window},
                 {"evicted", result.evicted},
                 {"seconds", result.phase.seconds},
                 {"tok_s", result.phase.tokens_per_second()},
                 {"tpot_ms", 1e3 * result.seconds_per_token()}};
    if (mode.sample > 0) {
        json["sample_tokens"] = result.sample_tokens;
        json["sample_nll"] = result.sample_nll;
    }
    if (whole) json["document_nats"] = result.document_nats;
    return json;
}

void print_figure(const char* name, const std::string& value) {
    out(fmt::format("{:<19}{}\n", name, value));
}

void print_one(const decode::EvalMode& mode, bool ends) {
    const decode::EvalResult& result = mode.result;
    print_figure("documents", fmt::format("{}", result.documents));
    print_figure("tokens", fmt::format("{}", result.tokens));
    print_figure("mean NLL", fmt::format("{:.4f} nats", result.nll));
    print_figure("perplexity", fmt::format("{:.4f}", result.perplexity()));
    print_figure("bits per byte", fmt::format("{:.4f}", result.bits_per_byte()));
    print_figure("time per token", fmt::format("{:.4f} ms", 1e3 * result.seconds_per_token()));
    if (mode.mode != decode::ContextMode::full)
        print_figure("evicted tokens", fmt::format("{}", result.evicted));
    if (ends) print_figure("nats per document", fmt::format("{:.3f}", result.nats_per_document()));
}

// A row of the table of modes, printed as soon as it is known.
void print_row(const decode::EvalMode& mode, bool first) {
    const decode::EvalResult& result = mode.result;
    const auto line = [&](const auto&... cells) {
        out(fmt::format("{:<10}{:>10}{:>11}{}{:>13}{:>15}{:>14}{:>11}\n", cells...));
    };
    const auto digits = [](double value) { return fmt::format("{:.4f}", value); };
    if (first) {
        line("context", "tokens", "mean NLL", mode.sample > 0 ? "  at samples" : "", "perplexity",
             "bits per byte", "ms per token", "evicted");
    }
    // If documents are cut, some of the sampled tokens are not predicted.
    const std::string at_samples = result.cut > 0 ? "-" : digits(result.sample_nll);
    line(decode::context_mode_name(mode.mode), result.tokens, digits(result.nll),
         mode.sample > 0 ? fmt::format("{:>12}", at_samples) : "", digits(result.perplexity()),
         digits(result.bits_per_byte()), digits(1e3 * result.seconds_per_token()), result.evicted);
}

// A diffusion model: the decoder's own likelihood, and the bound.
int eval_diffusion(const EvalCommandOptions& options, const std::string& text,
                   const LoadedModel& loaded, const decode::DiffusionEvalOptions& how) {
    const std::unique_ptr<model::Engine> engine = make_engine(loaded);
    note_block(options.diffusion, engine->model().spec);
    ProgressLine line;
    line.begin("evaluating");
    const decode::DiffusionEvalResult got =
        decode::evaluate_diffusion(*engine, text, options.eval, how, line.callback());
    line.remove();
    const decode::EvalResult& exact = got.exact;
    const double a_pass = static_cast<double>(exact.tokens) / static_cast<double>(got.passes);
    const decode::EvalMode mode{decode::ContextMode::full, {}, engine->options().context, 0, exact};
    if (options.shared.json) {
        Json json = json_of(mode, is_whole(exact, loaded), loaded.model->source, options.text);
        json["tokens_per_pass"] = a_pass;
        if (how.bound > 0) json["bound_nll"] = got.bound_nll;
        if (got.bound_error) json["bound_standard_error"] = *got.bound_error;
        out(json_text(json));
        return 0;
    }
    print_one(mode, true);
    print_figure("tokens per pass", fmt::format("{:.3f}", a_pass));
    if (how.bound > 0) {
        print_figure("bound",
                     fmt::format("{:.4f}{} nats per token", got.bound_nll,
                                 got.bound_error ? fmt::format(" +- {:.4f}", *got.bound_error)
                                                 : std::string()));
    }
    if (exact.cut > 0) {
        note(fmt::format("{} of {} documents were cut at the context's {} tokens", exact.cut,
                         exact.documents, mode.context));
    }
    return 0;
}

// Throws for an option that has no effect on this kind of model.
void refuse_unused(const Command& command, bool fills) {
    if (!fills && command.given("--bound")) {
        throw Error::usage({.field = "--bound",
                            .problem = "only applies to diffusion models; this one is "
                                       "autoregressive, and its NLL is exact",
                            .remedy = "leave it out"});
    }
    if (fills && command.given("--ends")) {
        throw Error::usage(
            {.field = "--ends",
             .problem =
                 "only applies to autoregressive models; diffusion models always predict the ends",
             .remedy = "leave it out"});
    }
}

int eval(const Command& command, const EvalCommandOptions& options) {
    const InterruptGuard guard;
    std::string text = options.piped.empty() ? read_input(options.text) : options.piped;
    train::require_text(text, options.text == "-" ? "standard input" : options.text);
    text.erase(0, text.size() - text::without_mark(text).size());
    std::vector<Planned> plans;
    decode::GenerateOptions generate;
    const LoadedModel loaded = load(options.shared, [&](const model::Model& model) {
        decode::require_tokenizer(model);
        refuse_unused(command, model.spec.diffusion.has_value());
        for (const std::string& mode : options.modes) {
            plans.push_back(plan(options, mode, model.spec));
            use_diffusion(command, options.diffusion, model.spec, plans.back().engine, generate);
            if (model.spec.diffusion && model.spec.diffusion->block == 0 && options.bound > 0) {
                // The bound masks a whole text at once.
                model::EngineOptions& engine = plans.back().engine;
                const std::int64_t context =
                    engine.context > 0 ? engine.context : model.spec.context;
                engine.max_logits = std::max(engine.max_logits, static_cast<int>(context));
            }
            if (model.spec.diffusion && (options.modes.size() > 1 || mode != "full")) {
                throw Error::usage({.field = "--context",
                                    .value = mode,
                                    .problem = "only applies to autoregressive models",
                                    .remedy = "leave it out"});
            }
            model::require_engine(model, plans.back().engine);
        }
        return plans.front().engine;
    });
    if (loaded.model->spec.diffusion) {
        if (!options.plot.empty()) {
            throw Error::usage({.field = "--plot",
                                .problem = "only applies to autoregressive models",
                                .remedy = "leave it out"});
        }
        return eval_diffusion(options, text, loaded, {generate.diffusion, options.bound});
    }
    // Opened now, so that a path that cannot be written fails before the work.
    std::optional<OutputFile> page;
    if (!options.plot.empty()) {
        observe::require_own_file(options.plot, observe::kPageMark);
        page.emplace(options.plot);
    }
    decode::EvalDescription all{
        loaded.model->source, options.text, observe::device_name(plans.front().engine.cuda), {}};
    const bool alone = plans.size() == 1;
    for (const Planned& planned : plans) {
        const std::unique_ptr<model::Engine> engine =
            model::make_engine(loaded.model, planned.engine, loaded.weights);
        ProgressLine line;
        line.begin("evaluating");
        // The context of a streaming engine follows from its window: report the model's.
        const bool own = planned.engine.stream && planned.engine.context == 0;
        const decode::EvalMode& mode = all.modes.emplace_back(decode::EvalMode{
            planned.eval.mode, planned.eval.stream,
            own ? loaded.model->spec.context : engine->options().context, planned.eval.sample,
            decode::evaluate(*engine, text, planned.eval, line.callback())});
        line.remove();
        const decode::EvalResult& result = mode.result;
        if (options.shared.json) {
            const Json json = json_of(mode, options.eval.ends && is_whole(result, loaded),
                                      loaded.model->source, options.text);
            out(alone ? json_text(json) : json_line(json));
            continue;
        }
        if (alone) {
            print_one(mode, options.eval.ends);
        } else {
            print_row(mode, all.modes.size() == 1);
        }
        if (result.cut > 0) {
            note(fmt::format("{} of {} documents were cut at the context's {} tokens", result.cut,
                             result.documents, mode.context));
        }
        if (alone) {
            note(fmt::format("{:.0f} tok/s, {:.2f} s", result.phase.tokens_per_second(),
                             result.phase.seconds));
        }
    }
    if (page) {
        page->write(decode::eval_page(all).html());
        page->commit();
        note(fmt::format("page: {}", one_line(options.plot)));
    }
    return 0;
}

}  // namespace

void add_eval(const Command& app, Action& action) {
    auto options = std::make_shared<EvalCommandOptions>();
    const Command command =
        app.add_subcommand("eval", "Measure how well a model predicts a text: NLL and perplexity");
    add_model_options(command, options->shared);
    const Option text = command
                            .add_option("--text", options->text,
                                        "The text; '-', or a pipe and no option: standard input")
                            .shown_as("FILE");
    command.add_option("--split", options->eval.split, "Separator between documents")
        .shown_as("WORDS");
    command.add_option("--limit", options->eval.limit, "At most N documents; 0: all")
        .range(0, 1 << 30)
        .shows_default();
    command.add_flag("--ends", options->eval.ends,
                     "Predict the end of each document, too, as diffusion models always do; --json "
                     "then has the nats of each whole document");
    command
        .add_option(
            "--context", options->modes,
            "What a token sees of a long text: full cuts it at the context, streaming keeps "
            "its first tokens (sinks) and the latest (window), window the latest alone, "
            "recompute encodes the latest anew for every token; several, with commas, are "
            "evaluated one after another")
        .one_of({"full", "window", "streaming", "recompute"})
        .separated_by(',')
        .shows_default();
    add_window_options(command, options->context);
    command
        .add_option("--sample", options->eval.sample,
                    "Recompute only N tokens of each document; 0: all. Other modes also report "
                    "their NLL for these tokens")
        .range(std::int64_t{0}, std::int64_t{1} << 30)
        .rare();
    command
        .add_option("--plot", options->plot,
                    "Write a page with the NLL as a curve over the position to this file (HTML)")
        .shown_as("FILE");
    add_diffusion_options(command, options->diffusion, false);
    command
        .add_option("--bound", options->bound,
                    "For a diffusion model: number of mask rates per block for the bound it was "
                    "trained with; 0: no bound")
        .range(0, 1 << 16)
        .shows_default()
        .rare();
    add_engine_options(command, options->shared);
    add_json_option(command, options->shared);
    command.footer(
        "Examples:\n"
        "  millrace eval model.gguf --text stories.txt --split '<|endoftext|>' --limit 50\n"
        "  millrace eval model.gguf --text book.txt --context window,streaming,recompute \\\n"
        "                --window 1020 --sample 200 --plot out.html");
    command.callback([options, command, text, &action] {
        if (!text.given()) {
            options->piped = piped_text("the text", "name its file with --text");
            if (options->piped.empty()) {
                throw Error::usage({.problem = "--text is required",
                                    .remedy = "or a text piped to standard input"});
            }
            options->text = "-";
        }
        std::vector<std::string>& modes = options->modes;
        for (std::size_t i = 0; i < modes.size(); ++i) {  // each once
            modes.erase(std::remove(modes.begin() + static_cast<std::ptrdiff_t>(i) + 1, modes.end(),
                                    modes[i]),
                        modes.end());
        }
        if (options->eval.sample > 0 &&
            std::find(modes.begin(), modes.end(), "recompute") == modes.end()) {
            throw Error::usage({.field = "--sample",
                                .problem = "only applies with --context recompute",
                                .remedy = "add recompute to --context"});
        }
        // Allowed with an explicit --context full: a script may pass the same options for every
        // way.
        for (const char* option : {"--sinks", "--window"}) {
            if (!command.given(option) || command.given("--context")) continue;
            throw Error::usage(
                {.field = option,
                 .problem = "only applies with --context window, streaming or recompute",
                 .remedy = "add one, or leave it out"});
        }
        if (command.given("--limit") && !command.given("--split")) {
            throw Error::usage({.field = "--limit",
                                .problem = "only applies with --split: the text is one document",
                                .remedy = "add that, or leave it out"});
        }
        action = [options, command] { return eval(command, *options); };
    });
}

}  // namespace mr::cli
