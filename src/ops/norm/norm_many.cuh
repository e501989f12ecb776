// What the norm's kernels are given, and the way for many rows (norm_many.cu).
#pragma once

#include "core/cuda/kernel.cuh"
#include "ops/norm/kind.h"

namespace mr::cuda {

struct NormArgs {
    const void* x;
    const void* residual;
    void* sum;
    void* out;
    void* out2;
    const float *weight, *bias, *weight2, *bias2;
    int rows, cols;
    float eps;
    ops::NormKind kind;
    Stamp* stamp;
};

// Starts the kernel for many rows where it can take them; else false, and nothing has happened.
// All pointers are 16-byte aligned, cols is a multiple of 4; `residual` is x's type where there is
// none.
bool start_norm_many(const Context& ctx, const NormArgs& args, DType x, DType residual, DType out);

}  // namespace mr::cuda
