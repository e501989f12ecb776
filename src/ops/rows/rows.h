// Selects rows of a tensor by their numbers: the LM head of a diffusion model is computed only for
// unknown tokens.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::ops {

// out[i] = x[rows[i]]. f32: out [n, dim], x [tokens, dim]; rows [n].
void gather_rows(const Context& ctx, Tensor out, Tensor x, const std::int32_t* rows);
// out[rows[i]] = x[i]; other rows are unchanged. f32: out [tokens, dim], x [n, dim]; rows [n], none
// twice.
void scatter_rows(const Context& ctx, Tensor out, Tensor x, const std::int32_t* rows);

}  // namespace mr::ops
