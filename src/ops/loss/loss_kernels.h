#pragma once

#include <cstdint>

#include "ops/simd/dispatch.h"

namespace mr::ops {
// The largest element; *nan says whether any is NaN (then the value is meaningless).
MR_KERNEL(float, row_max, (const float* x, std::int64_t n, bool* nan))
// sum exp(x[i] - shift): exponentials in f32, to 2 ulp, summed in f64.
MR_KERNEL(double, row_exp_sum, (const float* x, std::int64_t n, float shift))
MR_KERNEL(bool, row_is_finite, (const float* x, std::int64_t n))
// x[i] = exp(x[i] - shift), and their sum as row_exp_sum() gives it.
MR_KERNEL(double, row_exp, (float* x, std::int64_t n, float shift))
MR_KERNEL(void, row_scale, (float* x, std::int64_t n, float factor))
}  // namespace mr::ops
