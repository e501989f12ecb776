// Activations of one value on the GPU, for kernels that have it in a register. f32 arithmetic; the
// formulas are those of activation_kernels.cpp, so that extreme values give the same results.
#pragma once

#include "core/cuda/kernel.cuh"
#include "ops/activation/kind.h"

namespace mr::cuda {

using ops::Activation;

template <Activation kind>
__device__ __forceinline__ float activate(float x) {
    if constexpr (kind == Activation::silu) {
        return __fdiv_rn(x, __fadd_rn(1.0f, expf(-x)));
    } else if constexpr (kind == Activation::gelu) {
        return __fmul_rn(x, normcdff(x));  // keeps its precision in the tail
    } else if constexpr (kind == Activation::gelu_tanh) {
        // 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x³)
        const float cubic = __fmaf_rn(__fmul_rn(x, x), 0.044715f, 1.0f);
        const float minus_2u = __fmul_rn(__fmul_rn(x, cubic), -1.59576912f);
        return __fdiv_rn(x, __fadd_rn(1.0f, expf(minus_2u)));
    } else {
        static_assert(kind == Activation::relu);
        return x < 0.0f ? 0.0f : x;  // NaN stays NaN
    }
}

// Calls f(Kind<kind>{}) with the kind as a type: f's body calls activate<decltype(k)::value>.
template <Activation kind>
struct Kind {
    static constexpr Activation value = kind;
};
template <typename F>
void with_activation(Activation kind, F&& f) {
    switch (kind) {
        case Activation::silu:
            return f(Kind<Activation::silu>{});
        case Activation::gelu:
            return f(Kind<Activation::gelu>{});
        case Activation::gelu_tanh:
            return f(Kind<Activation::gelu_tanh>{});
        case Activation::relu:
            return f(Kind<Activation::relu>{});
    }
}

}  // namespace mr::cuda
