#pragma once

#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::ops {

// nll[t] = log(sum_v exp(logits[t, v])) - logits[t, targets[t]], in f64. logits f32 [tokens,
// vocab]. A row with a NaN or +inf, or only -inf, gives NaN.
void cross_entropy(const Context& ctx, std::span<double> nll, Tensor logits,
                   std::span<const std::int32_t> targets);

}  // namespace mr::ops
