// The work of a training step, from the spec: FLOPs of GEMMs and of attention, bytes of the passes
// between them, and the parameters of each part.
#pragma once

#include <cstdint>
#include <vector>

#include "model/spec.h"
#include "model/train/train_pass.h"
#include "train/plan/cluster.h"

namespace mr::plan {

using model::ModelSpec;
using model::Recompute;

// For one token. GEMMs and attention in FLOPs, attention over half the keys (causal); passes in
// bytes of device memory that norms, activations, rotation and loss read and write.
struct Work {
    double products = 0;
    double attention = 0;
    double passes = 0;
    double kernels = 0;  // launches, independent of the number of tokens

    Work& operator+=(const Work& other);
    Work operator*(double by) const;
};

struct LayerWork {
    Work forward, backward, again;  // again: recomputation
};
LayerWork layer_work(const ModelSpec& spec, int seq, Recompute recompute);
LayerWork embedding_work(const ModelSpec& spec);
LayerWork head_work(const ModelSpec& spec);  // with the last norm and the loss

// Seconds for `tokens` tokens on one GPU, split as Work is.
struct Seconds {
    double products = 0, attention = 0, passes = 0;
    double sum() const { return products + attention + passes; }
    Seconds& operator+=(const Seconds& other);
    Seconds operator*(double by) const;
};
Seconds seconds_of(const ClusterSpec& cluster, const ModelSpec& spec, const Work& work,
                   double tokens);
// Seconds to read and write `bytes` of device memory.
double pass_seconds(const ClusterSpec& cluster, double bytes);

// Numbers of elements.
struct Parameters {
    double layer = 0;
    double embedding = 0;  // with the table of positions
    double table = 0;      // only the embedding: shared with a tied head
    double head = 0;       // 0: tied
    double last_norm = 0;
};
Parameters parameters_of(const ModelSpec& spec);

}  // namespace mr::plan
