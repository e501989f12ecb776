// Two ways to rotate a head: pairs of neighbours (2i, 2i + 1), or pairs of halves (i, i +
// rotary/2). Both give the same result if the rows of q and k (and the biases and norms of heads)
// are in the matching order.
#pragma once

#include <cstdint>

#include "model/names.h"
#include "model/spec.h"

namespace mr::model {

// The row, in a tensor for pairs of halves, of row r in the order for pairs of neighbours.
struct RowOrder {
    int head_dim = 1;
    int rotary = 0;  // 0: rows keep their order
    constexpr std::int64_t source(std::int64_t r) const {
        const auto in_head = static_cast<int>(r % head_dim);
        if (in_head >= rotary) return r;
        return r - in_head + in_head / 2 + (in_head % 2) * (rotary / 2);
    }
    // The inverse: the row, in the order for neighbours, of row r in the order for halves.
    constexpr std::int64_t inverse(std::int64_t r) const {
        const auto in_head = static_cast<int>(r % head_dim);
        if (in_head >= rotary) return r;
        return r - in_head + in_head % (rotary / 2) * 2 + in_head / (rotary / 2);
    }
    constexpr bool plain() const { return rotary == 0; }
};
// The order for a role; plain if its rows do not belong to rotated heads.
RowOrder reordered_rows(const ModelSpec& spec, Role role);

}  // namespace mr::model
