#include "ops/loss/loss_kernels.h"

#include "ops/simd/vec.h"

namespace mr::ops::MR_ISA {

float row_max(const float* x, std::int64_t n, bool* nan) {
    int bad = 0;
    for (std::int64_t i = 0; i < n; ++i) bad |= x[i] != x[i] ? 1 : 0;
    *nan = bad != 0;
    std::int64_t i = 0;
    float best = -__builtin_inff();
    if (n >= kLanes) {
        Vec m = load(x);
        for (i = kLanes; i + kLanes <= n; i += kLanes) m = max(m, load(x + i));
        best = max_of(m);
    }
    for (; i < n; ++i) best = best > x[i] ? best : x[i];
    return best;
}

double row_exp_sum(const float* x, std::int64_t n, float shift) {
    constexpr std::int64_t kPart = 8 * kLanes;  // f32 sums of 8 terms a lane, then f64
    double total = 0;
    std::int64_t i = 0;
    for (; i + kPart <= n; i += kPart) {
        Vec s0 = set(0), s1 = set(0);
        for (int j = 0; j < kPart; j += 2 * kLanes) {
            s0 = add(s0, exp(sub(load(x + i + j), set(shift))));
            s1 = add(s1, exp(sub(load(x + i + j + kLanes), set(shift))));
        }
        total += static_cast<double>(sum(add(s0, s1)));
    }
    for (; i < n; ++i) {
        float lanes[kLanes];
        store(lanes, exp(set(x[i] - shift)));
        total += static_cast<double>(lanes[0]);
    }
    return total;
}

}  // namespace mr::ops::MR_ISA
