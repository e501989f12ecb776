#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::cuda {

// nll[t] = log(sum_v exp(logits[t, v])) - logits[t, targets[t]], summed in f64.
// logits f32 [rows, vocab]; nll and targets [rows] in device memory. A row with a NaN or +inf, with
// only -inf, or with a target outside of the vocabulary gives NaN. A row's bits depend on that row
// alone.
void cross_entropy(const Context& ctx, double* nll, Tensor logits, const std::int32_t* targets);

}  // namespace mr::cuda
