// The arguments of the norm's kernels, and the launch for many rows (norm_many.cu).
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
    bool weights_like_rows = false;  // weights and biases have x's type; ignore float*
};

// Launches the kernel for many rows, or returns false and does nothing if it does not support the
// call: 2048 rows and more, 1024 to 8192 columns in multiples of eight, all f16 or all bf16, code
// for sm_90. All pointers are 16-byte aligned; `residual` is x's type if there is none. Only this
// kernel supports weights_like_rows.
bool start_norm_many(const Context& ctx, const NormArgs& args, DType x, DType residual, DType out);

}  // namespace mr::cuda
