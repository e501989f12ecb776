// What a layout of a training step costs: memory of every stage, seconds of every part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/plan/cluster.h"
#include "train/plan/work.h"

namespace mr::plan {

// What is trained, and by how much in a step.
struct Job {
    ModelSpec spec;
    int seq = 0;
    std::int64_t batch = 0;     // sequences of a step, over all GPUs
    bool bf16_masters = false;  // as train's --masters bf16
    // Gradients are added in f32 in an order that the number of ranks does not change; else in bf16
    // in the library's own.
    bool exact = true;

    double tokens() const { return static_cast<double>(batch) * seq; }
};

// How a step is spread. GPUs are numbered with tensor fastest, then data, then pipeline, so that
// what talks most lies in one node. `tensor` and `interleave` above 1 are for comparison with other
// programs: train has neither.
struct Layout {
    int data = 1;        // replicas
    int pipeline = 1;    // stages
    int tensor = 1;      // GPUs that share every matrix of a stage
    int interleave = 1;  // parts of the layers that a stage has, taken in turn
    int zero = 0;  // 1: optimizer and masters in shards; 2: gradients, too; 3: parameters, too
    int micro_batches = 1;  // passes of a replica in a step
    Recompute recompute = Recompute::none;

    int gpus() const { return data * pipeline * tensor; }
    bool only_to_compare() const { return tensor > 1 || interleave > 1; }
};

// Bytes of one GPU of a stage.
struct StageMemory {
    int layers = 0;
    double parameters = 0;   // elements that the stage has, shards or not
    double weights = 0;      // bf16, what products read
    double masters = 0;      // f32
    double gradients = 0;    // f32; for exact sums log2(micro_batches) + 1 of them
    double optimizer = 0;    // AdamW's two moments, f32
    double activations = 0;  // of all micro-batches on their way through the stage
    double workspace = 0;
    double buffers = 0;  // of communication: layers that are gathered, sums that arrive

    double total() const {
        return weights + masters + gradients + optimizer + activations + workspace + buffers;
    }
};

// Bytes that a GPU sends in a step, the seconds that takes alone, and those of them in which it
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

// Of the device's memory, what may be planned: as `bench train --batch auto`.
inline constexpr double kMemoryShare = 0.95;
bool fits(const Cost& cost, const ClusterSpec& cluster);

// The layers of each stage: in order, so that the slowest is as fast as can be.
std::vector<int> stage_layers(const ClusterSpec& cluster, const Job& job, const Layout& layout);

// What is wrong with a layout, in words that name the option; empty: nothing.
std::string layout_fault(const ClusterSpec& cluster, const Job& job, const Layout& layout);

// layout_fault() has nothing against it.
Cost cost_of(const ClusterSpec& cluster, const Job& job, const Layout& layout);

// Model FLOPs of a step, without what is made again, as a share of the peak of all GPUs.
double flops_share(const ClusterSpec& cluster, const Job& job, double step_seconds);

}  // namespace mr::plan
