// millrace run: generates text and prints it as it is made.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <iterator>
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
#include "cli/in_order.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/prompt_input.h"
#include "cli/rate.h"
#include "cli/sampling.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "decode/profile.h"
#include "decode/prompt.h"
#include "decode/scheduler.h"
#include "observe/device_bandwidth.h"
#include "observe/recorder.h"
#include "observe/roofline.h"
#include "observe/run_report.h"
#include "observe/units.h"

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

// One `millrace run`: the model, the texts that it makes, and what they took.
class Run {
  public:
    Run(const Command& command, RunOptions options);
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    void make_texts();
    void print_report();
    int exit_code() const;

  private:
    LoadedModel load_model(const Command& command);
    void observe_steps();
    void add_requests();
    void take_ended();
    void end(const decode::Generated& made);
    void print_json(const decode::Generated& made);
    void print_summary(const observe::RunReport& report);
    void measure_ceilings(observe::RunReport& report);
    std::vector<observe::Roofline> rooflines() const;

    RunOptions options_;
    const std::string prompt_;
    const int asked_;  // tokens; below 0: until the context is full
    std::vector<std::int32_t> ids_;
    const LoadedModel loaded_;
    const std::unique_ptr<model::Engine> engine_;
    const std::uint64_t first_seed_;  // text i has first_seed_ + i
    std::vector<observe::RooflineSums> sums_;
    std::optional<observe::Recorder> recorder_;
    std::optional<DenoisingView> view_;
    InOrder texts_;
    std::optional<decode::Scheduler> scheduler_;
    std::deque<decode::Scheduler::Id> open_;
    ProgressLine reading_{kPromptPatience, false};
    observe::Ceilings ceilings_;
    bool ceilings_stated_ = false;

    int added_ = 0, ended_ = 0;  // texts
    decode::StopReason reason_ = decode::StopReason::length;
    bool full_ = false;  // the context ended a text before it had all the tokens asked for
    std::int64_t evicted_ = 0, passes_ = 0;
};

Run::Run(const Command& command, RunOptions options)
    : options_(std::move(options)),
      prompt_(options_.prompt_file.empty() ? prompt_text(options_.prompt, options_.prompt_given)
                                           : read_input(options_.prompt_file)),
      asked_(options_.generate.max_tokens),
      loaded_(load_model(command)),
      engine_(make_engine(loaded_)),
      first_seed_(options_.generate.sampling.seed),
      texts_(options_.no_echo ? "" : prompt_, options_.count > 1, [this](std::string_view text) {
          reading_.remove();
          view_ ? view_->write(text) : out(text);
      }) {
    if (!options_.quiet) note_block(options_.diffusion, engine_->model().spec);
    if (options_.roofline) observe_steps();
    // MILLRACE_READ_RATE states the memory's rate, so that a short run need not measure. A roofline
    // is held against what was measured beside it.
    const char* rate = std::getenv("MILLRACE_READ_RATE");
    ceilings_stated_ = rate && *rate && !options_.roofline && !engine_->options().cuda;
    if (ceilings_stated_) ceilings_.read = parse_rate(rate, "MILLRACE_READ_RATE");
    options_.generate.cancelled = [] { return InterruptGuard::pending(); };
    options_.generate.keep = options_.shared.json ? decode::Keep::words : decode::Keep::nothing;
    if (options_.diffusion.show && !options_.shared.json) {
        view_.emplace(*engine_->model().tokenizer);
        options_.generate.on_pass = [this](auto block, auto known) {
            texts_.begin();
            reading_.remove();
            view_->show(block, known);
        };
    }
    show_prompt(reading_, options_.generate);
    scheduler_.emplace(*engine_, recorder_ ? &*recorder_ : nullptr);
}

