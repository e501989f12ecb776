// Activations on the GPU; in and out may each be f32, f16 or bf16; f32 arithmetic.
#pragma once

#include "core/context.h"
#include "core/tensor.h"
#include "ops/activation/kind.h"

namespace mr::cuda {

// out[t, i] = act(gate_up[t, i]) * gate_up[t, hidden + i].
// gate_up [tokens, 2 * hidden]: the gate first, then up; out [tokens, hidden].
void gated_activation(const Context& ctx, Tensor out, Tensor gate_up, ops::Activation kind);

// out = act(x + bias), by rows; bias f32 [cols] or none. out may be x if the types are the same.
void activation(const Context& ctx, Tensor out, Tensor x, Tensor bias, ops::Activation kind);

}  // namespace mr::cuda
