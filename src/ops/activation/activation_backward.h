// The MLP's activation for training: gate and up are side by side, as one product writes them.
#pragma once

#include "core/context.h"
#include "core/tensor.h"
#include "ops/activation/kind.h"

namespace mr::ops {

// out[t, i] = act(gate_up[t, i]) * gate_up[t, hidden + i]. f32; gate_up [tokens, 2 hidden].
void gated_activation(const Context& ctx, Tensor out, Tensor gate_up, Activation kind);
// dgate_up from dy [tokens, hidden]; dgate_up may be gate_up.
void gated_activation_backward(const Context& ctx, Tensor dgate_up, Tensor dy, Tensor gate_up,
                               Activation kind);

// dx = dy * act'(x); dx may be dy or x.
void activation_backward(const Context& ctx, Tensor dx, Tensor dy, Tensor x, Activation kind);

}  // namespace mr::ops
