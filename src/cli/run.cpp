// millrace run: generates text and prints it as it is made.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/context.h"
#include "cli/denoising_view.h"
#include "cli/diffusion.h"
#include "cli/engine.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/prompt_input.h"
#include "cli/rate.h"
#include "cli/sampling.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "decode/prompt.h"
#include "decode/scheduler.h"
#include "observe/device_bandwidth.h"
#include "observe/recorder.h"
#include "observe/roofline.h"
#include "observe/run_report.h"
#include "observe/units.h"
#include "story/storybook.h"

namespace mr::cli {
namespace {

struct RunOptions {
    SharedOptions shared;
    std::string prompt;
    bool prompt_given = false;
    std::string prompt_file;
    decode::GenerateOptions generate;
    ContextOptions context;
    DiffusionChoice diffusion;
    int count = 1;  // texts, each with the next seed
    bool no_echo = false;
    bool quiet = false;
    bool verbose = false;
    bool roofline = false;
};

Json logprobs_json(const decode::Generated& made, const text::Tokenizer* tokenizer) {
    const auto entry = [&](std::int32_t id, double logprob) {
        Json json = {{"id", id}};
        if (tokenizer) {
            const std::string piece = tokenizer->piece(id);
            json["token"] = piece;  // U+FFFD for a partial character
            json["bytes"] = Json::array();
            for (const char c : piece) json["bytes"].push_back(static_cast<unsigned char>(c));
        }
        json["logprob"] = logprob;
        return json;
    };
    Json list = Json::array();
    for (std::size_t i = 0; i < made.logprobs.size(); ++i) {
        Json json = entry(made.ids[i], made.logprobs[i].logprob);
        json["top"] = Json::array();
        for (const decode::TokenLogprob& other : made.logprobs[i].top) {
            json["top"].push_back(entry(other.id, other.logprob));
        }
        list.push_back(std::move(json));
    }
    return list;
}

void print_json(const decode::Generated& made, const std::string& prompt,
                std::span<const std::int32_t> prompt_ids, const observe::RunReport& report,
                std::span<const observe::Roofline> rooflines, const model::Engine& engine,
                const Ledger& loading, std::uint64_t seed, bool alone, bool logprobs) {
    Json json = {{"model", engine.model().source},
                 {"prompt", prompt},
                 {"prompt_ids", prompt_ids},
                 {"text", made.text},
                 {"ids", made.ids},
                 {"stop_reason", decode::stop_reason_name(made.reason)},
                 {"evicted", made.evicted},
                 {"seed", seed},
                 {"threads", engine.options().threads}};
    if (logprobs) json["logprobs"] = logprobs_json(made, engine.model().tokenizer.get());
    if (alone) {
        json.update(observe::report_json(report));
        json["ledger"] = {{"load", observe::ledger_json(loading)},
                          {"prefill", observe::ledger_json(report.prefill)},
                          {"decode", observe::ledger_json(report.decode)}};
    } else {  // the bytes of a pass are those of all texts in it
        json.update(Json{{"load_s", report.load_seconds},
                         {"prompt_tokens", made.prompt_tokens},
                         {report.passes ? "prefill_s" : "first_token_s", made.prefill.seconds}});
        json.update(observe::decoded_json(made.decode.tokens, report.passes));
        json.update(
            Json{{"decode_s", made.decode.seconds}, {"tok_s", made.decode.tokens_per_second()}});
    }
    for (const observe::Roofline& r : rooflines) {
        json["roofline"][r.phase] = observe::roofline_json(r);
    }
    // A prompt may have any bytes; JSON needs UTF-8.
    out(json_line(json));
}

// Prints texts in order: the first unfinished one streams, later ones wait.
class InOrder {
  public:
    using Write = std::function<void(std::string_view)>;
    InOrder(std::string prompt, bool separate, Write write)
        : write_(std::move(write)), prompt_(std::move(prompt)), separate_(separate) {}

    // Prints the prompt of the text that streams, if it is not printed yet.
    void begin() {
        if (!begun_) write_(prompt_);
        begun_ = true;
    }
    void push(int text, std::string_view piece) {
        if (text != current_) {
            if (current_ >= 0) held_[text] += piece;
            return;
        }
        if (piece.empty()) return;
        begin();
        write_(piece);
    }
    // `whole`: not cut off. A text that was cut off must not be taken for a whole one.
    void end(bool whole) {
        if (whole && !prompt_.empty()) begin();  // an empty text, too, follows its prompt
        if (begun_) write_("\n");
        if (separate_ && whole) write_(fmt::format("{}\n", story::kStorySeparator));
        begun_ = false;
        current_ = whole ? current_ + 1 : -1;  // after a text that was cut off, nothing is shown
        if (const auto next = held_.extract(current_)) push(current_, next.mapped());
    }

