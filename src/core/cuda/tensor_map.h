// Tensor maps, which describe a tensor to TMA (sm_90). The host makes them and passes them to
// kernels by value as `const __grid_constant__ CUtensorMap`. For files that nvcc compiles.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/dtype.h"

namespace mr::cuda {

// [tokens, heads, head_dim] of f16 or bf16 with `stride` elements from token to token, read in
// boxes of 64 numbers of one head by `rows` tokens, into shared memory with the 128-byte swizzle.
// Elements outside of the tensor (also in head_dim) are read as zeros. data and strides are
// multiples of 16 bytes.
CUtensorMap head_rows_map(const void* data, DType dtype, std::int64_t tokens, std::int64_t heads,
                          std::int64_t head_dim, std::int64_t stride, int rows);

// [planes, rows, cols] of f16 or bf16, contiguous, read in boxes of 64 columns by `box_rows` rows
// of `box_planes` planes, swizzled as above. data and a row's bytes are multiples of 16.
CUtensorMap plane_rows_map(const void* data, DType dtype, std::int64_t planes, std::int64_t rows,
                           std::int64_t cols, int box_planes, int box_rows);

}  // namespace mr::cuda
