// millrace bench diffusion: what samplers, passes and strategies of a diffusion model are
// worth.
#include "bench/diffusion/diffusion.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/engine.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "core/cuda/device.h"
#include "core/error.h"
#include "decode/measure.h"
#include "decode/prompt.h"
#include "observe/units.h"

namespace mr::cli {
namespace {

struct BenchDiffusionOptions {
    SharedOptions shared;
    std::vector<int> blocks{4, 8, 16, 32};
    std::string text;  // the prompt; empty: made-up tokens
    int prompt = 128, tokens = 128, reps = 2;
    float threshold = 0.9f;
    bool prefix_cache = false;
    ops::SampleParams sampling{.temperature = 1, .top_k = 50, .top_p = 1, .min_p = 0, .seed = 1};
};

std::vector<diffusion::Rung> rungs_of(const BenchDiffusionOptions& options,
                                      const model::ModelSpec& spec, bool cuda, bool graph) {
    using diffusion::Sampler;
    std::vector<int> blocks = options.blocks;
    if (spec.diffusion->sub_block > 0) blocks = {spec.diffusion->block};
    std::vector<diffusion::Rung> out;
    const auto add = [&](std::string name, Sampler sampler, int block, ops::DenoiseParams denoise) {
        diffusion::Rung rung{std::move(name), sampler, {}};
        rung.options.block = spec.diffusion->sub_block > 0 ? 0 : block;
        rung.options.denoise = denoise;
        rung.options.prefix_cache = options.prefix_cache;
        rung.options.check(spec);
        out.push_back(std::move(rung));
    };
    const int middle = blocks[blocks.size() / 2];
    const ops::DenoiseParams whole{.remask = ops::Remask::fixed};
    // On a CPU every sampler is on it; the first is not a part of the engine.
    add(cuda ? "sampler on the CPU" : "separate sampler", Sampler::host, middle, whole);
    if (cuda) add("sorting sampler", Sampler::sorted, middle, whole);
    // From here on an engine that can fill in blocks by itself does so.
    const bool alone = cuda && graph;
    if (alone) add("sampler on the GPU", Sampler::engine, middle, whole);
    const Sampler ours = alone ? Sampler::block : Sampler::engine;
    for (const int block : blocks) {
        for (const int part : {1, 2, 4}) {
            if (block % part != 0) continue;
            add(fmt::format("{} {} per pass", part, part == 1 ? "token" : "tokens"), ours, block,
                {.remask = ops::Remask::fixed, .steps = block / part});
        }
    }
    for (const ops::Remask remask :
         {ops::Remask::sequential, ops::Remask::dynamic, ops::Remask::entropy}) {
        add(ops::remask_name(remask), ours, middle,
            {.remask = remask, .threshold = options.threshold});
    }
    return out;
}

// The sampler that was used: for texts that the engine does not take, the host makes the passes.
diffusion::Sampler sampler_of(const diffusion::Rung& rung, const diffusion::Measured& m) {
    using diffusion::Sampler;
    return rung.sampler == Sampler::block && !m.alone ? Sampler::engine : rung.sampler;
}

Json rung_json(const diffusion::Rung& rung, const model::ModelSpec& spec,
               const diffusion::Measured& m, double first) {
    const auto ms = [&](double seconds) { return 1e3 * seconds / static_cast<double>(m.passes); };
    const auto bytes = [&](std::uint64_t b) {
        return static_cast<double>(b) / static_cast<double>(m.passes);
    };
    return {{"rung", rung.name},
            {"sampler", diffusion::sampler_name(sampler_of(rung, m))},
            {"block", rung.options.block_of(spec)},
            {"steps", rung.options.denoise.steps},
            {"remask", ops::remask_name(rung.options.denoise.remask)},
            {"ms", 1e3 * m.seconds},
            {"tok_s", m.tokens_per_second()},
            {"tokens", m.tokens},
            {"passes", m.passes},
            {"tokens_per_pass", m.tokens_per_pass()},
            {"speed_up", first / m.seconds},
            {"pass",
             {{"ms", ms(m.seconds)},
              {"forward_ms", ms(m.forward)},
              {"head_ms", ms(m.head)},
              {"sampling_ms", ms(m.sampling)},
              {"selection_ms", ms(m.selection)},
              {"copies_ms", ms(m.copies)},
              {"forward_alone_ms", ms(m.forward_alone)},
              {"forward_bytes", bytes(m.forward_bytes)},
              {"head_bytes", bytes(m.head_bytes)},
              {"sampling_bytes", bytes(m.sampling_bytes)},
              {"selection_bytes", bytes(m.selection_bytes)},
              {"to_device_bytes", bytes(m.to_device)},
              {"to_host_bytes", bytes(m.to_host)}}}};
}

// Published speedups of the experiment that this one repeats, on another GPU: its last sampler on
// the GPU against the one on the CPU, and the same with fewer steps.
constexpr double kTheirSampler = 1.77, kTheirFewerSteps = 3.19;

// Our figures beside it: as many passes as tokens, and the fewest, in blocks of the first rung's
// size.
struct Ratios {
    double sampler = 0, fewer_steps = 0;
};
Ratios ratios_of(const Json& rungs) {
    Ratios out;
    for (const Json& rung : rungs) {
        if (rung["block"] != rungs[0]["block"] || rung["sampler"] == rungs[0]["sampler"] ||
            rung["sampler"] == diffusion::sampler_name(diffusion::Sampler::sorted)) {
            continue;
        }
        const auto speed_up = rung["speed_up"].get<double>();
        const auto steps = rung["steps"].get<int>(), block = rung["block"].get<int>();
        if (rung["remask"] != ops::remask_name(ops::Remask::fixed)) continue;
        if (steps == block) out.sampler = speed_up;
        out.fewer_steps = std::max(out.fewer_steps, speed_up);
    }
    return out;
}

constexpr const char* kRungHead =
    "                                                            tokens   speed-   ms per  of "
    "layers\n"
    "  rung                   block passes        ms     tok/s per pass       up     pass   and "
    "head\n";
std::string rung_line(const diffusion::Rung& rung, const model::ModelSpec& spec,
                      const diffusion::Measured& m, double first) {
    const double pass = m.seconds / static_cast<double>(m.passes);
    return fmt::format(
        "  {:<22}{:>6}{:>7}{:>10.2f}{:>10.1f}{:>9.2f}{:>9.2f}{:>9.4f}{:>11}\n", rung.name,
        rung.options.block_of(spec), m.passes, 1e3 * m.seconds, m.tokens_per_second(),
        m.tokens_per_pass(), first / m.seconds, 1e3 * pass,
        m.forward_alone > 0 ? fmt::format("{:.3f}x", m.seconds / m.forward_alone) : "-");
}

constexpr const char* kStageHead =
    "                                layers     head   sample   select   copies |   layers     head"
    "   sample   select  to device    to host\n"
    "  rung                   block      ms       ms       ms       ms       ms |       MB       MB"
    "       MB       KB         KB         KB\n";
std::string stage_line(const diffusion::Rung& rung, const model::ModelSpec& spec,
                       const diffusion::Measured& m) {
    const auto ms = [&](double seconds) { return 1e3 * seconds / static_cast<double>(m.passes); };
    const auto of = [&](std::uint64_t bytes, double unit) {
        return static_cast<double>(bytes) / static_cast<double>(m.passes) / unit;
    };
    return fmt::format(
        "  {:<22}{:>6}{:>8.4f}{:>9.4f}{:>9.4f}{:>9.4f}{:>9.4f} |{:>9.2f}{:>9.2f}{:>9.3f}{:>9.3f}"
        "{:>11.3f}{:>11.3f}\n",
        rung.name, rung.options.block_of(spec), ms(m.forward), ms(m.head), ms(m.sampling),
        ms(m.selection), ms(m.copies), of(m.forward_bytes, 1e6), of(m.head_bytes, 1e6),
        of(m.sampling_bytes, 1e6), of(m.selection_bytes, 1e3), of(m.to_device, 1e3),
        of(m.to_host, 1e3));
}

int diffusion_bench(BenchDiffusionOptions options) {
    const InterruptGuard guard;
    const std::string text = options.text.empty() ? "" : read_input(options.text);
    std::vector<std::int32_t> prompt;
    std::vector<diffusion::Rung> rungs;
    const LoadedModel loaded = load(options.shared, [&](const model::Model& model) {
        if (!model.spec.diffusion) {
            throw Error::usage({.field = "MODEL",
                                .value = model.source,
                                .problem = "is an autoregressive model",
                                .remedy = "name a diffusion model, or use bench decode"});
        }
        prompt = text.empty() ? decode::made_up_ids(options.prompt, model.spec.vocab)
                              : decode::encode_prompt(model, text);
        std::replace(prompt.begin(), prompt.end(), model.spec.diffusion->mask, 0);
        model::EngineOptions wanted = engine_options(options.shared);
        rungs = rungs_of(options, model.spec, wanted.cuda, wanted.graph);
        for (const diffusion::Rung& rung : rungs) {
            wanted.block = std::max(wanted.block, rung.options.block_of(model.spec));
        }
        wanted.context =
            std::min<std::int64_t>(model.spec.context, std::ssize(prompt) + options.tokens);
        return wanted;
    });
    const std::unique_ptr<model::Engine> engine = make_engine(loaded);
    const model::ModelSpec& spec = loaded.model->spec;
    const std::int64_t tokens =
        std::min<std::int64_t>(options.tokens, engine->options().context - std::ssize(prompt));
    if (tokens < 1) {
        throw Error::input({.field = "prompt",
                            .value = fmt::format("{} tokens", prompt.size()),
                            .problem = "leaves no room for a token in the context",
                            .remedy = "shorten it"});
    }
    const std::unique_ptr<diffusion::SortedRows> sorted = diffusion::SortedRows::make(
        engine->context(), engine->options().max_logits, spec.vocab, spec.diffusion->mask);
    const bool cuda = engine->options().cuda;
    const std::string device =
        cuda ? cuda::device()->name : observe::counted(thread_count(options.shared), "thread");
    Json json = {{"bench", "diffusion"}, {"model", loaded.model->source},
                 {"device", device},     {"prompt_tokens", prompt.size()},
                 {"tokens", tokens},     {"rungs", Json::array()}};
    if (!options.shared.json) {
        out(fmt::format(
            "diffusion {}: {}\n  {} tokens behind a prompt of {}; only generated tokens count\n{}",
            one_line(loaded.model->source), device, tokens, prompt.size(), kRungHead));
    }
    double first = 0;
    std::string stages;
    for (const diffusion::Rung& rung : rungs) {
        if (InterruptGuard::pending()) throw Interrupted{};
        const diffusion::Measured m = diffusion::measure(
            *engine, sorted.get(), rung, options.sampling, prompt, tokens, options.reps);
        if (first == 0) first = m.seconds;
        json["rungs"].push_back(rung_json(rung, spec, m, first));
        if (options.shared.json) continue;
        out(rung_line(rung, spec, m, first));
        stages += stage_line(rung, spec, m);
    }
    if (!options.shared.json) {
        out(fmt::format("  the stages of a pass, in a run with a clock on each\n{}{}", kStageHead,
                        stages));
    }
    const Ratios ours = ratios_of(json["rungs"]);
    json["against_the_cpu_sampler"] = {
        {"sampler", ours.sampler},
        {"fewer_steps", ours.fewer_steps},
        {"experiment", {{"sampler", kTheirSampler}, {"fewer_steps", kTheirFewerSteps}}}};
    out(options.shared.json
            ? json_text(json)
            : fmt::format("  against the {} {:.2f}x, with fewer steps {:.2f}x; the experiment that "
                          "this began from: {:.2f}x and {:.2f}x\n",
                          rungs.front().name, ours.sampler, ours.fewer_steps, kTheirSampler,
                          kTheirFewerSteps));
    return 0;
}

}  // namespace

void add_bench_diffusion(const Command& bench, Action& action) {
    auto options = std::make_shared<BenchDiffusionOptions>();
    const Command command = bench.add_subcommand(
        "diffusion", "Speed of diffusion models by sampler, passes and strategy");
    add_model_options(command, options->shared);
    command.add_option("--blocks", options->blocks, "Tokens per block")
        .separated_by(',')
        .range(1, decode::DiffusionOptions::kMostBlock)
        .shows_default();
    command
        .add_option("--text", options->text,
                    "File with the text to continue; default: random tokens")
        .shown_as("FILE");
    command.add_option("--prompt", options->prompt, "Random tokens before the first block")
        .range(1, 1 << 20)
        .shows_default();
    command.add_option("-n,--tokens", options->tokens, "Tokens to generate")
        .range(1, 1 << 20)
        .shows_default();
    command
        .add_option("--threshold", options->threshold,
                    "Confidence threshold of the strategy dynamic")
        .range(0.0, 1.0)
        .shows_default();
    command.add_flag("--prefix-cache", options->prefix_cache,
                     "With full attention: cache the keys and values before a block");
    command
        .add_option("--top-k", options->sampling.top_k,
                    "Sample from the N most probable tokens; 0: all")
        .range(0, 1 << 30)
        .shows_default();
    command.add_option("--reps", options->reps, "Runs of each rung, of which the best counts")
        .range(1, 1000)
        .shows_default();
    add_machine_options(command, options->shared);
    add_disable_option(command, options->shared);
    add_json_option(command, options->shared);
    command.footer(
        "docs/diffusion.md explains the rungs.\n"
        "Examples:\n"
        "  millrace bench diffusion random:sdar-4b:bf16\n"
        "  millrace bench diffusion MODEL --text prompt.txt --blocks 4 --json");
    command.callback(
        [options, &action] { action = [options] { return diffusion_bench(*options); }; });
}

}  // namespace mr::cli
