// The exponential and the reciprocal as one instruction each, for results that are rounded to 16
// bits or added up: the error is about two ulp of f32. CUDA's __expf() and __fdividef() handle
// subnormals, at three more instructions; here subnormals are flushed to 0.
#pragma once

namespace mr::cuda {

constexpr float kLog2E = 1.44269504f;

__device__ __forceinline__ float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float fast_exp(float x) { return fast_exp2(x * kLog2E); }
// 1 / x: infinite for 0, and 0 for infinities and for x from 2¹²⁶ on.
__device__ __forceinline__ float fast_inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

}  // namespace mr::cuda
