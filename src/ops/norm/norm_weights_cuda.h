// Which norms on the GPU accept weights and biases that are not f32 (norm_cuda.h).
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace mr::cuda {

// Whether norm() accepts weights and biases of x's own type for such rows of f16 or bf16, with a
// residual of that type or none, and all tensors 16-byte aligned: for tensors of other programs,
// which would otherwise have to be converted. Others are f32.
bool norm_takes_weights_like_rows(DType type, std::int64_t rows, std::int64_t cols);

}  // namespace mr::cuda