LoadedModel Run::load_model(const Command& command) {
    return load(options_.shared, [&](const model::Model& model) {
        decode::GenerateOptions& generate = options_.generate;
        use_advice(command, model.generation, generate);
        ids_ = decode::encode_prompt(model, prompt_);
        model::EngineOptions wanted = options_for(options_.shared, model, ids_.size(), generate);
        require_streaming(command, options_.context);
        make_stream(options_.context, model.spec, asked_, wanted, generate);
        use_diffusion(command, options_.diffusion, model.spec, wanted, generate);
        wanted.max_sequences = std::min({options_.count, kMostTexts, most_open(generate)});
        if (model.spec.diffusion && model.spec.diffusion->block == 0) wanted.max_sequences = 1;
        // The common prompt of all texts is kept once, up to the model's context.
        if (wanted.stream && wanted.max_sequences > 1) {
            wanted.shared = std::min<std::int64_t>(std::ssize(ids_), model.spec.context);
        }
        return wanted;
    });
}

void Run::observe_steps() {
    for (const char* phase : {"prefill", "decode"}) sums_.emplace_back(phase);
    recorder_.emplace([this](const observe::Step& step) {
        for (observe::RooflineSums& phase : sums_) phase.add(step);
    });
}

void Run::make_texts() {
    const auto more = [&] { return added_ < options_.count && !InterruptGuard::pending(); };
    reading_.begin(kReadingPrompt);
    for (bool busy = true; busy || !open_.empty() || more();) {
        if (!InterruptGuard::pending()) add_requests();
        busy = scheduler_->step();
        take_ended();
    }
    reading_.remove();
}

// Requests are added as others end, so that a million texts are not a million waiting requests.
void Run::add_requests() {
    const auto most = static_cast<std::size_t>(most_open(options_.generate));
    for (; added_ < options_.count && open_.size() < most; ++added_) {
        options_.generate.sampling.seed = first_seed_ + static_cast<std::uint64_t>(added_);
        open_.push_back(
            scheduler_->add(ids_, options_.generate, [this, i = added_](std::string_view text) {
                if (!options_.shared.json) texts_.push(i, text);
                return true;
            }));
    }
}

void Run::take_ended() {
    while (!open_.empty()) {  // in order
        const std::optional<decode::Generated> made = scheduler_->take(open_.front());
        if (!made) return;
        open_.pop_front();
        end(*made);
    }
}

void Run::end(const decode::Generated& made) {
    // After the first text that was cut off nothing is shown.
    if (reason_ != decode::StopReason::cancelled) {
        reason_ = made.reason;
        if (options_.shared.json) {
            print_json(made);
        } else {
            texts_.end(reason_ != decode::StopReason::cancelled);
        }
    }
    full_ |= asked_ >= 0 && made.reason == decode::StopReason::context_full;
    evicted_ += made.evicted;
    passes_ += made.passes;
    ++ended_;
}

