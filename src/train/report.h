// report.html of a training run: its curves, memory plan and stages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/arena.h"
#include "core/ledger.h"
#include "observe/page.h"
#include "train/metrics.h"

namespace mr::train {

// A run as its page describes it, beside its metrics. What is empty or 0 is left out.
struct RunDescription {
    std::string name;     // "runs/story"
    std::string model;    // "llama: 6 layers of 256, 5.2 M parameters"
    std::string device;   // "CPU, 2 threads", "NVIDIA H200"
    std::string command;  // the command line, as it was given
    std::vector<std::pair<std::string, std::string>> facts;  // what else there is to say, in order
    std::int64_t steps = 0;                                  // asked for
    std::int64_t tokens_per_step = 0;
    double flops_per_token = 0;  // forward and backward, by the model's shape
    double matrix_peak = 0;      // FLOP/s, measured
    MemoryPlan plan;
    std::uint64_t memory_taken = 0;  // beside the plan, as the device counts
    Ledger ledger;
    std::int64_t ledger_steps = 0;  // that it is of; 0: all since the process started
    struct Sample {
        std::int64_t step = 0;
        std::string text;
    };
    std::vector<Sample> samples;  // the newest last
};

observe::Page train_page(const RunDescription& run, std::span<const StepMetrics> steps);

}  // namespace mr::train
