// Measurements of many generations on one engine, through the scheduler: all at once, or as they
// arrive.
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
    int at_a_time = 0;  // that run together at most; 0: as many as the engine takes
    std::vector<BatchShape> mix{BatchShape{}};  // drawn from with equal chances
    double arrivals = 0;       // a second, times of a Poisson process; 0: all at once
    double cancelled = 0;      // share of the requests that are cancelled somewhere on their way
    bool same_prompt = false;  // all prompts of a length are equal
    std::uint64_t seed = 1;
    DiffusionOptions diffusion{};  // of a model that fills in tokens
};

struct BatchMeasured {
    double seconds = 0;  // from the start, at which the first may arrive, to the last token
    std::int64_t requests = 0, cancelled = 0;
    std::int64_t input = 0, output = 0;  // tokens
    std::int64_t block_passes = 0;       // over blocks, of all requests
    std::vector<double> first_token;     // seconds from arrival, of each that was not cancelled
    std::vector<double> per_token;       // seconds a token after the first, of each
    Scheduler::Totals totals;
    Ledger ledger;

    double output_per_second() const {
        return seconds > 0 ? static_cast<double>(output) / seconds : 0;
    }
    // Of a model that fills in tokens.
    double tokens_per_pass() const {
        return block_passes > 0 ? static_cast<double>(output) / static_cast<double>(block_passes)
                                : 0;
    }
    // Rows that decoded a second, while any did.
    double decode_per_second() const { return totals.decode.tokens_per_second(); }
};

// The value that `share` of the values are below or at; 0 where there are none.
double quantile(std::vector<double> values, double share);

BatchMeasured measure_batch(model::Engine& engine, const BatchLoad& load,
                            const Progress& progress = {});

}  // namespace mr::decode
