#include "lab/context/ways.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "lab/context/sequences.h"
#include "lab/context/stage_clock.h"

namespace mr::context {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

void tell(const Progress& progress, const std::string& what, std::int64_t done, std::int64_t all) {
    if (progress) {
        progress(what, static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(all));
    }
}

double mean(std::span<const double> values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

int most_pruned(const Options& options) {
    int most = 1;
    for (const int prune : options.prunes) most = std::max(most, prune);
    return most;
}

std::span<const std::int32_t> window_before(std::span<const std::int32_t> ids, std::int64_t target,
                                            std::int64_t cap) {
    const std::int64_t begin = std::max<std::int64_t>(target - cap, 0);
    return ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(target - begin));
}

double nll_of(model::Engine& engine, Tensor logits, std::span<const std::int32_t> target) {
    double nll = 0;
    engine.cross_entropy({&nll, 1}, logits.slice_rows(0, 1), target);  // waits
    if (std::isfinite(nll)) return nll;
    throw Error::input({.file = engine.model().source,
                        .field = "loss",
                        .value = std::to_string(nll),
                        .problem = "the model's logits are not finite",
                        .remedy = "the weights are damaged: convert or download them again"});
}

// Draws tokens greedily and feeds each back, with the steps of normal generation. `evicts`: tokens
// between evictions.
void time_steps(model::Engine& engine, Sequence& sequence, const Options& options, int evicts,
                Way& way, const Progress& progress) {
    // One token short of full: the next one sees `cap` keys.
    const auto prompt = std::span(options.ids).first(static_cast<std::size_t>(options.cap() - 1));
    model::DrawParams greedy;
    greedy.sampling.temperature = 0;
    Tensor logits = sequence.prompt(prompt);
    sequence.keep();
    sequence.settle();
    const std::unique_ptr<StageClock> clock = StageClock::make(engine.context());
    model::Slot slot = model::kNoSlot;
    std::uint64_t bytes = 0;
    const auto step = [&] {
        if (slot == model::kNoSlot) {
            slot = engine.open_slot(sequence.id(), greedy);
            engine.draw(logits, {&slot, 1});
        }
        const model::BatchItem item{.seq = sequence.id(), .feed = slot, .draw = {&slot, 1}};
        clock->begin();
        logits = engine.submit({&item, 1});
        clock->forward_ended();
        bytes += sequence.keep();
        clock->upkeep_ended();
        if (!sequence.settle()) return;
        engine.close_slot(slot);
        slot = model::kNoSlot;
    };
    // Whole rounds from eviction to eviction, so that the mean is that of a long text.
    const auto rounds = [&](std::int64_t tokens) {
        return (tokens + evicts - 1) / evicts * evicts;
    };
    constexpr std::int64_t kWarmup = 8;
    for (std::int64_t i = 0; i < rounds(kWarmup); ++i) step();
    clock->forget();
    bytes = 0;
    way.tokens = rounds(std::max<std::int64_t>(options.timed, 1));
    const auto start = Clock::now();
    for (std::int64_t i = 0; i < way.tokens; ++i) {
        if (i % 16 == 0) tell(progress, "timing, " + way.name, i, way.tokens);
        step();
    }
    clock->finish();
    engine.synchronize();
    const auto tokens = static_cast<double>(way.tokens);
    way.wall = seconds_since(start) / tokens;
    way.forward = clock->forward() / tokens;
    way.upkeep = clock->upkeep() / tokens;
    way.bytes = static_cast<double>(bytes) / tokens;
    if (slot != model::kNoSlot) engine.close_slot(slot);
}

std::vector<double> score_steps(model::Engine& engine, Sequence& sequence,
                                std::span<const std::int32_t> ids, const Progress& progress) {
    engine.require_tokens(ids);
    std::vector<double> nll;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        if (i % 16 == 0) {
            tell(progress, "scoring", static_cast<std::int64_t>(i),
                 static_cast<std::int64_t>(ids.size()));
        }
        const model::BatchItem item{.seq = sequence.id(), .tokens = ids.subspan(i, 1)};
        nll.push_back(nll_of(engine, engine.submit({&item, 1}), ids.subspan(i + 1, 1)));
        sequence.keep();
        sequence.settle();
    }
    return nll;
}

void enter_scores(const Options& options, std::span<const double> nll, Way& way) {
    way.nll = mean(nll);
    std::vector<double> samples;
    for (const std::int64_t target : sampled_targets(options)) {
        samples.push_back(nll[static_cast<std::size_t>(target - 1)]);  // [0] is ids[1]'s
    }
    way.sample_nll = mean(samples);
}

Way recompute(model::Engine& engine, const Options& options, const Progress& progress) {
    Way way;
    way.name = "recompute";
    const std::vector<std::int64_t> targets = sampled_targets(options);
    const std::span<const std::int32_t> ids = options.ids;
    const auto once = [&](std::int64_t target) {
        engine.synchronize();
        const auto start = Clock::now();
        Sequence sequence(engine);
        sequence.prompt(window_before(ids, target, options.cap()));
        engine.synchronize();
        return seconds_since(start);
    };
    once(targets.front());  // warm-up
    for (const std::int64_t target : targets) {
        tell(progress, "timing, " + way.name, way.tokens,
             static_cast<std::int64_t>(targets.size()));
        way.forward += once(target);
        ++way.tokens;
    }
    way.forward /= static_cast<double>(way.tokens);
    way.wall = way.forward;
    if (options.score) {
        way.sample_nll = mean(score_recomputed(engine, options.cap(), ids, targets));
    }
    return way;
}

