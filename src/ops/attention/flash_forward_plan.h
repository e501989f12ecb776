// In which order the blocks of the forward on Hopper take tiles of queries.
#pragma once

#include <algorithm>
#include <cstddef>

#include "core/cuda/timeline.h"
#include "ops/attention/flash_problem.h"

namespace mr::cuda::flash {

// Sections of `section` (sequence, head) pairs whose keys and values fit in L2 together. In a
// section, a unit is a tile of late queries and one of early ones of the same pair, the last and
// the first, the last but one and the second: with a causal mask all units are as long. A block
// takes every so-manieth unit.
struct ForwardPlan {
    int row_tiles = 0;  // of the longest sequence
    int pairs = 0;      // sequences * heads
    int section = 1;
    float scale_log2 = 1;  // scale * log2(e): weights are powers of two
    Stamp* stamp = nullptr;

    constexpr int units() const { return (row_tiles + 1) / 2 * pairs; }
    struct Tile {
        int pair, row;  // row < 0: none
    };
    // half: 0 is the late one, 1 the early one; the tile in the middle has no other.
    constexpr Tile tile(int unit, int half) const {
        const int rows = (row_tiles + 1) / 2, whole = section * rows,
                  first = unit / whole * section;
        const int width = std::min(section, pairs - first), rest = unit - first * rows;
        const int j = rest / width, late = row_tiles - 1 - j;
        return {first + rest % width, half == 0 ? late : j == late ? -1 : j};
    }
};

inline ForwardPlan plan_forward(const Problem& p, int rows, std::size_t l2_bytes, Stamp* stamp) {
    ForwardPlan plan;
    plan.row_tiles = (p.max_queries + rows - 1) / rows;
    plan.pairs = p.sequences * p.heads;
    // A third of L2 for keys and values: queries and results pass through it as well.
    const double bytes_of_pair = 4.0 * p.max_keys * p.head_dim / p.group;
    const double most = static_cast<double>(l2_bytes) / 3 / std::max(1.0, bytes_of_pair);
    plan.section = std::clamp(static_cast<int>(std::min(most, 1e9)), 1, plan.pairs);
    plan.scale_log2 = p.scale * 1.4426950408889634f;
    plan.stamp = stamp;
    return plan;
}

}  // namespace mr::cuda::flash
