// AdamW over all parameters at once: they lie in one flat buffer, as do gradients and moments.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::ops {

struct AdamW {
    float lr = 1e-3f;
    float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
    float weight_decay = 0.1f;  // decoupled: p -= lr * weight_decay * p
    float clip = 0;             // > 0: gradients are scaled to this norm where theirs is greater
    std::int64_t step = 1;      // from 1: what the moments' biases are corrected by
};

// *sum = the sum of squares of x, f32 flat, in f64 and in one order whatever the threads.
// `scratch`: square_sum_scratch_bytes() of ctx.scratch.
void square_sum(const Context& ctx, double* sum, Tensor x);
std::size_t square_sum_scratch_bytes(std::int64_t count);

// One step. params, grads, m, v f32 [count] flat. The first `decayed` elements have weight decay,
// the rest have none. *grad_square_sum is square_sum() of all gradients, read when the op runs: not
// finite means that nothing is changed at all (the step is skipped).
//   g = grads * min(1, clip / norm);  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g²
//   p -= lr * (m / (1 - b1^step) / (sqrt(v / (1 - b2^step)) + eps) + decay * p)
void adamw(const Context& ctx, const AdamW& with, Tensor params, Tensor grads, Tensor m, Tensor v,
           std::int64_t decayed, const double* grad_square_sum);

}  // namespace mr::ops
