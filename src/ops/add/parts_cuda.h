// The second half of sums over rows: blocks of a kernel leave a partial sum each, and these are
// added in one order, so that no atomic addition decides about bits.
#pragma once

#include <array>
#include <cstdint>

#include "core/context.h"
#include "core/cuda/timeline.h"

namespace mr::cuda {

// to[i] += the sum over p of parts[p * stride + i], p < count, i < n; to may be null: nothing
// happens. Not entered in the ledger: it belongs to who made the parts. `stamp`: whose end it is.
void add_parts(const Context& ctx, float* to, const float* parts, int count, std::int64_t n,
               std::int64_t stride, Stamp* stamp = nullptr);
// The same for three sums side by side, parts [count, 3, n], in one launch; any of `to` may be
// null.
void add_parts(const Context& ctx, const std::array<float*, 3>& to, const float* parts, int count,
               std::int64_t n, Stamp* stamp = nullptr);

}  // namespace mr::cuda
