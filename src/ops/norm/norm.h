#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace mr::ops {

// out = x / sqrt(mean(x²) + eps) * weight, by rows. All f32; out may be x. weight [cols].
void rmsnorm(const Context& ctx, Tensor out, Tensor x, Tensor weight, float eps);

// out = (x - mean) / sqrt(var + eps) * weight + bias, by rows. bias may be none.
void layernorm(const Context& ctx, Tensor out, Tensor x, Tensor weight, Tensor bias, float eps);

}  // namespace mr::ops
