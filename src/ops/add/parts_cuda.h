// The second half of sums over rows: blocks of a kernel leave a partial sum each, and these are
// added in one order, so that no atomic addition decides about bits.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/cuda/timeline.h"

namespace mr::cuda {

// to[i] += the sum over p of parts[p * stride + i], p < count, i < n; to may be null: nothing
// happens. Not entered in the ledger: it belongs to who made the parts. `stamp`: whose end it is.
void add_parts(const Context& ctx, float* to, const float* parts, int count, std::int64_t n,
               std::int64_t stride, Stamp* stamp = nullptr);

}  // namespace mr::cuda
