// What logits on the GPU say of unknown tokens: ops::guess() for many rows at once.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/cuda/device.h"
#include "ops/denoise/denoise.h"
#include "ops/sample/sample_cuda.h"

namespace mr::cuda {

// How a row is guessed, in device memory.
struct GuessRow {
    // Temperature, filters, seed, position and step; without a penalty. A row that is not active is
    // skipped.
    SampleRow sampling;
    std::int32_t truth;    // the token that stands there; -1: one is drawn
    std::int32_t drawn;    // 1: confidence is the drawn token's (ops::DenoiseParams::drawn)
    std::int32_t entropy;  // 1: the entropy is wanted
    std::int32_t unused;
};
GuessRow guess_row(const ops::SampleParams& sampling, const ops::DenoiseParams& how,
                   std::int64_t position, std::int32_t step, std::int32_t truth);

struct DeviceGuess {
    ops::Guess guess;
    std::uint32_t flags;  // SampleFlag
};

// out[r] of row r of logits f32 [rows, vocab], which lose the probability of the token `mask`. The
// bits of a row do not depend on the other rows; confidence and entropy agree with the CPU's to the
// weights' 2^-40. `team` as in sample().
void guess(const Context& ctx, Tensor logits, const GuessRow* rows, std::int32_t mask,
           DeviceGuess* out, int team = 0);

}  // namespace mr::cuda
