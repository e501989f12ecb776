#include "ops/loss/loss_kernels.h"

#include "ops/simd/vec.h"

namespace mr::ops::MR_ISA {
namespace {

// The sum of e = exp(x[i] - shift); every e is passed to `vec` or, in the tail, to `one`.
template <typename ForVec, typename ForOne>
MR_INLINE double exp_sum(const float* x, std::int64_t n, float shift, ForVec vec, ForOne one) {
    constexpr std::int64_t kPart = 8 * kLanes;  // 8 terms per lane are summed in f32, then in f64
    double total = 0;
    std::int64_t i = 0;
    for (; i + kPart <= n; i += kPart) {
        Vec s0 = set(0), s1 = set(0);
        for (std::int64_t j = i; j < i + kPart; j += 2 * kLanes) {
            const Vec e0 = exp(sub(load(x + j), set(shift)));
            const Vec e1 = exp(sub(load(x + j + kLanes), set(shift)));
            vec(j, e0);
            vec(j + kLanes, e1);
            s0 = add(s0, e0);
            s1 = add(s1, e1);
        }
        total += static_cast<double>(sum(add(s0, s1)));
    }
    for (; i < n; ++i) {
        float lanes[kLanes];
        store(lanes, exp(set(x[i] - shift)));
        one(i, lanes[0]);
        total += static_cast<double>(lanes[0]);
    }
    return total;
}

}  // namespace

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
    return exp_sum(
        x, n, shift, [](std::int64_t, Vec) {}, [](std::int64_t, float) {});
}

double row_exp(float* x, std::int64_t n, float shift) {
    return exp_sum(
        x, n, shift, [x](std::int64_t i, Vec e) { store(x + i, e); },
        [x](std::int64_t i, float e) { x[i] = e; });
}

bool row_is_finite(const float* x, std::int64_t n) {
    int bad = 0;
    for (std::int64_t i = 0; i < n; ++i) bad |= x[i] - x[i] != 0 ? 1 : 0;
    return bad == 0;
}

void row_scale(float* x, std::int64_t n, float factor) {
    for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace mr::ops::MR_ISA
