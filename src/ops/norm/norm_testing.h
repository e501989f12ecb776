// For tests: the passes over rows that they compare with, by name.
#pragma once

#include "ops/norm/norm_cuda.h"

namespace mr::cuda {

inline void rmsnorm(const Context& ctx, Tensor out, Tensor x, Tensor weight, float eps) {
    norm(ctx, {.kind = ops::NormKind::rms,
               .eps = eps,
               .x = x,
               .residual = {},
               .sum = {},
               .out = out,
               .weight = weight,
               .bias = {},
               .out2 = {},
               .weight2 = {},
               .bias2 = {}});
}
inline void layernorm(const Context& ctx, Tensor out, Tensor x, Tensor weight, Tensor bias,
                      float eps) {
    norm(ctx, {.kind = ops::NormKind::layer,
               .eps = eps,
               .x = x,
               .residual = {},
               .sum = {},
               .out = out,
               .weight = weight,
               .bias = bias,
               .out2 = {},
               .weight2 = {},
               .bias2 = {}});
}
// out = norm(x + residual); `sum` and `bias` may be none.
inline void norm_residual(const Context& ctx, Tensor out, Tensor sum, Tensor x, Tensor residual,
                          Tensor weight, Tensor bias, float eps, ops::NormKind kind) {
    norm(ctx, {.kind = kind,
               .eps = eps,
               .x = x,
               .residual = residual,
               .sum = sum,
               .out = out,
               .weight = weight,
               .bias = bias,
               .out2 = {},
               .weight2 = {},
               .bias2 = {}});
}

}  // namespace mr::cuda
