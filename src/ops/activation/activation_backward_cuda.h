// The MLP's activation for training on the GPU, and its backward. Tensors are bf16 in device
// memory; arithmetic is f32 with the fast exponential and division, then rounded.
#pragma once

#include "core/context.h"
#include "core/tensor.h"
#include "ops/activation/kind.h"

namespace mr::cuda {

// out = act(x), or, `gated`, out[t, i] = act(x[t, i]) * x[t, hidden + i] with x [tokens, 2 hidden].
// out may be x if not gated. bias f32 [hidden], or none, is added to x if not gated: adding it in
// the preceding product would cost more.
void activation_train(const Context& ctx, Tensor out, Tensor x, Tensor bias, ops::Activation kind,
                      bool gated);

// dgate_up [tokens, 2 hidden] from dy [tokens, hidden], where the forward was
// act(gate_up[t, i]) * gate_up[t, hidden + i]. dgate_up may be gate_up.
void gated_activation_backward(const Context& ctx, Tensor dgate_up, Tensor dy, Tensor gate_up,
                               ops::Activation kind);

// dx = dy * act'(x); dx may be dy or x.
void activation_backward(const Context& ctx, Tensor dx, Tensor dy, Tensor x, ops::Activation kind);

// The same for act(x + bias), bias f32 [cols] or none; also dbias f32 [cols] += the sum of the
// rounded dx over rows, which is the gradient of that bias. This saves reading dx again. Scratch:
// linear_train_scratch_bytes(cols) of ctx.scratch.
void activation_backward(const Context& ctx, Tensor dx, Tensor dbias, Tensor dy, Tensor x,
                         Tensor bias, ops::Activation kind);

}  // namespace mr::cuda
