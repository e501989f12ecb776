#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/check/check.h"

namespace mr::cuda {

// Lowers *found, a word in device memory that starts as ops::NotFinite::kNone, to the first row of
// x, f32 [rows, cols], with a NaN or an infinity. Rows are counted from `first_row`.
void check_finite(const Context& ctx, std::uint64_t* found, Tensor x, int stage,
                  std::int64_t first_row = 0);

}  // namespace mr::cuda
