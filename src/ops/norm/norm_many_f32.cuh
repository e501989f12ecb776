// norm_many.cuh for rows of f32 whose norm is wanted in bf16, as training has them.
#pragma once

#include "ops/norm/norm_many.cuh"

namespace mr::cuda {

// As start_norm_many(): 2048 rows and more of at most 2048 columns in fours, without a residual and
// a second norm, code for sm_90.
bool start_norm_many_f32(const Context& ctx, const NormArgs& args);

}  // namespace mr::cuda
