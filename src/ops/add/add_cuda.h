#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace mr::cuda {

// to += x, both f32 of one shape, on the GPU: the residual sum as a separate kernel, for cases
// where neither a product nor a norm includes it.
void add_to(const Context& ctx, Tensor to, Tensor x);

}  // namespace mr::cuda
