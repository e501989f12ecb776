// One model, its cache kept in four ways, a token at a time (`bench context`):
//   recompute: for every token the last `cap` tokens are encoded anew;
//   published: StreamingLLM as it was published (upkeep.h), which evicts after every token;
//   pruned:    the same, but evicts R tokens at a time, after every R tokens;
//   ring:      the engine's own streaming, which moves nothing.
// cap = sinks + window. A token sees `cap` keys, itself among them; between two prunings one more
// with every token, cap + R - 1 at most. Keys are rotated anew at every step in published and
// pruned alike, because the published attention does so whether or not something was evicted.
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
    std::vector<std::int32_t> ids;         // the text; of random models any ids
    bool score = false;                    // the NLL of the text is wanted
    std::int64_t timed = 0;                // tokens that are timed, at least, with a full cache
    std::int64_t sample = 200;             // tokens that are recomputed, at most
    model::EngineOptions engine{};         // what all engines begin with

    std::int64_t cap() const { return std::int64_t{stream.sinks} + stream.window; }
};

struct Way {
    std::string name;
    int prune = 0;            // tokens from eviction to eviction; 0: nothing is moved
    std::int64_t tokens = 0;  // that were timed
    // Seconds of a token. On a GPU forward and upkeep are timed by its own clock; `wall` has
    // besides what this measurement needs between steps, and nothing else does.
    double forward = 0, upkeep = 0, wall = 0;
    double bytes = 0;  // read and written by the upkeep of a token
    // With Options::score. `nll` is over the whole text, which recompute does not have.
    std::optional<double> nll, sample_nll;

    double seconds() const { return forward + upkeep; }
    double share() const { return seconds() > 0 ? upkeep / seconds() : 0; }
};

// What the engines of the ways are: one without streams, for all but the ring; and the ring's.
model::EngineOptions plain_options(const Options& options);
model::EngineOptions ring_options(const Options& options);
// Throws Error (input or usage) where a model or a text cannot be kept in these ways.
void require_ways(const model::Model& model, const Options& options);

// All ways, in the order above, on engines that follow one another. `weights` are the model's on
// the device, where options.engine.cuda says so.
std::vector<Way> compare(const std::shared_ptr<const model::Model>& model,
                         const std::shared_ptr<const model::DeviceWeights>& weights,
                         const Options& options, const Progress& progress = {});

// The targets that are recomputed: indices of ids, evenly spread over those with `cap` before them.
std::vector<std::int64_t> sampled_targets(const Options& options);
// The NLL of ids[targets[i]] after the `cap` ids before it, or as many as there are.
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
