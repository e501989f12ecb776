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
}  // namespace mr::ops
