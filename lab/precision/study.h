// The same training in every precision of the trainer, for `millrace bench
// precision`.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/arena.h"
#include "core/dtype.h"
#include "core/progress.h"
#include "lab/precision/tokens.h"
#include "model/spec.h"

namespace mr::precision {

// How matrices are stored between steps.
enum class Masters {
    f32,
    bf16_nearest,     // rounded to nearest after every step: not in the trainer
    bf16_stochastic,  // ops::AdamW::bf16_masters
};

struct Way {
    const char* name;  // type of the GEMMs, and rounding of bf16 masters
    bool cuda;         // GEMMs in bf16, on the GPU; else in f32, on the CPU
    Masters masters;
    const char* about;
};
// The first is the reference for the others.
std::span<const Way> ways();

struct StudyOptions {
    int batch = 4, seq = 256;
    std::int64_t steps = 20;      // for the GPU's ways
    std::int64_t cpu_steps = 20;  // for the CPU's ways, at most `steps`
    double lr = 1e-3;
    std::uint64_t seed = 1;
    int threads = 0;  // 0: all cores
    // Batches of the held-out text; the losses below are their mean.
    static constexpr std::int64_t kHeldOutBatches = 4;
};

struct Measured {
    DType compute = DType::f32;
    std::int64_t steps = 0;
    // For every step, before its update: on its own batch.
    std::vector<double> seconds, losses, grad_norms;
    // On the held-out text, after cpu_steps and after the last step.
    double loss_at_cpu_steps = 0, loss = 0;
    double moved = 0;  // the share of matrix elements that differ from the start
    MemoryPlan plan;
    std::uint64_t memory_taken = 0;  // as reported by the driver; 0: unknown

    double step_seconds() const;  // the median
};

// Trains a new model of this shape from the seed, over batches that depend only on seed and step.
Measured study(const model::ModelSpec& spec, const Way& way, const StudyOptions& options,
               const StudyTokens& tokens, const Progress& progress = {});

}  // namespace mr::precision
