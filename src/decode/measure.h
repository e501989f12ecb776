// Measurements of an engine: decode and prefill, repeated, with the machine's read bandwidth
// measured between the repetitions by the same threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/cuda/timeline.h"
#include "core/ledger.h"
#include "core/progress.h"
#include "model/engine.h"

namespace mr::decode {

struct MeasureOptions {
    int prompt = 128;  // prefill: tokens of the prompt; decode: tokens in the cache at the start
    int steps = 32;    // decode: tokens per repetition
    int repetitions = 5;
    int warmup = 1;      // repetitions that are not counted
    int batch = 1;       // decode: sequences at a time
    bool churn = false;  // decode: in every step one sequence leaves and joins again
    // decode: the sequences stream, and every repetition continues where the last one ended.
    model::Stream stream{};
};

struct Measured {
    std::vector<double> seconds;      // of each repetition
    std::int64_t tokens = 0;          // of one repetition
    Ledger ledger;                    // of one repetition; all are alike
    double read_bandwidth = 0;        // bytes per second, the best of all passes
    std::vector<cuda::Stage> stages;  // on a GPU: of one decode step or one prefill

    double median_seconds() const;
    double best_seconds() const;
    double tokens_per_second() const;  // in the median repetition
    double best_tokens_per_second() const;
    double bytes_per_token() const;   // read
    double bytes_per_second() const;  // read, in the median repetition
    double best_bytes_per_second() const;
    double flops_per_second() const;
};

// Feeds a prompt to a sequence in as many passes as needed; returns the logits of its last token.
Tensor run_prompt(model::Engine& engine, model::SeqId seq, std::span<const std::int32_t> prompt);

// The same ids in every run, for models with random weights.
std::vector<std::int32_t> made_up_ids(int count, std::int64_t vocab);

// Peak read bandwidth of the machine's memory, or of the GPU's if the engine is there.
double read_bandwidth(const model::Engine& engine);

// One token at a time, always the most probable, as `run --temp 0` does.
Measured measure_decode(model::Engine& engine, const MeasureOptions& options,
                        const Progress& progress = {});
// The whole prompt at once, up to the logits of its last token.
Measured measure_prefill(model::Engine& engine, const MeasureOptions& options,
                         const Progress& progress = {});

}  // namespace mr::decode
