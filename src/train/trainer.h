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

// Callbacks of a run. All may be empty.
struct TrainEvents {
    struct Begun {
        const model::ModelSpec& spec;
        const TrainOptions& options;
        const MemoryPlan& plan;
        std::int64_t from = 0;  // the step it continues after
        std::string recompute;  // what is recomputed, what that saves and costs
        int ranks = 1;          // that train together, each with this plan
        std::string pipeline;   // its stages, their memory, its bubble; empty: none
    };
    std::function<void(const Begun& run)> begun{};  // before the first step
    struct Step {
        StepMetrics metrics;
        std::int64_t steps = 0;       // asked for
        double seconds_left = 0;      // at the current pace, validation and saving included
        std::uint64_t memory = 0;     // of the plan, in bytes
        double flops_per_second = 0;  // of GEMMs and attention
    };
    std::function<void(const Step& step)> step{};
    std::function<void(std::int64_t step, const std::string& text)> sample{};
    std::function<void(std::int64_t step, const std::string& folder)> saved{};
    // A message for the user that does not end the run: one line.
    std::function<void(const std::string& line)> note{};
    // Called before and after a write that should not be interrupted.
    std::function<void(bool begins)> saving{};
    // Polled after every step, between batches of a validation (only on one rank) and tokens of a
    // sample; true: save and end.
    std::function<bool()> stop{};
    Progress loading{};  // of the data's check and --init
    // Peak FLOP/s of the device, if known: for the report.
    double matrix_peak = 0;
    std::string device{};   // "CPU, 2 threads"
    std::string program{};  // version; ranks of different versions do not train together
    // Options of the sampling engine: its switches.
    model::EngineOptions sampling{};
};

struct TrainResult {
    std::string folder{};   // of the run: where it is now, if it was moved
    std::int64_t step = 0;  // done in all
    std::int64_t steps = 0;
    std::string objective{};
    int block = 0;                   // diffusion objective, also the next field; else 0
    std::string diffusion_weight{};  // else empty
    bool interrupted = false;
    double loss = 0;                        // of the last step
    std::optional<double> val_loss{};       // of the last validation
    std::optional<double> bits_per_byte{};  // of the same validation
    std::int64_t val_step = 0;              // the step before it
    std::int64_t val_tokens = 0;            // tokens of a validation
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
    // In this process: summing gradients with other ranks, and waiting for that.
    double exchange_seconds = 0, exchange_wait_seconds = 0;
    // A pipeline: its stages, micro-batches per replica, and the share of the passes' time in which
    // a stage waits: for equal stages, and as measured, mean over the ranks.
    int stages = 1, micro_batches = 1;
    double bubble_expected = 0, bubble_measured = 0;
};

// Starts a new run in options.out. If something fails after the first step (data that cannot
// be read, a device, an event that throws), the last whole step is saved before that is
// thrown. Throws Error: usage for options, input for data, device for memory. `comm`: the
// ranks that train together, all of which call this; null: this process alone. The first rank
// has the folder, and its events are called; on the others only `stop` and `saving`. A stop of
// one rank stops all. With several ranks nothing is saved after a failure: the last checkpoint
// is good.
TrainResult train(const TrainOptions& options, const TrainEvents& events,
                  comm::Comm* comm = nullptr);

// Resumes the run in `run` from its newest whole checkpoint; later damaged ones are reported by
// `note` and put aside. `change` may change options that do not affect the results (threads, how
// often to save), or deliberately others (steps). The number of ranks may change if it divides the
// run's grains: the bits stay the same.
TrainResult resume(const std::string& run, const std::function<void(TrainOptions&)>& change,
                   const TrainEvents& events, comm::Comm* comm = nullptr);

}  // namespace mr::train
