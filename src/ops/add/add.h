#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace mr::ops {

// out = a + b. f32, one shape; out may be a or b.
void add(const Context& ctx, Tensor out, Tensor a, Tensor b);

}  // namespace mr::ops
