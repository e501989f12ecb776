// One model with its cache kept in four ways, one token at a time (`millrace-lab context`):
//   recompute: the last `cap` tokens are encoded anew for every token;
//   published: StreamingLLM as published (upkeep.h), which evicts after every token;
//   pruned:    the same, but evicts R tokens at a time, every R tokens;
//   ring:      the engine's own streaming, which moves nothing.
// cap = sinks + window. A token sees `cap` keys, itself included; between two prunings one more for
// every token, up to cap + R - 1. Keys are rotated anew at every step in published and pruned
// alike, because the published attention does so whether or not something was evicted.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/progress.h"
#include "model/engine.h"

namespace mr::context {

struct Options {
    model::Stream stream{4, 2044};
    std::vector<int> prunes{16, 64, 128};  // R of the pruned ways
    std::vector<std::int32_t> ids;         // R of the pruned ways
    bool score = false;                    // the text; for random models any ids
    std::int64_t timed = 0;                // compute the NLL of the text
    std::int64_t sample = 200;             // tokens to time with a full cache, at least
    model::EngineOptions engine{};         // base options of all engines

    std::int64_t cap() const { return std::int64_t{stream.sinks} + stream.window; }
};

struct Way {
    std::string name;
    int prune = 0;            // tokens between evictions; 0: nothing moves
    std::int64_t tokens = 0;  // number timed
    // Seconds per token. On a GPU forward and upkeep are timed by its own clock; `wall` also
    // includes what only this measurement does between steps.
    double forward = 0, upkeep = 0, wall = 0;
    double bytes = 0;  // read and written by the upkeep, per token
    // With Options::score. `nll` is over the whole text; recompute has none.
    std::optional<double> nll, sample_nll;

    double seconds() const { return forward + upkeep; }
    double share() const { return seconds() > 0 ? upkeep / seconds() : 0; }
};

// The engines of the ways: one without streams, for all but the ring; and the ring's.
model::EngineOptions plain_options(const Options& options);
model::EngineOptions ring_options(const Options& options);
// Throws Error (input or usage) if a model or a text does not work in these ways.
void require_ways(const model::Model& model, const Options& options);

// Measures all ways in the order above, on one engine after another. `weights` are the model's
// weights on the device, if options.engine.cuda.
std::vector<Way> compare(const std::shared_ptr<const model::Model>& model,
                         const std::shared_ptr<const model::DeviceWeights>& weights,
                         const Options& options, const Progress& progress = {});

// The targets to recompute: indices of ids, evenly spread over those with `cap` before them.
std::vector<std::int64_t> sampled_targets(const Options& options);
// The NLL of ids[targets[i]] after the `cap` ids before it, or fewer at the start.
std::vector<double> score_recomputed(model::Engine& engine, std::int64_t cap,
                                     std::span<const std::int32_t> ids,
                                     std::span<const std::int64_t> targets);
// The NLL of ids[1], ids[2], ..., given one by one to an engine of plain_options() and
// ring_options().
std::vector<double> score_published(model::Engine& engine, const model::Stream& stream, int prune,
                                    std::span<const std::int32_t> ids,
                                    const Progress& progress = {});
std::vector<double> score_ring(model::Engine& engine, const model::Stream& stream,
                               std::span<const std::int32_t> ids, const Progress& progress = {});

}  // namespace mr::context
