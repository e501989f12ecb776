// The product for many tokens (prefill) on the GPU. linear_cuda.h has the one for few tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::cuda {

struct GemmOptions {
    OpKind kind = OpKind::linear;
    const char* name = "gemm";  // of the stage; a string literal
    bool own_kernel = false;    // do not use cuBLASLt
};

// out = x · wᵀ (+ bias) (+ residual)
//   out       [tokens, n] f32 or x's type
//   x         [tokens, k] f32, f16 or bf16: the compute type
//   w         [n, k] f32, f16, bf16, or q8_0x8, q4_0x8 (tile_layout.h), which are first expanded to
//             the compute type
//   bias      [n] f32, or none; rounded to out's type before it is added
//   residual  [tokens, n] f32, or none; may be `out` itself; only if out is f32
//
// Sums are in f32; f32 by f32 is never rounded to TF32. The bits of out[t, :] depend on x[t, :], w,
// bias and residual[t, :] alone: for every (n, k, types, bias or none) one algorithm without
// split-k defines them, and others serve fewer tokens only if they gave the same bits in a trial on
// random numbers.
//
// cuBLASLt if it can be opened and accepts the shape (x and w of one type, rows of whole 16 bytes);
// else own kernels: tensor cores for f16 and bf16 from sm_80 on, FMA for the rest. The
// environment's MILLRACE_CUBLASLT names the library's file, or is `off`.
//
// Scratch: gemm_scratch_bytes() of ctx.scratch. Nothing is allocated. The first call for a shape
// searches its algorithms and waits for the device, a few milliseconds; later calls do not. Call
// gemm_prepare() before a capture.
void gemm(const Context& ctx, Tensor out, Tensor x, Tensor w, Tensor bias = {},
          Tensor residual = {}, const GemmOptions& options = {});

// A product without its number of tokens.
struct GemmShape {
    std::int64_t n = 0, k = 0;
    DType w = DType::bf16, x = DType::bf16, out = DType::bf16;
    bool bias = false;
};

// For any number of tokens.
std::size_t gemm_scratch_bytes(const GemmShape& shape);
// Chooses the shape's algorithms and runs them on small products inside ctx.scratch, so that their
// code is on the device.
void gemm_prepare(const Context& ctx, const GemmShape& shape);
// Whether cuBLASLt computes it; the same for every number of tokens.
bool gemm_uses_library(const GemmShape& shape);
// What computes it, for reports: "cuBLASLt 13.1.0, algorithm 66, tile 31, ...", "own kernel, ...".
std::string gemm_about(const GemmShape& shape, std::int64_t tokens = std::int64_t{1} << 20);

// Expands w (q8_0x8 or q4_0x8, [n, k]) to f32, f16 or bf16 [n, k]: scale * quant, rounded once.
void gemm_dequantize(const Context& ctx, Tensor to, Tensor w, OpKind kind = OpKind::linear);

}  // namespace mr::cuda
