// Measurements of many generations on one engine, through the scheduler: all at once, or arriving
// over time.
#pragma once

#include <cstdint>
#include <vector>

#include "core/progress.h"
#include "decode/scheduler.h"
#include "model/engine.h"

namespace mr::decode {

// A kind of request: tokens in and out.
struct BatchShape {
    int input = 128, output = 128;
};

struct BatchLoad {
    int requests = 1;
    int at_a_time = 0;  // requests that run together at most; 0: as many as the engine takes
    std::vector<BatchShape> mix{BatchShape{}};  // each drawn with equal probability
    double arrivals = 0;                        // per second, a Poisson process; 0: all at once
    double cancelled = 0;      // share of the requests that are cancelled at a random point
    bool same_prompt = false;  // all prompts of a length are equal
    std::uint64_t seed = 1;
    DiffusionOptions diffusion{};  // for a diffusion model
};

struct BatchMeasured {
    double seconds = 0;  // from the start to the last token
    std::int64_t requests = 0, cancelled = 0;
    std::int64_t input = 0, output = 0;  // tokens
    std::int64_t block_passes = 0;       // passes over blocks, of all requests
    std::vector<double> first_token;     // seconds from arrival; without cancelled requests
    std::vector<double> per_token;       // seconds per token after the first, of each request
    Scheduler::Totals totals;
    Ledger ledger;

    double output_per_second() const {
        return seconds > 0 ? static_cast<double>(output) / seconds : 0;
    }
    // For a diffusion model.
    double tokens_per_pass() const {
        return block_passes > 0 ? static_cast<double>(output) / static_cast<double>(block_passes)
                                : 0;
    }
    // Decoded tokens per second, over the passes that decode.
    double decode_per_second() const { return totals.decode.tokens_per_second(); }
};

// The smallest value with at least `share` of the values at or below it; 0 for no values.
double quantile(std::vector<double> values, double share);

BatchMeasured measure_batch(model::Engine& engine, const BatchLoad& load,
                            const Progress& progress = {});

}  // namespace mr::decode
