// norm_many.cuh for rows of f32 with a norm in bf16, as in training.
#pragma once

#include "ops/norm/norm_many.cuh"

namespace mr::cuda {

// As start_norm_many(): 2048 rows and more of at most 2048 columns in multiples of four, without a
// residual or a second norm, code for sm_90.
bool start_norm_many_f32(const Context& ctx, const NormArgs& args);

}  // namespace mr::cuda
