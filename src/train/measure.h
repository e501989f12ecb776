// How fast a model trains on this machine: whole steps over random tokens, as a run makes them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/arena.h"
#include "core/ledger.h"
#include "core/progress.h"
#include "model/train/train_engine.h"

namespace mr::train {

struct TrainMeasureOptions {
    model::TrainEngineOptions engine;
    int accumulate = 1;  // passes of a step
    int warmup = 3;      // steps that do not count
    int steps = 10;      // ... and that do
    std::uint64_t seed = 1;
};

struct TrainMeasured {
    std::vector<double> seconds;  // of each step that counts, from its first pass to its update
    std::int64_t tokens = 0;      // of a step
    std::uint64_t flops_per_token = 0;
    DType compute = DType::f32;
    double first_loss = 0, last_loss = 0;  // nats a token
    MemoryPlan plan;
    std::uint64_t memory_taken = 0;  // TrainOps::memory_taken() at the end
    // Of one more step, each of whose operations was timed, which a GPU does not do otherwise: the
    // account, and the operations in their order.
    Ledger ledger;
    std::vector<Stage> stages;

    double step_seconds() const;  // median
    double best_seconds() const;
    double tokens_per_second() const;  // by the median
    double flops_per_second() const;
};

// The next batch is filled and sent while one computes, as in training.
TrainMeasured measure_training(const model::ModelSpec& spec, const TrainMeasureOptions& options,
                               const Progress& progress = {});

// The most sequences of options.shape.seq tokens whose plan fits `share` of what the GPU has.
// Throws Error (device) where not even one does.
int largest_batch(const model::ModelSpec& spec, model::TrainEngineOptions options, double share);

}  // namespace mr::train
