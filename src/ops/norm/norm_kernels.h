#pragma once

#include <cstdint>

#include "ops/simd/dispatch.h"

namespace mr::ops {
// One row of n elements; out may be x. `bias` may be null.
MR_KERNEL(void, rmsnorm_row,
          (float* out, const float* x, const float* weight, std::int64_t n, float eps))
MR_KERNEL(void, layernorm_row,
          (float* out, const float* x, const float* weight, const float* bias, std::int64_t n,
           float eps))
// The gradient of one row of n elements: dx, which may be dy or residual; dweight and dbias are
// added to. `residual` (added to dx) and `dbias` may be null; `centred`: a layer norm.
MR_KERNEL(void, norm_backward_row,
          (float* dx, float* dweight, float* dbias, const float* dy, const float* x,
           const float* weight, const float* residual, std::int64_t n, float eps, bool centred))
}  // namespace mr::ops
