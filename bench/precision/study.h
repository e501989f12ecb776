// The same training in the precisions that the trainer has: what `millrace bench precision`
// measures.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "bench/precision/tokens.h"
#include "core/arena.h"
#include "core/dtype.h"
#include "core/progress.h"
#include "model/spec.h"

namespace mr::precision {

// How matrices are kept from step to step.
enum class Masters {
    f32,
    bf16_nearest,     // rounded to nearest after every step: what the trainer does without
    bf16_stochastic,  // ops::AdamW::bf16_masters
};

struct Way {
    const char* name;  // products, and how bf16 masters are rounded
    bool cuda;         // products in bf16, on the GPU; else in f32, on the CPU
    Masters masters;
    const char* about;
};
// The first is what the others are compared with.
std::span<const Way> ways();

struct StudyOptions {
    int batch = 4, seq = 256;
    std::int64_t steps = 20;      // of the GPU's ways
    std::int64_t cpu_steps = 20;  // of the CPU's, at most `steps`
    double lr = 1e-3;
    std::uint64_t seed = 1;
    int threads = 0;  // 0: all cores
    // Batches of the text that is held out, whose mean the losses below are.
    static constexpr std::int64_t kHeldOutBatches = 4;
};

struct Measured {
    DType compute = DType::f32;
    std::int64_t steps = 0;
    // Of every step, before its update: of its own batch.
    std::vector<double> seconds, losses, grad_norms;
    // Of the text that is held out, after cpu_steps and after the last step.
    double loss_at_cpu_steps = 0, loss = 0;
    double moved = 0;  // the share of matrix elements that are not what they were at the start
    MemoryPlan plan;
    std::uint64_t memory_taken = 0;  // by the driver's account; 0: not counted

    double step_seconds() const;  // the median
};

// A new model of this shape from the seed, over batches that depend on seed and step alone.
Measured study(const model::ModelSpec& spec, const Way& way, const StudyOptions& options,
               const StudyTokens& tokens, const Progress& progress = {});

}  // namespace mr::precision
