// What a training step computes, counted from the spec: FLOPs of products and of attention, bytes
// of the passes between them, and how many parameters lie where.
#pragma once

#include <cstdint>
#include <vector>

#include "model/spec.h"
#include "model/train/train_pass.h"
#include "train/plan/cluster.h"

namespace mr::plan {

using model::ModelSpec;
using model::Recompute;

// Of one token. Products and attention in FLOPs, attention of half the keys (causal); passes in
// bytes of device memory that norms, activations, rotation and loss read and write.
struct Work {
    double products = 0;
    double attention = 0;
    double passes = 0;
    double kernels = 0;  // launched for it, however many tokens there are

    Work& operator+=(const Work& other);
    Work operator*(double by) const;
};

struct LayerWork {
    Work forward, backward, again;  // again: what recomputation makes once more
};
LayerWork layer_work(const ModelSpec& spec, int seq, Recompute recompute);
LayerWork embedding_work(const ModelSpec& spec);
LayerWork head_work(const ModelSpec& spec);  // with the last norm and the loss

// Seconds for `tokens` of them on one GPU, split as Work is.
struct Seconds {
    double products = 0, attention = 0, passes = 0;
    double sum() const { return products + attention + passes; }
    Seconds& operator+=(const Seconds& other);
    Seconds operator*(double by) const;
};
Seconds seconds_of(const ClusterSpec& cluster, const ModelSpec& spec, const Work& work,
                   double tokens);
// ... to read and write `bytes` of device memory.
double pass_seconds(const ClusterSpec& cluster, double bytes);

// Elements.
struct Parameters {
    double layer = 0;
    double embedding = 0;  // with the table of positions
    double table = 0;      // the embedding's alone: what a tied head shares
    double head = 0;       // 0: tied
    double last_norm = 0;
};
Parameters parameters_of(const ModelSpec& spec);

}  // namespace mr::plan
