// The cost of a layout of a training step: memory of every stage, seconds of every part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/options.h"
#include "train/plan/cluster.h"
#include "train/plan/work.h"

namespace mr::plan {

// The model to train, and the size of a step.
struct Job {
    ModelSpec spec;
    int seq = 0;
    std::int64_t batch = 0;     // sequences per step, over all GPUs
    bool bf16_masters = false;  // as `train --masters bf16`
    // Gradients are added in f32 in an order that does not depend on the number of ranks; else in
    // bf16 in the library's own order.
    bool exact = true;

    double tokens() const { return static_cast<double>(batch) * seq; }
};

// How a step is spread over GPUs. They are numbered with tensor fastest, then data, then pipeline,
// so that the ranks that communicate most lie in one node. `tensor` and `interleave` above 1 are
// for comparison with other programs: train has neither.
struct Layout {
    int data = 1;        // replicas
    int pipeline = 1;    // stages
    int tensor = 1;      // GPUs that share every matrix of a stage
    int interleave = 1;  // parts of the layers per stage, taken in turn
    int zero = 0;  // 1: optimizer and masters in shards; 2: gradients, too; 3: parameters, too
    int micro_batches = 1;  // passes per replica in a step
    Recompute recompute = Recompute::none;

    int gpus() const { return data * pipeline * tensor; }
    bool only_to_compare() const { return tensor > 1 || interleave > 1; }
};

// Bytes of one GPU of a stage.
struct StageMemory {
    int layers = 0;
    double parameters = 0;   // elements of the stage, sharded or not
    double weights = 0;      // bf16, for GEMMs
    double masters = 0;      // f32
    double gradients = 0;    // f32; exact sums need log2(micro_batches) + 1 of them
    double optimizer = 0;    // AdamW's two moments, f32
    double activations = 0;  // of all micro-batches in flight in the stage
    double workspace = 0;
    double buffers = 0;  // for communication: gathered layers, arriving sums

    double total() const {
        return weights + masters + gradients + optimizer + activations + workspace + buffers;
    }
};

// Bytes that a GPU sends in a step, the seconds this takes alone, and the exposed part, in which it
// waits or computes more slowly.
struct Traffic {
    double sent = 0, seconds = 0, exposed = 0;
};

// A step of the slowest stage, in seconds; they add up to step().
struct Cost {
    std::vector<StageMemory> stages;
    Seconds forward, backward, again;  // of all micro-batches
    double optimizer = 0;              // AdamW, the gradient's norm, and exact sums
    double bubble = 0;
    Traffic data, tensor, pipeline;

    double step() const;
    double most_memory() const;  // of the fullest stage
    std::string binds() const;   // the largest part, in words
};

// The share of a device's memory that may be planned, as in `bench train --batch auto`.
inline constexpr double kMemoryShare = 0.95;
bool fits(const Cost& cost, const ClusterSpec& cluster);

// The layers of each stage: in order, so that the slowest is as fast as possible.
std::vector<int> stage_layers(const ClusterSpec& cluster, const Job& job, const Layout& layout);

// The options that give `train` this layout on GPUs, with layout.gpus() ranks. It must not be one
// that is only to compare, and the batch must be a multiple of its grains.
train::TrainOptions options_of(const Job& job, const Layout& layout);

// What is wrong with a layout, in words that name the option; empty: nothing. By the checks of a
// run itself (train/layout.h), unless the layout is only to compare.
std::string layout_fault(const ClusterSpec& cluster, const Job& job, const Layout& layout);

// layout_fault() must be empty for it.
Cost cost_of(const ClusterSpec& cluster, const Job& job, const Layout& layout);

// Model FLOPs of a step, without recomputation, as a share of the peak of all GPUs.
double flops_share(const ClusterSpec& cluster, const Job& job, double step_seconds);

}  // namespace mr::plan
