// millrace bench batch: many generations on one engine, all at once or arriving over time.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/diffusion.h"
#include "cli/engine.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/error.h"
#include "decode/measure_batch.h"
#include "observe/device_bandwidth.h"
#include "observe/roofline.h"
#include "observe/run_report.h"
#include "observe/units.h"

namespace mr::cli {
namespace {

struct BenchBatchOptions {
    SharedOptions shared;
    DiffusionChoice diffusion;
    std::vector<int> sequences{1, 8, 32, 64};
    decode::BatchLoad load;
    int prompt = 128, tokens = 128, requests = 0;
    std::string arrivals, mix;
    bool given_sequences = false;
};

[[noreturn]] void bad(const char* field, const std::string& value, const char* remedy) {
    throw Error::usage(
        {.field = field, .value = value, .problem = "cannot be read", .remedy = remedy});
}

// "40/s" or "40".
double rate_of(const std::string& text) {
    const std::string number = text.ends_with("/s") ? text.substr(0, text.size() - 2) : text;
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc() || end != number.data() + number.size() || !(value > 0)) {
        bad("--arrivals", text, "give requests per second, 40/s for example");
    }
    return value;
}

// "1024:128,128:512": tokens in and out.
std::vector<decode::BatchShape> mix_of(const std::string& text) {
    std::vector<decode::BatchShape> mix;
    const char* at = text.data();
    const char* const stop = text.data() + text.size();
    const auto number = [&](int& to) {
        const auto [end, error] = std::from_chars(at, stop, to);
        if (error != std::errc() || to < 1 || to > 1 << 24) {
            bad("--mix", text, "give IN:OUT pairs of tokens, 1024:128,128:512 for example");
        }
        at = end;
    };
    do {
        if (!mix.empty()) ++at;  // the comma
        decode::BatchShape shape;
        number(shape.input);
        if (at == stop || *at++ != ':') bad("--mix", text, "write a colon between in and out");
        number(shape.output);
        mix.push_back(shape);
    } while (at != stop && *at == ',');
    if (at != stop) bad("--mix", text, "separate pairs by commas");
    return mix;
}

// Share of the roofline that the passes reached: the least time of their bytes, or of their FLOPs
// if that is longer, at the ceilings, over the measured time.
double share_of_roof(const decode::Phase& phase, const observe::Ceilings& ceilings) {
    std::vector<OpRecord> work;
    for (std::size_t i = 0; i < Ledger::kOps; ++i) {
        work.push_back(phase.ledger.op(static_cast<OpKind>(i)));
    }
    return observe::ratio(observe::least_time(work, ceilings).seconds, phase.seconds);
}

Json measured_json(int sequences, const decode::BatchMeasured& m, const observe::Ceilings& c) {
    const auto ms = [](double seconds) { return seconds * 1e3; };
    return {{"sequences", sequences},
            {"requests", m.requests},
            {"cancelled", m.cancelled},
            {"input_tokens", m.input},
            {"output_tokens", m.output},
            {"found_tokens", m.totals.found},
            {"seconds", m.seconds},
            {"output_tok_s", m.output_per_second()},
            {"decode_tok_s", m.decode_per_second()},
            {"prefill_tok_s", m.totals.prefill.tokens_per_second()},
            {"first_token_ms",
             {{"p50", ms(decode::quantile(m.first_token, 0.5))},
              {"p95", ms(decode::quantile(m.first_token, 0.95))},
              {"p99", ms(decode::quantile(m.first_token, 0.99))},
              {"first", m.first_token.empty()
                            ? 0
                            : ms(*std::min_element(m.first_token.begin(), m.first_token.end()))},
              {"last", m.first_token.empty()
                           ? 0
                           : ms(*std::max_element(m.first_token.begin(), m.first_token.end()))}}},
            {"per_token_ms",
             {{"p50", ms(decode::quantile(m.per_token, 0.5))},
              {"p95", ms(decode::quantile(m.per_token, 0.95))},
              {"p99", ms(decode::quantile(m.per_token, 0.99))}}},
            {"tokens_per_pass", m.tokens_per_pass()},
            {"passes", m.totals.passes},
            {"mixed_passes", m.totals.mixed},
            {"decode_percent_of_roof", 100 * share_of_roof(m.totals.decode, c)},
            {"prefill_percent_of_roof", 100 * share_of_roof(m.totals.prefill, c)},
            {"ledger", observe::ledger_json(m.ledger)}};
}

std::string row_text(const Json& row) {
    return fmt::format(
        "{:>6}{:>12.1f}{:>12.1f}{:>12.2f}{:>11.2f}{:>11.2f}{:>11.2f}{:>9.1f}%\n",
        row["sequences"].get<int>(), row["output_tok_s"].get<double>(),
        row["decode_tok_s"].get<double>(), row["first_token_ms"]["p50"].get<double>(),
        row["first_token_ms"]["p99"].get<double>(), row["per_token_ms"]["p50"].get<double>(),
        row["per_token_ms"]["p99"].get<double>(), row["decode_percent_of_roof"].get<double>());
}

int bench(BenchBatchOptions options, const Command& command) {
    const bool arrives = !options.arrivals.empty();
    options.load.mix = options.mix.empty()
                           ? std::vector{decode::BatchShape{options.prompt, options.tokens}}
                           : mix_of(options.mix);
    if (arrives) options.load.arrivals = rate_of(options.arrivals);
    int longest = 0;
    for (const decode::BatchShape& shape : options.load.mix) {
        longest = std::max(longest, shape.input + shape.output);
    }
    if (arrives && options.sequences.size() > 1 && options.given_sequences) {
        throw Error::usage({.field = "--sequences",
                            .problem = "with --arrivals it is one number",
                            .remedy = "give the most that run at a time"});
    }
    const int most = *std::max_element(options.sequences.begin(), options.sequences.end());
    observe::Ceilings ceilings;
    bool fills = false;
    const LoadedModel loaded = load(options.shared, [&](const model::Model& model) {
        model::EngineOptions wanted = engine_options(options.shared);
        wanted.max_sequences = most;
        decode::GenerateOptions generate;
        use_diffusion(command, options.diffusion, model.spec, wanted, generate);
        options.load.diffusion = generate.diffusion;
        fills = model.spec.diffusion.has_value();
        if (wanted.context == 0) wanted.context = longest;
        return wanted;
    });
    const std::unique_ptr<model::Engine> engine = make_engine(loaded);
    ceilings = observe::ceilings_of(engine->options().cuda, *engine->context().pool, 0.1, true);
    Json json = {{"bench", "batch"},
                 {"model", engine->model().source},
                 {"device", observe::device_name(engine->options().cuda)},
                 {"ctx", engine->options().context},
                 {"pool", engine->options().pool},
                 {"rows", Json::array()}};
    std::string text = fmt::format(
        "batch {}: {}, {} at most\n{:>6}{:>12}{:>12}{:>24}{:>21}{:>11}\n"
        "{:>6}{:>12}{:>12}{:>12}{:>11}{:>11}{:>11}{:>10}\n",
        one_line(engine->model().source), observe::device_name(engine->options().cuda),
        observe::counted(most, "sequence"), "", "output", "decode", "first token, ms",
        "ms per token", "of the", "seqs", "tok/s", "tok/s", "p50", "p99", "p50", "p99", "roof");
    // A warm-up run that is not counted, for one-time work.
    decode::BatchLoad warm = options.load;
    warm.requests = 2;
    warm.arrivals = warm.cancelled = 0;
    for (decode::BatchShape& shape : warm.mix) shape.output = std::min(shape.output, 8);
    warm.seed ^= 0x5eed;
    decode::measure_batch(*engine, warm);
    ProgressLine line;
    for (const int sequences : arrives ? std::vector{most} : options.sequences) {
        decode::BatchLoad load = options.load;
        load.at_a_time = sequences;
        load.requests = options.requests > 0 ? options.requests
                        : arrives            ? 4 * sequences
                                             : sequences;
        load.seed += static_cast<std::uint64_t>(sequences);
        const decode::BatchMeasured m = decode::measure_batch(*engine, load, line.callback());
        json["rows"].push_back(measured_json(sequences, m, ceilings));
        text += row_text(json["rows"].back());
    }
    line.remove();
    const Json& last = json["rows"].back();
    if (arrives) {
        text +=
            fmt::format("  {} requests in {:.2f} s, {} cancelled, {} passes, {} of them mixed\n",
                        last["requests"].get<int>(), last["seconds"].get<double>(),
                        last["cancelled"].get<int>(), last["passes"].get<int>(),
                        last["mixed_passes"].get<int>());
    }
    if (fills)
        text += fmt::format("  {:.2f} tokens per pass\n", last["tokens_per_pass"].get<double>());
    out(options.shared.json ? json_text(json) : text);
    return 0;
}

}  // namespace

