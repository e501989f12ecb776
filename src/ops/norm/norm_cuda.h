// Norms on the GPU. All tensors are in device memory; x and out are f32, f16 or bf16, both the same
// or one of them f32; weights and biases are f32 [cols]. Sums are f32, in the one order of
// norm_row.cuh: a row's bits do not depend on the other rows.
#pragma once

#include "core/context.h"
#include "core/tensor.h"
#include "ops/norm/kind.h"

namespace mr::cuda {

// Everything one pass over the rows can do; only x, out and weight are required.
//   s = x + residual stored in `sum` (rounded to its type; the norm is of the rounded sum)
//   out = norm(s) * weight + bias
//   out2 = norm(s) * weight2 + bias2       from the same statistics (GPT-NeoX's two branches)
struct NormPass {
    ops::NormKind kind = ops::NormKind::rms;
    float eps = 1e-5f;
    Tensor x;         // [rows, cols]
    Tensor residual;  // [rows, cols] of x's type, or f32
    Tensor sum;       // [rows, cols] of residual's type; may be residual, or x of the same type
    Tensor out;       // [rows, cols]; may be x if the types are the same
    Tensor weight, bias;
    Tensor out2;  // [rows, cols] of out's type
    Tensor weight2, bias2;
};
void norm(const Context& ctx, const NormPass& pass);

}  // namespace mr::cuda