void Run::print_json(const decode::Generated& made) {
    observe::RunReport report = decode::report_of(engine_->model().spec, made, loaded_.seconds, 0);
    if (ended_ == 0 && (options_.count == 1 || options_.roofline)) measure_ceilings(report);
    Json json = {{"model", engine_->model().source},
                 {"prompt", prompt_},
                 {"prompt_ids", ids_},
                 {"text", made.text},
                 {"ids", made.ids},
                 {"stop_reason", decode::stop_reason_name(made.reason)},
                 {"evicted", made.evicted},
                 {"seed", first_seed_ + static_cast<std::uint64_t>(ended_)},
                 {"threads", engine_->options().threads}};
    if (options_.generate.logprobs >= 0) {
        json["logprobs"] = logprobs_json(made, engine_->model().tokenizer.get());
    }
    if (options_.count == 1) {
        json.update(observe::report_json(report, observe::place_of(engine_->options().cuda)));
        json["ledger"] = {{"load", observe::ledger_json(loaded_.ledger)},
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
    for (const observe::Roofline& r : rooflines()) {
        json["roofline"][r.phase] = observe::roofline_json(r);
    }
    // A prompt may have any bytes; JSON needs UTF-8.
    out(json_line(json));
}

// Measures what `report` and the rooflines are held against, unless nobody asks for it. That reads
// a buffer larger than the caches over and over, which takes seconds where those are large: if the
// cache holds a token's bytes, a smaller one does. A run that was faster than the memory shows that
// other work disturbed the measurement: one more.
void Run::measure_ceilings(observe::RunReport& report) {
    const bool gpu = engine_->options().cuda, fits = observe::fits(report, observe::place_of(gpu));
    const auto measure = [&] {
        const double before = ceilings_.read;
        ceilings_ = observe::ceilings_of(gpu, *engine_->context().pool, 0.1, options_.roofline,
                                         fits && !options_.roofline);
        ceilings_.read = std::max(ceilings_.read, before);
    };
    if (!ceilings_stated_ && (options_.roofline || !options_.quiet)) {
        ProgressLine line;
        line.begin("measuring the memory");
        measure();
        if (!fits && report.bytes_per_second() > ceilings_.read) measure();
    }
    report.read_bandwidth = ceilings_.read;
    report.stated = ceilings_stated_;
}

std::vector<observe::Roofline> Run::rooflines() const {
    std::vector<observe::Roofline> made;
    for (const observe::RooflineSums& phase : sums_) made.push_back(phase.under(ceilings_));
    return made;
}

void Run::print_report() {
    const bool json = options_.shared.json;
    decode::Generated all;  // phases over all texts
    all.prefill = scheduler_->totals().prefill;
    all.decode = scheduler_->totals().decode;
    all.passes = passes_;
    observe::RunReport report =
        decode::report_of(engine_->model().spec, all, loaded_.seconds, ceilings_.read);
    report.together = options_.count > 1;
    if (!json) measure_ceilings(report);
    if (!json) {
        for (const observe::Roofline& r : rooflines()) {
            err(fmt::format("\n{}", observe::roofline_table(r)));
        }
    }
    if (json ? options_.verbose : !options_.quiet) print_summary(report);
    if (options_.verbose) {
        err(fmt::format("\nprompt:\n{}\nanswer:\n{}", observe::op_table(report.prefill),
                        observe::op_table(report.decode)));
    }
}

void Run::print_summary(const observe::RunReport& report) {
    if (full_) {
        remark(fmt::format("the context of {} tokens is full{}", engine_->most_positions(),
                           engine_->model().spec.diffusion ? "" : "; --context streaming goes on"));
    }
    std::string line = observe::summary_line(report, observe::place_of(engine_->options().cuda));
    if (passes_ > 0) {
        const auto filled = static_cast<double>(scheduler_->totals().decode.tokens);
        line += fmt::format("; {:.2f} tokens per pass", filled / static_cast<double>(passes_));
    }
    if (evicted_ > 0)
        line += fmt::format("; {} left the window", observe::counted(evicted_, "token"));
    line += fmt::format("; seed {}", first_seed_);
    if (options_.count > 1) line += fmt::format(" and on, {} texts", options_.count);
    err(line + "\n");
}

int Run::exit_code() const {
    const bool cut = reason_ == decode::StopReason::cancelled || ended_ < options_.count;
    return cut ? InterruptGuard::exit_code() : 0;
}

int run(const Command& command, RunOptions options) {
    const InterruptGuard guard;
    Run texts(command, std::move(options));
    texts.make_texts();
    texts.print_report();
    return texts.exit_code();
}

}  // namespace

void add_run(const Command& app, Action& action) {
    auto options = std::make_shared<RunOptions>();
    const Command command =
        app.add_subcommand("run", "Continue a prompt; text streams as it is made");
    add_model_options(command, options->shared);
    command.group("Prompt");
    const Option prompt = command
                              .add_option("-p,--prompt,prompt", options->prompt,
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
                                text::kEndOfText))
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
        "  millrace run model.gguf \"Hello\" -n 200 --temp 0.8 --top-k 40 --top-p 0.9 --seed 7\n"
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
