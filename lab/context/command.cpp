// millrace-lab context: the cost of four ways to keep a cache of fixed size.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "cli/diffusion.h"
#include "cli/engine.h"
#include "cli/json.h"
#include "cli/model_name.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/cpu.h"
#include "core/cuda/device.h"
#include "core/error.h"
#include "decode/measure.h"
#include "decode/prompt.h"
#include "lab/context/ways.h"
#include "lab/experiments.h"
#include "lab/outcome.h"
#include "model/io/random.h"
#include "observe/units.h"
#include "text/tokenizer.h"

namespace mr::cli {
namespace {

struct BenchContextOptions {
    SharedOptions shared;
    OutcomeOptions outcome;
    std::int64_t tokens = 20000, cap = 2048, timed = 0, sample = 200;
    int sinks = 4;
    std::vector<int> prunes{16, 64, 128};
    std::string text;  // a file; empty: no scoring
};

void require(const BenchContextOptions& options) {
    if (options.sinks >= options.cap) {
        throw Error::usage({.field = "--sinks",
                            .value = std::to_string(options.sinks),
                            .problem = fmt::format("leave no window of {} keys", options.cap),
                            .remedy = "use fewer, or a larger --cap"});
    }
    if (options.tokens <= options.cap) {
        throw Error::usage(
            {.field = "--tokens",
             .value = std::to_string(options.tokens),
             .problem =
                 fmt::format("fit into the cache of {} keys, so nothing is evicted", options.cap),
             .remedy = "give more, or a smaller --cap"});
    }
    if (!options.text.empty() && options.shared.model.starts_with(model::kRandomPrefix)) {
        throw Error::usage({.field = "--text",
                            .value = options.text,
                            .problem = "random weights predict nothing, and have no tokenizer",
                            .remedy = "leave it out, or name a model with trained weights"});
    }
}

// Encodes as eval does: special tokens spelled out in the text are plain text.
std::vector<std::int32_t> ids_of(const model::Model& model, const BenchContextOptions& options,
                                 const std::string& text) {
    if (options.text.empty()) {
        return decode::made_up_ids(static_cast<int>(options.tokens), model.spec.vocab);
    }
    const text::Tokenizer& tokenizer = decode::require_tokenizer(model);
    std::vector<std::int32_t> ids =
        tokenizer.encode(text, {.add_special = false, .parse_special = false});
    if (tokenizer.bos()) ids.insert(ids.begin(), *tokenizer.bos());
    ids.resize(std::min(ids.size(), static_cast<std::size_t>(options.tokens)));
    return ids;
}

Json way_json(const context::Way& way, const context::Way& ring) {
    Json json = {{"way", way.name},
                 {"prune", way.prune},
                 {"timed_tokens", way.tokens},
                 {"ms_per_token", 1e3 * way.seconds()},
                 {"forward_ms", 1e3 * way.forward},
                 {"upkeep_ms", 1e3 * way.upkeep},
                 {"upkeep_percent", 100 * way.share()},
                 {"upkeep_bytes", way.bytes},
                 {"wall_ms", 1e3 * way.wall},
                 {"times_ring", way.seconds() / ring.seconds()}};
    if (way.nll) {
        json["nll"] = *way.nll;
        json["perplexity"] = std::exp(*way.nll);
    }
    if (way.sample_nll) json["sample_nll"] = *way.sample_nll;
    return json;
}

std::string way_text(const context::Way& way, const context::Way& ring) {
    std::string text =
        fmt::format("  {:<16}  {:>9.4f}  {:>9.4f}  {:>9.4f}  {:>6.2f}%  {:>9.2f}  {:>7.2f}  {:>6}",
                    way.name, 1e3 * way.seconds(), 1e3 * way.forward, 1e3 * way.upkeep,
                    100 * way.share(), way.bytes / 1e6, way.seconds() / ring.seconds(), way.tokens);
    if (way.sample_nll) {
        text += fmt::format(
            "  {:>8}  {:>10}  {:>10.4f}", way.nll ? fmt::format("{:.4f}", *way.nll) : "-",
            way.nll ? fmt::format("{:.3f}", std::exp(*way.nll)) : "-", *way.sample_nll);
    }
    return text + "\n";
}

int context_bench(BenchContextOptions options) {
    check_outcome(options.outcome);
    const InterruptGuard guard;
    options.shared.model = model_source(options.shared);
    require(options);
    const std::string text = options.text.empty() ? "" : read_input(options.text);
    context::Options wanted;
    wanted.stream = {options.sinks, static_cast<std::int32_t>(options.cap - options.sinks)};
    wanted.prunes = options.prunes;
    wanted.sample = options.sample;
    wanted.score = !options.text.empty();
    const LoadedModel loaded = load(options.shared, [&](const model::Model& model) {
        refuse_diffusion(model, "context");
        wanted.engine = engine_options(options.shared);
        wanted.ids = ids_of(model, options, text);
        context::require_ways(model, wanted);
        return context::ring_options(wanted);
    });
    const auto tokens = static_cast<std::int64_t>(wanted.ids.size());
    wanted.timed = options.timed > 0 ? options.timed : tokens - options.cap;
    ProgressLine line;
    const std::vector<context::Way> ways =
        context::compare(loaded.model, loaded.weights, wanted, line.callback());
    line.remove();
    const context::Way& ring = ways.back();
    const bool cuda = wanted.engine.cuda;
    const std::string device = cuda ? cuda::device()->name : "cpu";
    const auto samples = static_cast<std::int64_t>(context::sampled_targets(wanted).size());
    Json json = {{"experiment", "context"}, {"model", loaded.model->source},
                 {"device", device},        {"threads", thread_count(options.shared)},
                 {"sinks", options.sinks},  {"window", wanted.stream.window},
                 {"cap", options.cap},      {"tokens", tokens},
                 {"samples", samples},      {"ways", Json::array()}};
    std::string table = fmt::format(
        "context {}: {}\n  {} tokens, {} sinks + a window of {}: {} keys; timed with a full cache, "
        "recompute for {} tokens\n",
        one_line(loaded.model->source),
        cuda ? device : observe::counted(thread_count(options.shared), "thread"), tokens,
        options.sinks, wanted.stream.window, options.cap, samples);
    table += fmt::format("  {:<16}  {:>9}  {:>9}  {:>9}  {:>7}  {:>9}  {:>7}  {:>6}", "way",
                         "ms/token", "forward", "upkeep", "of it", "MB moved", "x ring", "timed");
    if (wanted.score) {
        table += fmt::format("  {:>8}  {:>10}  {:>10}", "NLL", "perplexity", "at samples");
    }
    table += "\n";
    for (const context::Way& way : ways) {
        json["ways"].push_back(way_json(way, ring));
        table += way_text(way, ring);
    }
    show(options.outcome, json, table);
    return 0;
}

}  // namespace

void add_context(const Command& lab, Action& action) {
    auto options = std::make_shared<BenchContextOptions>();
    const Command command = lab.add_subcommand(
        "context", "Cost of going on with a full cache: recompute, published streaming, the ring");
    add_model_options(command, options->shared);
    command.add_option("--tokens", options->tokens, "Tokens of the text, at most")
        .range(std::int64_t{2}, std::int64_t{1} << 24)
        .shows_default();
    command.add_option("--cap", options->cap, "Keys that a token sees, including its own")
        .range(std::int64_t{2}, std::int64_t{1} << 20)
        .shows_default();
    command
        .add_option("--sinks", options->sinks,
                    "How many of them are the first tokens; the others are the latest")
        .range(0, 1 << 20)
        .shows_default();
    command
        .add_option("--prune", options->prunes,
                    "Also published streaming with N tokens evicted at a time")
        .separated_by(',')
        .range(2, 1 << 20)
        .shows_default();
    command
        .add_option(
            "--text", options->text,
            "File with a text, to measure its NLL in every way; without it, tokens are only timed")
        .shown_as("FILE");
    command
        .add_option("--timed", options->timed,
                    "Tokens that are timed in each way; 0: all that follow a full cache")
        .range(std::int64_t{0}, std::int64_t{1} << 24)
        .shows_default();
    command.add_option("--sample", options->sample, "Tokens that are recomputed, evenly spread")
        .range(std::int64_t{1}, std::int64_t{1} << 24)
        .shows_default();
    add_machine_options(command, options->shared);
    add_disable_option(command, options->shared);
    add_outcome_options(command, options->outcome);
    command.footer(
        "ms/token is forward + upkeep; \"MB moved\" is what the upkeep of a token reads and "
        "writes.\ndocs/streaming.md explains the ways.\n"
        "Examples:\n"
        "  millrace-lab context random:pythia-2.8b:f16 --tokens 20000 --cap 2048\n"
        "  millrace-lab context MODEL --text book.txt --cap 1024 --timed 2000 --json");
    command.callback(
        [options, &action] { action = [options] { return context_bench(*options); }; });
}

}  // namespace mr::cli
