// Selects rows of a tensor on the GPU. Semantics as in rows.h; tensors are f32 in device memory,
// and so are the row numbers.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::cuda {

void gather_rows(const Context& ctx, Tensor out, Tensor x, const std::int32_t* rows);
// Also copy[rows[i]] = x[i] in bf16, if there is a copy, of the shape of `out`.
void scatter_rows(const Context& ctx, Tensor out, Tensor copy, Tensor x, const std::int32_t* rows);

}  // namespace mr::cuda
