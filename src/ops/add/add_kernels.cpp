#include "ops/add/add_kernels.h"

#include "ops/simd/vec.h"

namespace mr::ops::MR_ISA {

void add_range(float* out, const float* a, const float* b, std::int64_t n) {
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(out + i, add(load(a + i), load(b + i)));
    for (; i < n; ++i) out[i] = a[i] + b[i];
}

}  // namespace mr::ops::MR_ISA
