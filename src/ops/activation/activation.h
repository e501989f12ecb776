#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/activation/kind.h"

namespace mr::ops {

const char* activation_name(Activation kind);
// Operations per element, as the ledger counts them; an exponential counts as one.
std::uint64_t activation_flops(Activation kind);

// out = act(x). f32, any shape; out may be x.
void activation(const Context& ctx, Tensor out, Tensor x, Activation kind);

// out = act(gate) * up. f32, one shape; out may be gate or up.
void gated_activation(const Context& ctx, Tensor out, Tensor gate, Tensor up, Activation kind);

}  // namespace mr::ops
