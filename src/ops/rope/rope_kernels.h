#pragma once

#include <cstdint>

#include "ops/simd/dispatch.h"

namespace mr::ops {
// All heads of one token: x [heads, head_dim], cos_sin [pairs, 2]. `direction`: 1, or -1 to rotate
// back.
MR_KERNEL(void, rope_token,
          (float* x, const float* cos_sin, std::int64_t heads, std::int64_t head_dim,
           std::int64_t pairs, bool interleaved, float direction))
}  // namespace mr::ops
