#pragma once

#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::ops {

struct SampleParams {
    float temperature = 0.8f;     // 0: greedy, ties go to the lowest id
    std::int32_t top_k = 40;      // 0: all
    float top_p = 0.95f;          // 1: all
    float min_p = 0.05f;          // 0: all; relative to the most probable token
    float repeat_penalty = 1.0f;  // 1: none; applies to the tokens in `recent`
    std::uint64_t seed = 0;
};

struct Sampled {
    std::int32_t id = -1;
    float probability = 0;  // among the remaining candidates
    float confidence = 0;   // in the unfiltered softmax (temperature 1, no penalty)
};

// Draws one token from logits f32 [vocab]. Order: repetition penalty, temperature, top-k, top-p,
// min-p, draw. The draw is Philox at (seed, position, step), over candidates in order of decreasing
// probability, ties by id: it depends on nothing else. Top-p keeps the smallest front whose share
// of the top-k candidates is at least top_p, and at least one token; the penalty divides positive
// logits and multiplies negative ones, once per distinct token. Greedy ignores the filters, not the
// penalty. Throws Error (input) if a logit is NaN or all are -inf, Error (usage) for parameters out
// of range. Logits of +inf share all the probability. Scratch: sample_scratch_bytes(vocab) of
// ctx.scratch.
Sampled sample(const Context& ctx, Tensor logits, const SampleParams& params,
               std::span<const std::int32_t> recent, std::uint64_t position,
               std::uint64_t step = 0);

std::size_t sample_scratch_bytes(std::int64_t vocab);

// Throws Error (usage) for parameters out of range.
void check_sample_params(const SampleParams& params);
// Throw what sample() throws for a row with a NaN, and for a row without a possible token.
[[noreturn]] void nan_in_logits();
[[noreturn]] void no_token_in_logits();

}  // namespace mr::ops
