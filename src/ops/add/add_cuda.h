#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace mr::cuda {

// to += x, both f32 of one shape, on the GPU: the residual sum as a kernel of its own, where
// neither a product nor a norm takes it in.
void add_to(const Context& ctx, Tensor to, Tensor x);

}  // namespace mr::cuda
