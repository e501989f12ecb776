// Training throughput of a model on this machine: whole steps over random tokens, as in a run.
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
    int accumulate = 1;  // passes per step
    int warmup = 3;      // steps that are not counted
    int steps = 10;      // steps that are counted
    std::uint64_t seed = 1;
};

struct TrainMeasured {
    std::vector<double> seconds;  // of each counted step, from its first pass to its update
    std::int64_t tokens = 0;      // per step
    std::uint64_t flops_per_token = 0;
    DType compute = DType::f32;
    double first_loss = 0, last_loss = 0;  // nats per token
    MemoryPlan plan;
    std::uint64_t memory_taken = 0;  // TrainOps::memory_taken() at the end
    // From one more step with every operation timed, which a GPU does not do otherwise: the ledger,
    // and the operations in order.
    Ledger ledger;
    std::vector<Stage> stages;

    double step_seconds() const;  // median
    double best_seconds() const;
    double tokens_per_second() const;  // by the median
    double flops_per_second() const;
};

// The next batch is filled and sent while the current one computes, as in training.
TrainMeasured measure_training(const model::ModelSpec& spec, const TrainMeasureOptions& options,
                               const Progress& progress = {});

// The most sequences of options.shape.seq tokens whose plan fits into `share` of the GPU's memory.
// Throws Error (device) if not even one does.
int largest_batch(const model::ModelSpec& spec, model::TrainEngineOptions options, double share);

}  // namespace mr::train
