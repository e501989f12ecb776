#include "ops/activation/activation_kernels.h"

#include "ops/simd/vec.h"

namespace mr::ops::MR_ISA {
namespace {

MR_INLINE Vec silu(Vec x) {
    const Vec one = set(1.0f);
    return div(x, add(one, exp(sub(set(0.0f), x))));
}

// Phi(x), and gauss = exp(-x² / 2). With z = |x| / sqrt(2), Phi(-|x|) = exp(-z²) * erfcx(z) / 2,
// which keeps its relative precision far into the tail, where 1 + erf would cancel. erfcx(z) / t is
// a polynomial in t = 1 / (1 + 0.4 z): interpolated at the Chebyshev points of z in [0, 10], with
// an error below 3.1e-9.
MR_INLINE Vec normal_share(Vec x, Vec& gauss) {
    const Vec magnitude = min(set(15.0f), abs(x));  // Phi(-15) is 0 in f32
    const Vec t = div(set(1.0f), fma(magnitude, set(0.282842712f), set(1.0f)));
    Vec p = set(-0.01573094944f);
    p = fma(p, t, set(0.06182640501f));
    p = fma(p, t, set(-0.03484602648f));
    p = fma(p, t, set(-0.1571106744f));
    p = fma(p, t, set(0.2281290884f));
    p = fma(p, t, set(-0.08618598732f));
    p = fma(p, t, set(0.1894692722f));
    p = fma(p, t, set(0.1524715373f));
    p = fma(p, t, set(0.2109385251f));
    p = fma(p, t, set(0.2253490735f));
    p = fma(p, t, set(0.2256897352f));
    gauss = exp(mul(mul(magnitude, magnitude), set(-0.5f)));
    const Vec tail = mul(mul(mul(p, t), set(0.5f)), gauss);  // Phi(-|x|)
    return where_negative(x, tail, sub(set(1.0f), tail));
}

MR_INLINE Vec gelu(Vec x) {
    Vec gauss;
    return mul(x, normal_share(x, gauss));
}

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x³).
MR_INLINE Vec gelu_tanh(Vec x) {
    const Vec cubic = fma(mul(x, x), set(0.044715f), set(1.0f));
    const Vec minus_2u = mul(mul(x, cubic), set(-1.59576912f));
    return div(x, add(set(1.0f), exp(minus_2u)));
}

MR_INLINE Vec relu(Vec x) { return max(set(0.0f), x); }

// act(x) and act'(x).
struct Slope {
    Vec value, slope;
};

// sigmoid(y) and 1 - sigmoid(y), both to full relative precision: e^-|y| cannot overflow.
MR_INLINE void sigmoids(Vec y, Vec& share, Vec& rest) {
    const Vec e = exp(sub(set(0.0f), abs(y)));
    const Vec greater = div(set(1.0f), add(set(1.0f), e));
    const Vec smaller = mul(e, greater);
    share = where_negative(y, smaller, greater);
    rest = where_negative(y, greater, smaller);
}

MR_INLINE Slope silu_slope(Vec x) {
    Vec share, rest;
    sigmoids(x, share, rest);
    return {mul(x, share), mul(share, fma(x, rest, set(1.0f)))};
}

MR_INLINE Slope gelu_slope(Vec x) {
    Vec gauss;
    const Vec share = normal_share(x, gauss);
    return {mul(x, share), fma(mul(x, gauss), set(0.398942280f), share)};  // 1 / sqrt(2 pi)
}

MR_INLINE Slope gelu_tanh_slope(Vec x) {
    // Beyond 30 the slope stays 0 or 1; cubes of larger x would overflow.
    const Vec near = max(set(-30.0f), min(set(30.0f), x));
    const Vec square = mul(near, near);
    const Vec two_u = mul(mul(near, fma(square, set(0.044715f), set(1.0f))), set(1.59576912f));
    const Vec two_u_slope = fma(square, set(3 * 0.044715f * 1.59576912f), set(1.59576912f));
    Vec share, rest;
    sigmoids(two_u, share, rest);
    return {mul(x, share), mul(share, fma(mul(near, rest), two_u_slope, set(1.0f)))};
}

MR_INLINE Slope relu_slope(Vec x) {
    return {relu(x), where_negative(sub(set(0.0f), x), set(1.0f), set(0.0f))};
}

// Calls body(act) with the function for `kind` that returns a Slope.
template <typename Body>
MR_INLINE void with_slope(Activation kind, Body body) {
    switch (kind) {
        case Activation::silu:
            return body([](Vec v) { return silu_slope(v); });
        case Activation::gelu:
            return body([](Vec v) { return gelu_slope(v); });
        case Activation::gelu_tanh:
            return body([](Vec v) { return gelu_tanh_slope(v); });
        case Activation::relu:
            return body([](Vec v) { return relu_slope(v); });
    }
}

template <typename Function>
MR_INLINE void apply(float* out, const float* x, const float* up, std::int64_t n, Function act) {
    for (std::int64_t i = 0; i < n; i += kLanes) {
        const int left = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
        Vec y = act(load_n(x + i, left));
        if (up) y = mul(y, load_n(up + i, left));
        store_n(out + i, y, left);
    }
}

}  // namespace

void activate_range(float* out, const float* x, const float* up, std::int64_t n, Activation kind) {
    switch (kind) {
        case Activation::silu:
            return apply(out, x, up, n, [](Vec v) { return silu(v); });
        case Activation::gelu:
            return apply(out, x, up, n, [](Vec v) { return gelu(v); });
        case Activation::gelu_tanh:
            return apply(out, x, up, n, [](Vec v) { return gelu_tanh(v); });
        case Activation::relu:
            return apply(out, x, up, n, [](Vec v) { return relu(v); });
    }
}

void activate_backward_range(float* dx, const float* dy, const float* x, std::int64_t n,
                             Activation kind) {
    with_slope(kind, [=](auto act) {
        for (std::int64_t i = 0; i < n; i += kLanes) {
            const int left = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
            const Vec slope = act(load_n(x + i, left)).slope;
            store_n(dx + i, mul(load_n(dy + i, left), slope), left);
        }
    });
}

void gated_backward_range(float* dgate, float* dup, const float* dy, const float* gate,
                          const float* up, std::int64_t n, Activation kind) {
    with_slope(kind, [=](auto act) {
        for (std::int64_t i = 0; i < n; i += kLanes) {
            const int left = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
            const Slope y = act(load_n(gate + i, left));
            const Vec d = load_n(dy + i, left);
            const Vec factor = load_n(up + i, left);
            store_n(dgate + i, mul(mul(d, factor), y.slope), left);
            store_n(dup + i, mul(d, y.value), left);
        }
    });
}

}  // namespace mr::ops::MR_ISA
