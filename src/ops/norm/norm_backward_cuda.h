// The backward of norm() on the GPU. The meaning is that of norm_backward.h; tensors and scratch
// lie in device memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/norm/kind.h"

namespace mr::cuda {

//   dx = the gradient by the norm's input x, added to `residual` where there is one
//   dweight += sum over rows of dy * (x - mean) / std;   dbias += sum over rows of dy
//   dsum += sum over rows of dx, where the kernel can do it on the way
// dy bf16, f16 or f32 [rows, cols]; x, dx, residual f32 or all of dy's type; copy: dx in bf16 as
// well, or none.
// weight, dweight, dbias, dsum f32 [cols]; all but weight may be none. dx may be residual, or dy
// where that is f32. Statistics are those of the forward, bit for bit. Bits of a row of dx depend
// on that row alone; the sums over rows have an order that depends on their number alone.
struct NormBackward {
    ops::NormKind kind = ops::NormKind::rms;
    float eps = 1e-5f;
    Tensor dx, copy, residual;
    Tensor dweight, dbias, dsum;
    Tensor dy, x, weight;
};
// Scratch: norm_backward_scratch_bytes() of ctx.scratch. False: dsum is left to the caller, the
// rest is done.
bool norm_backward(const Context& ctx, const NormBackward& pass);
std::size_t norm_backward_scratch_bytes(std::int64_t max_cols);

}  // namespace mr::cuda
