// Norms on the GPU. All tensors lie there; x and out are f32, f16 or bf16, each of its own choice;
// weights and biases are f32 [cols]. Sums are f32, in the one order of norm_row.cuh: a row's bits
// do not depend on the other rows.
#pragma once

#include "core/context.h"
#include "core/tensor.h"
#include "ops/norm/kind.h"

namespace mr::cuda {

// Everything one pass over the rows can do; only x, out and weight must be there.
//   s   = x + residual           kept in `sum` (rounded to its type, and normed as rounded)
//   out = norm(s) * weight + bias
//   out2 = norm(s) * weight2 + bias2       from the same statistics (GPT-NeoX's two branches)
struct NormPass {
    ops::NormKind kind = ops::NormKind::rms;
    float eps = 1e-5f;
    Tensor x;         // [rows, cols]
    Tensor residual;  // [rows, cols] of x's type, or f32
    Tensor sum;       // [rows, cols] of residual's type; may be residual, or x of the same type
    Tensor out;       // [rows, cols]; may be x where the type is the same
    Tensor weight, bias;
    Tensor out2;  // [rows, cols] of out's type
    Tensor weight2, bias2;
};
void norm(const Context& ctx, const NormPass& pass);

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