Way published(model::Engine& engine, const Options& options, int prune, const Progress& progress) {
    Way way;
    way.name = prune == 1 ? "published" : "pruned every " + std::to_string(prune);
    way.prune = prune;
    {
        PublishedSequence sequence(engine, options.stream, prune);
        time_steps(engine, sequence, options, prune, way, progress);
    }
    if (options.score) {
        enter_scores(options, score_published(engine, options.stream, prune, options.ids, progress),
                     way);
    }
    return way;
}

Way ring(model::Engine& engine, const Options& options, const Progress& progress) {
    Way way;
    way.name = "ring";
    {
        RingSequence sequence(engine, options.stream);
        time_steps(engine, sequence, options, 1, way, progress);
    }
    if (options.score) {
        enter_scores(options, score_ring(engine, options.stream, options.ids, progress), way);
    }
    return way;
}

}  // namespace

model::EngineOptions plain_options(const Options& options) {
    model::EngineOptions engine = options.engine;
    engine.context = options.cap() - 1 + most_pruned(options);
    engine.max_sequences = 1;
    engine.stream = {};
    return engine;
}

model::EngineOptions ring_options(const Options& options) {
    model::EngineOptions engine = plain_options(options);
    engine.stream = options.stream;
    return engine;
}

void require_ways(const model::Model& model, const Options& options) {
    if (model.spec.widest_window() > 0 || model.spec.learned_positions) {
        throw Error::input(
            {.file = model.source,
             .problem = model.spec.learned_positions
                            ? "has learned positions: its cache cannot stream"
                            : "has a window of its own: there is nothing to evict",
             .remedy = "measure a model with rotary positions that sees all tokens"});
    }
    for (const model::LayerSpec& layer : model.spec.layer_specs()) {
        if (layer.mask.window == 0) continue;
        throw Error::input({.file = model.source,
                            .problem = "some of its layers have a window of their own, which the "
                                       "published cache knows nothing of",
                            .remedy = "measure a model whose layers see all tokens"});
    }
    const auto tokens = static_cast<std::int64_t>(options.ids.size());
    if (tokens > options.cap()) return;
    throw Error::input({.field = "text",
                        .value = std::to_string(tokens) + " tokens",
                        .problem = "nothing of it is evicted from a cache of " +
                                   std::to_string(options.cap()) + " keys",
                        .remedy = "give a longer text or more --tokens, or a smaller --cap"});
}

std::vector<Way> compare(const std::shared_ptr<const model::Model>& model,
                         const std::shared_ptr<const model::DeviceWeights>& weights,
                         const Options& options, const Progress& progress) {
    require_ways(*model, options);
    std::vector<Way> ways;
    // One engine at a time: only one engine can have the step in one kernel.
    {
        const std::unique_ptr<model::Engine> engine =
            model::make_engine(model, plain_options(options), weights);
        ways.push_back(recompute(*engine, options, progress));
        ways.push_back(published(*engine, options, 1, progress));
        for (const int prune : options.prunes) {
            ways.push_back(published(*engine, options, prune, progress));
        }
    }
    const std::unique_ptr<model::Engine> engine =
        model::make_engine(model, ring_options(options), weights);
    ways.push_back(ring(*engine, options, progress));
    return ways;
}

std::vector<std::int64_t> sampled_targets(const Options& options) {
    const std::int64_t all = static_cast<std::int64_t>(options.ids.size()) - options.cap();
    const std::int64_t count = std::clamp<std::int64_t>(options.sample, 1, all);
    std::vector<std::int64_t> targets;
    for (std::int64_t i = 0; i < count; ++i) targets.push_back(options.cap() + i * all / count);
    return targets;
}

std::vector<double> score_recomputed(model::Engine& engine, std::int64_t cap,
                                     std::span<const std::int32_t> ids,
                                     std::span<const std::int64_t> targets) {
    std::vector<double> nll;
    for (const std::int64_t target : targets) {
        Sequence sequence(engine);
        const Tensor logits = sequence.prompt(window_before(ids, target, cap));
        nll.push_back(nll_of(engine, logits, ids.subspan(static_cast<std::size_t>(target), 1)));
    }
    return nll;
}

std::vector<double> score_published(model::Engine& engine, const model::Stream& stream, int prune,
                                    std::span<const std::int32_t> ids, const Progress& progress) {
    PublishedSequence sequence(engine, stream, prune);
    return score_steps(engine, sequence, ids, progress);
}

std::vector<double> score_ring(model::Engine& engine, const model::Stream& stream,
                               std::span<const std::int32_t> ids, const Progress& progress) {
    RingSequence sequence(engine, stream);
    return score_steps(engine, sequence, ids, progress);
}

}  // namespace mr::context
