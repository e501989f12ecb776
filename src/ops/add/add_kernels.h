#pragma once

#include <cstdint>

#include "ops/simd/dispatch.h"

namespace mr::ops {
MR_KERNEL(void, add_range, (float* out, const float* a, const float* b, std::int64_t n))
}
