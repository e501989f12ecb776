#pragma once

#include <cstdint>

#include "ops/activation/kind.h"
#include "ops/simd/dispatch.h"

namespace mr::ops {
// out = act(x), or act(x) * up if `up` is not null.
MR_KERNEL(void, activate_range,
          (float* out, const float* x, const float* up, std::int64_t n, Activation kind))
// dx = dy * act'(x). dx may be dy or x.
MR_KERNEL(void, activate_backward_range,
          (float* dx, const float* dy, const float* x, std::int64_t n, Activation kind))
// The gradients of act(gate) * up: dgate = dy * up * act'(gate), dup = dy * act(gate). dgate may be
// gate, and dup may be up.
MR_KERNEL(void, gated_backward_range,
          (float* dgate, float* dup, const float* dy, const float* gate, const float* up,
           std::int64_t n, Activation kind))
}  // namespace mr::ops
