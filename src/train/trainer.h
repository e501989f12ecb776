// A training run, from packed data to checkpoints, metrics and a report.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/arena.h"
#include "core/comm/comm.h"
#include "core/progress.h"
#include "model/engine.h"
#include "model/spec.h"
#include "train/metrics.h"
#include "train/options.h"

namespace mr::train {

// What a run tells while it goes on. All may be empty.
struct TrainEvents {
    struct Begun {
        const model::ModelSpec& spec;
        const TrainOptions& options;
        const MemoryPlan& plan;
        std::int64_t from = 0;  // the step it goes on after
        std::string recompute;  // what is made again, what that saves and costs
        int ranks = 1;          // that train together, each with that plan
        std::string pipeline;   // its stages, what each holds, its bubble; empty: none
    };
    std::function<void(const Begun& run)> begun{};  // before the first step
    struct Step {
        StepMetrics metrics;
        std::int64_t steps = 0;       // asked for
        double seconds_left = 0;      // at the pace so far, validation and saving included
        std::uint64_t memory = 0;     // of the plan, in bytes
        double flops_per_second = 0;  // of products and attention
    };
    std::function<void(const Step& step)> step{};
    std::function<void(std::int64_t step, const std::string& text)> sample{};
    std::function<void(std::int64_t step, const std::string& folder)> saved{};
    // Something that its user should know, and that does not end it: one line.
    std::function<void(const std::string& line)> note{};
    // Before and after something is written that should not be cut short.
    std::function<void(bool begins)> saving{};
    // Asked after every step, between batches of a validation (by one rank alone) and tokens of a
    // sample; true: save and leave.
    std::function<bool()> stop{};
    Progress loading{};  // of the data's check and --init
    // FLOP/s that the device can do at most, where known: for the report.
    double matrix_peak = 0;
    std::string device{};   // "CPU, 2 threads"
    std::string program{};  // its version: ranks of different ones do not train together
    // What the engine that samples come from begins with: its switches.
    model::EngineOptions sampling{};
};

struct TrainResult {
    std::int64_t step = 0;  // done in all
    std::int64_t steps = 0;
    std::string objective{};
    int block = 0;                   // of the diffusion objective, as is the next; else 0
    std::string diffusion_weight{};  // else empty
    bool interrupted = false;
    double loss = 0;                        // of the last step
    std::optional<double> val_loss{};       // of the last validation
    std::optional<double> bits_per_byte{};  // of the same
    std::int64_t val_step = 0;              // after which it was
    std::int64_t val_tokens = 0;            // that a validation is over
    std::int64_t skipped = 0;
    double seconds = 0;            // of all steps so far, earlier processes included
    double tokens_per_second = 0;  // of this process
    double data_wait_seconds = 0;  // of this process
    std::uint64_t parameters = 0;
    std::uint64_t memory_planned = 0;  // in bytes
    std::uint64_t memory_taken = 0;    // model::TrainOps::memory_taken()
    bool reported = true;              // report.html could be written
    std::string checkpoint{};
    int ranks = 1, grains = 1;
    // Of this process: adding up gradients with other ranks, and waiting for that.
    double exchange_seconds = 0, exchange_wait_seconds = 0;
    // A pipeline: its stages, micro-batches of a replica, and the part of the time of their passes
    // in which a stage waits: where all take as long, and as measured, mean over the ranks.
    int stages = 1, micro_batches = 1;
    double bubble_expected = 0, bubble_measured = 0;
};

// A new run in options.out. Where something fails after the first step (data that cannot be read, a
// device, an event that throws), the last whole step is saved before that is thrown.
// Throws Error: usage for options, input for data, device for memory.
// `comm`: the ranks that train together, all of which call this; null: this process alone. The
// first of them has the folder, and its events are called; of the others `stop` and `saving` alone.
// A stop of one is a stop of all. With several ranks nothing is saved where something fails: the
// last checkpoint is good.
TrainResult train(const TrainOptions& options, const TrainEvents& events,
                  comm::Comm* comm = nullptr);

// Goes on with the run in `run` as its newest whole checkpoint says; damaged ones after it are told
// of by `note` and put aside. `change` may change options that the results do not depend on
// (threads, how often to save), or deliberately others (steps).
// The number of ranks may be another one that divides the run's grains: the same bits go on.
TrainResult resume(const std::string& run, const std::function<void(TrainOptions&)>& change,
                   const TrainEvents& events, comm::Comm* comm = nullptr);

}  // namespace mr::train