void add_bench_batch(const Command& bench_command, Action& action) {
    auto options = std::make_shared<BenchBatchOptions>();
    const Command command = bench_command.add_subcommand(
        "batch",
        "Many generations on one engine: output tokens per second, time to the first token");
    add_model_options(command, options->shared);
    command
        .add_option("--sequences", options->sequences,
                    "Sequences at a time; a list is measured one after the other")
        .separated_by(',')
        .range(1, 65536)
        .shows_default();
    command.add_option("--prompt", options->prompt, "Tokens per prompt")
        .range(1, 1 << 24)
        .shows_default();
    command.add_option("-n,--tokens", options->tokens, "Tokens generated per sequence")
        .range(1, 1 << 24)
        .shows_default();
    command
        .add_option("--arrivals", options->arrivals,
                    "Requests per second, at random (Poisson) times: 40/s; default: all at once")
        .shown_as("RATE");
    command
        .add_option("--mix", options->mix,
                    "Shapes of requests, each as likely, instead of --prompt and -n")
        .shown_as("IN:OUT,...");
    command
        .add_option("--requests", options->requests,
                    "Requests in all; 0: as many as sequences, four times that with --arrivals")
        .range(0, 1 << 24);
    command.add_option("--cancel", options->load.cancelled, "Share of requests that are cancelled")
        .range(0.0, 1.0)
        .shows_default();
    command.add_flag(
        "--same-prompt", options->load.same_prompt,
        "All prompts of a length are equal: one is computed, the others come from the cache");
    command.add_option("--seed", options->load.seed, "Seed of arrivals, shapes and cancellations");
    add_diffusion_options(command, options->diffusion, false);
    add_engine_options(command, options->shared);
    add_disable_option(command, options->shared);
    add_json_option(command, options->shared);
    command.footer(
        "Examples:\n"
        "  millrace bench batch random:llama-3-8b:bf16 --sequences 1,8,32,64,128,256 -n 128\n"
        "  millrace bench batch MODEL --arrivals 40/s --mix 1024:128,128:512 --cancel 0.05\n"
        "  millrace bench batch random:sdar-4b:bf16 --sequences 128 --remask static --steps 2");
    command.callback([options, command, &action] {
        options->given_sequences = command.given("--sequences");
        action = [options, command] {
            const InterruptGuard guard;
            return bench(*options, command);
        };
    });
}

}  // namespace mr::cli
