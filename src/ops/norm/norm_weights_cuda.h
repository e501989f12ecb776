// Which norms on the GPU read weights and biases that are not f32 (norm_cuda.h).
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace mr::cuda {

// Whether norm() takes weights and biases of x's own type for such rows, of f16 or bf16, with a
// residual of that type or none, and all tensors at multiples of 16 bytes: tensors of other
// programs, which would have to be converted first. Others are f32.
bool norm_takes_weights_like_rows(DType type, std::int64_t rows, std::int64_t cols);

}  // namespace mr::cuda
