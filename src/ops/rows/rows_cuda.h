// Some rows of a tensor on the GPU. The meaning is that of rows.h; tensors are f32 and lie in
// device memory, as the numbers of rows do.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::cuda {

void gather_rows(const Context& ctx, Tensor out, Tensor x, const std::int32_t* rows);
// And copy[rows[i]] = x[i] in bf16, where there is a copy, of the shape of `out`.
void scatter_rows(const Context& ctx, Tensor out, Tensor copy, Tensor x, const std::int32_t* rows);

}  // namespace mr::cuda
