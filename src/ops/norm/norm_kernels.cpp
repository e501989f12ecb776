#include "ops/norm/norm_kernels.h"

#include "ops/simd/vec.h"

namespace mr::ops::MR_ISA {
namespace {

// sum f(x[i]) in 4 * kLanes partial sums of n / (4 kLanes) terms each.
template <typename Function>
MR_INLINE float sum_of(const float* x, std::int64_t n, Function f) {
    Vec s0 = set(0), s1 = set(0), s2 = set(0), s3 = set(0);
    std::int64_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
        s0 = f(load(x + i), s0);
        s1 = f(load(x + i + kLanes), s1);
        s2 = f(load(x + i + 2 * kLanes), s2);
        s3 = f(load(x + i + 3 * kLanes), s3);
    }
    for (; i + kLanes <= n; i += kLanes) s0 = f(load(x + i), s0);
    float total = sum(add(add(s0, s1), add(s2, s3)));
    for (; i < n; ++i) {
        Vec one = set(0);
        one = f(set(x[i]), one);
        float lanes[kLanes];
        store(lanes, one);
        total += lanes[0];
    }
    return total;
}

float inverse_root(float square_sum, std::int64_t n, float eps) {
    const double mean = static_cast<double>(square_sum) / static_cast<double>(n);
    return static_cast<float>(1.0 / __builtin_sqrt(mean + static_cast<double>(eps)));
}

}  // namespace

void rmsnorm_row(float* out, const float* x, const float* weight, std::int64_t n, float eps) {
    const float squares = sum_of(x, n, [](Vec v, Vec s) { return fma(v, v, s); });
    const float factor = inverse_root(squares, n, eps);
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        store(out + i, mul(mul(load(x + i), set(factor)), load(weight + i)));
    }
    for (; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

void layernorm_row(float* out, const float* x, const float* weight, const float* bias,
                   std::int64_t n, float eps) {
    const float total = sum_of(x, n, [](Vec v, Vec s) { return add(v, s); });
    const float mean = static_cast<float>(static_cast<double>(total) / static_cast<double>(n));
    // The variance from the centred values: a large mean must not swamp it.
    const float squares = sum_of(x, n, [mean](Vec v, Vec s) {
        const Vec centred = sub(v, set(mean));
        return fma(centred, centred, s);
    });
    const float factor = inverse_root(squares, n, eps);
    for (std::int64_t i = 0; i < n; i += kLanes) {
        const int left = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
        const Vec centred = sub(load_n(x + i, left), set(mean));
        Vec y = mul(mul(centred, set(factor)), load_n(weight + i, left));
        if (bias) y = add(y, load_n(bias + i, left));
        store_n(out + i, y, left);
    }
}

// With h = (x - mean) / std and g = dy * weight:
//   dx = (g - mean(g) - h * mean(g * h)) / std; rms norms have no mean and no mean(g).
void norm_backward_row(float* dx, float* dweight, float* dbias, const float* dy, const float* x,
                       const float* weight, const float* residual, std::int64_t n, float eps,
                       bool centred) {
    float mean = 0;
    if (centred) {
        const float total = sum_of(x, n, [](Vec v, Vec s) { return add(v, s); });
        mean = static_cast<float>(static_cast<double>(total) / static_cast<double>(n));
    }
    const Vec middle = set(mean);
    const float squares = sum_of(x, n, [middle](Vec v, Vec s) {
        const Vec from_mean = sub(v, middle);
        return fma(from_mean, from_mean, s);
    });
    const float factor = inverse_root(squares, n, eps);
    const Vec scale = set(factor);
    Vec g_sum0 = set(0), g_sum1 = set(0), gh_sum0 = set(0), gh_sum1 = set(0);
    const auto sums = [&](std::int64_t i, int left, Vec& g_sum, Vec& gh_sum) {
        const Vec g = mul(load_n(dy + i, left), load_n(weight + i, left));
        // Lanes past the end have g = 0, so they add nothing for any h.
        const Vec h = mul(sub(load_n(x + i, left), middle), scale);
        g_sum = add(g_sum, g);
        gh_sum = fma(g, h, gh_sum);
    };
    std::int64_t i = 0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
        sums(i, kLanes, g_sum0, gh_sum0);
        sums(i + kLanes, kLanes, g_sum1, gh_sum1);
    }
    for (; i < n; i += kLanes) {
        sums(i, n - i < kLanes ? static_cast<int>(n - i) : kLanes, g_sum0, gh_sum0);
    }
    const auto count = static_cast<float>(n);
    const Vec g_mean = set(centred ? sum(add(g_sum0, g_sum1)) / count : 0.0f);
    const Vec gh_mean = set(sum(add(gh_sum0, gh_sum1)) / count);
    for (i = 0; i < n; i += kLanes) {
        const int left = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
        const Vec d = load_n(dy + i, left);
        const Vec g = mul(d, load_n(weight + i, left));
        const Vec h = mul(sub(load_n(x + i, left), middle), scale);
        Vec out = mul(sub(sub(g, g_mean), mul(h, gh_mean)), scale);
        if (residual) out = add(out, load_n(residual + i, left));
        store_n(dx + i, out, left);
        store_n(dweight + i, fma(d, h, load_n(dweight + i, left)), left);
        if (dbias) store_n(dbias + i, add(d, load_n(dbias + i, left)), left);
    }
}

}  // namespace mr::ops::MR_ISA
