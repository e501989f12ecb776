// The arguments of the norm's backward kernels, and the launch for many rows
// (norm_backward_many.cu).
#pragma once

#include "core/cuda/kernel.cuh"
#include "ops/norm/kind.h"

namespace mr::cuda {

struct NormBackwardArgs {
    void* dx;
    bf16* copy;            // or null
    const void* residual;  // or null
    const void* dy;        // bf16, f16 or f32
    const void* x;         // dx, residual and x: f32; for few rows also dy's type
    const float* weight;
    float* parts;  // [blocks, sums, cols]: dweight, dbias, and for many rows dsum
    int rows, cols;
    float eps;
    ops::NormKind kind;
    Stamp* stamp;
};

// One element's share of the row's sums of g and g * h, and of the column's dweight and dbias. No
// rounding is left to the compiler here and below: both kernels give a row the same bits.
__device__ __forceinline__ void add_to_sums(float d, float w, float h, float& sum_g, float& sum_gh,
                                            float& dweight, float& dbias) {
    const float g = __fmul_rn(d, w);
    sum_g = __fadd_rn(sum_g, g);
    sum_gh = __fmaf_rn(g, h, sum_gh);
    dweight = __fmaf_rn(d, h, dweight);
    dbias = __fadd_rn(dbias, d);
}
// residual + rstd * (g - mean_g - h * mean_gh)
__device__ __forceinline__ float gradient_of(float d, float w, float h, float mean_g, float mean_gh,
                                             float rstd, float residual) {
    const float g = __fmaf_rn(-h, mean_gh, __fmaf_rn(d, w, -mean_g));
    return __fmaf_rn(rstd, g, residual);
}

// The most blocks of that kernel, on any GPU: two per multiprocessor of an H200.
inline constexpr int kManyBackwardBlocks = 264;

// Launches the kernel for many rows and returns its number of blocks, or 0 if it does not support
// the call (nothing is done): 64 rows and more, up to 2048 columns in eights, dy in bf16, code for
// sm_90. Pointers are 16-byte aligned. parts is [blocks, 3, cols]; the third are sums of dx.
int start_norm_backward_many(const Context& ctx, const NormBackwardArgs& args);

}  // namespace mr::cuda
