// The second half of sums over rows: the blocks of a kernel write one partial sum each, and these
// are added in a fixed order, so that bits do not depend on atomic additions.
#pragma once

#include <array>
#include <cstdint>

#include "core/context.h"
#include "core/cuda/timeline.h"

namespace mr::cuda {

// to[i] += the sum over p of parts[p * stride + i], p < count, i < n; null `to`: nothing happens.
// Not in the ledger: it is part of the kernel that made the parts. `stamp`: the stage to end.
void add_parts(const Context& ctx, float* to, const float* parts, int count, std::int64_t n,
               std::int64_t stride, Stamp* stamp = nullptr);
// The same for three sums side by side, parts [count, 3, n], in one launch; any of `to` may be
// null.
void add_parts(const Context& ctx, const std::array<float*, 3>& to, const float* parts, int count,
               std::int64_t n, Stamp* stamp = nullptr);

}  // namespace mr::cuda
