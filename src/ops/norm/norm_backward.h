// The backward of rmsnorm() and layernorm().
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/norm/kind.h"

namespace mr::ops {

// From dy, the gradient by the norm's output:
//   dx  = the gradient by its input x, added to `residual` if there is one
//   dweight += sum over rows of dy * (x - mean) / std;   dbias += sum over rows of dy
// Statistics are recomputed from x: only the forward's input is kept. f32. x, dy, dx, residual
// [rows, cols]; weight, dweight, dbias [cols]. dx may be dy or residual. Rows are summed in one
// order, for any number of threads. Scratch: norm_backward_scratch_bytes().
struct NormBackward {
    NormKind kind = NormKind::rms;
    float eps = 1e-5f;
    Tensor dx;
    Tensor residual;  // or none
    Tensor dweight;
    Tensor dbias;  // layer norms; or none
    Tensor dy, x, weight;
};
void norm_backward(const Context& ctx, const NormBackward& pass);
std::size_t norm_backward_scratch_bytes(std::int64_t max_rows, std::int64_t max_cols, int threads);

}  // namespace mr::ops