  private:
    Write write_;
    std::map<int, std::string> held_;  // output of texts after the current one
    std::string prompt_;
    bool separate_, begun_ = false;
    int current_ = 0;
};

// Texts made at a time, at most.
constexpr int kMostTexts = 256;

// Texts that are made or wait for an earlier one to end, at most: they are printed in order.
// Streaming texts hold at most 16 Mi tokens together; those without an end are made one after
// another.
int most_open(const decode::GenerateOptions& generate) {
    constexpr int kMost = 2 * kMostTexts, kMostHeld = 1 << 24;
    if (!generate.stream) return kMost;
    return std::clamp(kMostHeld / std::max(generate.max_tokens, 1), 1, kMost);
}

// Says why a text is shorter than asked for.
void note_full(const model::Engine& engine) {
    remark(fmt::format("the context of {} tokens is full{}", engine.most_positions(),
                       engine.model().spec.diffusion ? "" : "; --context streaming goes on"));
}

int run(const Command& command, RunOptions options) {
    const InterruptGuard guard;
    const std::string prompt = options.prompt_file.empty()
                                   ? prompt_text(options.prompt, options.prompt_given)
                                   : read_input(options.prompt_file);
    std::vector<std::int32_t> ids;
    const int asked = options.generate.max_tokens;  // below 0: until the context is full
    const LoadedModel loaded = load(options.shared, [&](const model::Model& model) {
        use_advice(command, model.generation, options.generate);
        ids = decode::encode_prompt(model, prompt);
        model::EngineOptions wanted =
            options_for(options.shared, model, ids.size(), options.generate);
        require_streaming(command, options.context);
        make_stream(options.context, model.spec, asked, wanted, options.generate);
        use_diffusion(command, options.diffusion, model.spec, wanted, options.generate);
        wanted.max_sequences = std::min({options.count, kMostTexts, most_open(options.generate)});
        if (model.spec.diffusion && model.spec.diffusion->block == 0) wanted.max_sequences = 1;
        // The common prompt of all texts is kept once, up to the model's context.
        if (wanted.stream && wanted.max_sequences > 1) {
            wanted.shared = std::min<std::int64_t>(std::ssize(ids), model.spec.context);
        }
        return wanted;
    });
    const std::unique_ptr<model::Engine> engine = make_engine(loaded);
    if (!options.quiet) note_block(options.diffusion, engine->model().spec);
    std::optional<observe::Recorder> recorder;
    std::vector<observe::RooflineSums> sums;
    if (options.roofline) {
        for (const char* phase : {"prefill", "decode"}) sums.emplace_back(phase);
        recorder.emplace([&](const observe::Step& step) {
            for (observe::RooflineSums& phase : sums) phase.add(step);
        });
    }
    decode::Scheduler scheduler(*engine, recorder ? &*recorder : nullptr);

    options.generate.cancelled = [] { return InterruptGuard::pending(); };
    const std::uint64_t first_seed = options.generate.sampling.seed;
    const bool stream = !options.shared.json;
    options.generate.keep = stream ? decode::Keep::nothing : decode::Keep::words;
    std::optional<DenoisingView> view;
    if (options.diffusion.show && stream) view.emplace(*engine->model().tokenizer);
    const auto most = static_cast<std::size_t>(most_open(options.generate));
    InOrder texts(options.no_echo ? "" : prompt, options.count > 1,
                  [&view](std::string_view text) { view ? view->write(text) : out(text); });
    if (view) {
        options.generate.on_pass = [&texts, &view](auto block, auto known) {
            texts.begin();
            view->show(block, known);
        };
    }
    std::deque<decode::Scheduler::Id> open;
    int added = 0;
    observe::Ceilings ceilings;
    // MILLRACE_READ_RATE states it, so that a short run need not measure. A roofline is held
    // against what was measured beside it.
    const char* rate = std::getenv("MILLRACE_READ_RATE");
    const bool stated = rate && *rate && !options.roofline && !engine->options().cuda;
    if (stated) ceilings.read = parse_rate(rate, "MILLRACE_READ_RATE");
    const auto measure_ceilings = [&] {
        if (stated) return;
        ceilings = observe::ceilings_of(engine->options().cuda, *engine->context().pool, 0.1,
                                        options.roofline);
    };
    const auto rooflines = [&] {
        std::vector<observe::Roofline> made;
        for (const observe::RooflineSums& phase : sums) made.push_back(phase.under(ceilings));
        return made;
    };
    // Requests are added as others end, so that a million texts are not a million waiting requests.
    const auto fill = [&] {
        for (; added < options.count && open.size() < most; ++added) {
            options.generate.sampling.seed = first_seed + static_cast<std::uint64_t>(added);
            open.push_back(scheduler.add(ids, options.generate,
                                         [&texts, stream, i = added](std::string_view text) {
                                             if (stream) texts.push(i, text);
                                             return true;
                                         }));
        }
    };
    decode::StopReason reason = decode::StopReason::length;
    int ended = 0;
    bool full = false;  // the context ended a text before it had all the tokens asked for
    std::int64_t evicted = 0, passes = 0;
    const auto more = [&] { return added < options.count && !InterruptGuard::pending(); };
    for (bool busy = true; busy || !open.empty() || more();) {
        if (!InterruptGuard::pending()) fill();
        busy = scheduler.step();
        while (!open.empty()) {  // in order
            const std::optional<decode::Generated> made = scheduler.take(open.front());
            if (!made) break;
            open.pop_front();
            // After the first text that was cut off nothing is shown.
            const bool show = reason != decode::StopReason::cancelled;
            if (show) reason = made->reason;
            full |= asked >= 0 && made->reason == decode::StopReason::context_full;
            if (stream && show) texts.end(reason != decode::StopReason::cancelled);
            if (options.shared.json && show) {
                if (ended == 0) measure_ceilings();
                print_json(*made, prompt, ids,
                           report_of(engine->model().spec, *made, loaded.seconds, ceilings.read),
                           rooflines(), *engine, loaded.ledger,
                           first_seed + static_cast<std::uint64_t>(ended), options.count == 1,
                           options.generate.logprobs >= 0);
            }
            evicted += made->evicted;
            passes += made->passes;
            ++ended;
        }
    }

    if (!options.shared.json && (!options.quiet || options.roofline)) measure_ceilings();
    decode::Generated all;  // phases over all texts
    all.prefill = scheduler.totals().prefill;
    all.decode = scheduler.totals().decode;
    all.passes = passes;
    const observe::RunReport report =
        report_of(engine->model().spec, all, loaded.seconds, ceilings.read);
    if (!options.shared.json) {
        for (const observe::Roofline& r : rooflines()) {
            err(fmt::format("\n{}", observe::roofline_table(r)));
        }
    }
    if (options.shared.json ? options.verbose : !options.quiet) {
        if (full) note_full(*engine);
        const std::int64_t filled = scheduler.totals().decode.tokens;
        err(fmt::format(
            "{}{}{}; seed {}\n",
            observe::summary_line(report, observe::place_of(engine->options().cuda)),
            passes > 0 ? fmt::format("; {:.2f} tokens per pass",
                                     static_cast<double>(filled) / static_cast<double>(passes))
                       : "",
            evicted > 0 ? fmt::format("; {} left the window", observe::counted(evicted, "token"))
                        : "",
            options.count == 1 ? fmt::format("{}", first_seed)
                               : fmt::format("{} and on, {} texts", first_seed, options.count)));
    }
    if (options.verbose) {
        err(fmt::format("\nprompt:\n{}\nanswer:\n{}", observe::op_table(report.prefill),
                        observe::op_table(report.decode)));
    }
    const bool cut = reason == decode::StopReason::cancelled || ended < options.count;
    return cut ? InterruptGuard::exit_code() : 0;
}

}  // namespace

void add_run(const Command& app, Action& action) {
    auto options = std::make_shared<RunOptions>();
    const Command command =
        app.add_subcommand("run", "Continue a prompt; text streams as it is made");
    add_model_options(command, options->shared);
    command.group("Prompt");
    const Option prompt = command
                              .add_option("-p,--prompt", options->prompt,
                                          "Text to continue; '-': standard input. Without -p, a "
                                          "pipe on standard input is the prompt")
                              .shown_as("WORDS");
    command.add_option("--prompt-file", options->prompt_file, "File with the text to continue")
        .shown_as("FILE")
        .excludes(prompt);
    command.group(kOptions);
    add_sampling_options(command, options->generate);
    add_context_options(command, options->context, {"full", "streaming"});
    add_diffusion_options(command, options->diffusion);
    command.group("Output");
    command
        .add_option("--count", options->count,
                    fmt::format("Number of texts, made in one batch with consecutive seeds, each "
                                "followed by a line {}",
                                story::kStorySeparator))
        .range(1, 1 << 30)
        .shows_default();
    const Option logprobs =
        command
            .add_option(
                "--logprobs", options->generate.logprobs,
                fmt::format("With --json: the log-probability of every token and of the N (0 to "
                            "{}) most probable ones, before temperature and truncation",
                            decode::kMostLogprobs))
            .range(0, decode::kMostLogprobs);
    command.add_flag("--no-echo", options->no_echo,
                     "Print only the generated text, without the prompt");
    command.add_flag("-q,--quiet", options->quiet, "No summary after the text");
    command.add_flag("-v,--verbose", options->verbose,
                     "After the text, print the time by op; with --json, on standard error");
    command.add_flag("--roofline", options->roofline,
                     "After the text, compare every stage with this machine's limits");
    add_json_option(command, options->shared);
    add_engine_options(command, options->shared);
    command.footer(
        "Examples:\n"
        "  millrace run -p \"Once upon a time\"\n"
        "  millrace run model.gguf -p \"Hello\" -n 200 --temp 0.8 --top-k 40 --top-p 0.9 --seed 7\n"
        "  cat question.txt | millrace run model.gguf --temp 0 --stop '###'");
    command.callback([=, &action] {
        options->prompt_given = prompt.given();
        if (logprobs.given() && !options->shared.json) {
            throw Error::usage({.field = "--logprobs",
                                .problem = "is a part of the JSON output",
                                .remedy = "add --json"});
        }
        if (!command.given("--seed")) options->generate.sampling.seed = fresh_seed();
        if (options->diffusion.show && options->count > 1) {
            throw Error::usage({.field = "--show-denoising",
                                .problem = "shows only one text",
                                .remedy = "leave --count out"});
        }
        action = [options, command] { return run(command, *options); };
    });
}

}  // namespace mr::cli
