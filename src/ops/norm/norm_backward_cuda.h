// The backward of norm() on the GPU. Semantics as in norm_backward.h; tensors and scratch are in
// device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/norm/kind.h"

namespace mr::cuda {

//   dx = the gradient by the norm's input x, added to `residual` if there is one
//   dweight += sum over rows of dy * (x - mean) / std;   dbias += sum over rows of dy
//   dsum += sum over rows of dx, if the kernel supports it
// dy bf16, f16 or f32 [rows, cols]; x, dx, residual f32 or all of dy's type; copy: dx in bf16 as
// well, or none.
// weight, dweight, dbias, dsum f32 [cols]; all but weight may be none. dx may be residual, or dy if
// that is f32. Statistics are those of the forward, bit for bit. The bits of a row of dx depend on
// that row alone; the order of the sums over rows depends only on their number.
struct NormBackward {
    ops::NormKind kind = ops::NormKind::rms;
    float eps = 1e-5f;
    Tensor dx, copy, residual;
    Tensor dweight, dbias, dsum;
    Tensor dy, x, weight;
};
// Scratch: norm_backward_scratch_bytes() of ctx.scratch. Returns false if dsum is left to the
// caller; the rest is done.
bool norm_backward(const Context& ctx, const NormBackward& pass);
std::size_t norm_backward_scratch_bytes(std::int64_t max_cols);

}  // namespace mr::cuda
