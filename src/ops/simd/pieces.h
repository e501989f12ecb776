// The granularity of the CPU ops' work.
#pragma once

#include <algorithm>
#include <cstdint>

namespace mr::ops {

// Rows per piece of a parallel loop over rows of `row_work` elements: enough (about 10
// microseconds) that the cost of distributing a piece is negligible, so that small tensors stay on
// one thread.
inline std::int64_t rows_per_piece(std::int64_t row_work) {
    constexpr std::int64_t kPiece = 16384;
    return std::max<std::int64_t>(1, kPiece / std::max<std::int64_t>(1, row_work));
}

}  // namespace mr::ops
