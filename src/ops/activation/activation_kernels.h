#pragma once

#include <cstdint>

#include "ops/activation/kind.h"
#include "ops/simd/dispatch.h"

namespace mr::ops {
// out = act(x), or act(x) * up where `up` is not null.
MR_KERNEL(void, activate_range,
          (float* out, const float* x, const float* up, std::int64_t n, Activation kind))
}  // namespace mr::ops
