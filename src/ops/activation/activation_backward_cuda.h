// The backward of the MLP's activation on the GPU; tensors lie there, in bf16, arithmetic is f32.
#pragma once

#include "core/context.h"
#include "core/tensor.h"
#include "ops/activation/kind.h"

namespace mr::cuda {

// dgate_up [tokens, 2 hidden] from dy [tokens, hidden], where the forward was
// act(gate_up[t, i]) * gate_up[t, hidden + i]. dgate_up may be gate_up.
void gated_activation_backward(const Context& ctx, Tensor dgate_up, Tensor dy, Tensor gate_up,
                               ops::Activation kind);

// dx = dy * act'(x); dx may be dy or x.
void activation_backward(const Context& ctx, Tensor dx, Tensor dy, Tensor x, ops::Activation kind);

}  // namespace mr::cuda
