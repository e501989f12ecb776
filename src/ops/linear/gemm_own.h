// The product for many tokens without a library: correct on every GPU, for all shapes and types.
#pragma once

#include "core/context.h"
#include "core/cuda/timeline.h"
#include "core/tensor.h"

namespace mr::cuda {

// As gemm() in gemm_cuda.h, for w of f32, f16 or bf16, of x's type or another. If x and w have the
// same 16-bit type, tensor cores are used from sm_80 on; everything else is FMA in f32.
void gemm_own(const Context& ctx, Tensor out, Tensor x, Tensor w, Tensor bias, Tensor residual,
              Stamp* stamp);
// "tensor cores" or "FMA", for reports.
const char* gemm_own_about(DType x, DType w);

}  // namespace mr::cuda
