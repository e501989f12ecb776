// Two ways to turn a head: neighbours (2i, 2i + 1), or one half against the other (i, i +
// rotary/2). They are the same where rows of q and k (biases and norms of heads, too) have the
// order that belongs to them.
#pragma once

#include <cstdint>

#include "model/names.h"
#include "model/spec.h"

namespace mr::model {

// Which row of a tensor whose heads turn halves is row r where they turn neighbours.
struct RowOrder {
    int head_dim = 1;
    int rotary = 0;  // 0: as they are
    constexpr std::int64_t source(std::int64_t r) const {
        const auto in_head = static_cast<int>(r % head_dim);
        if (in_head >= rotary) return r;
        return r - in_head + in_head / 2 + (in_head % 2) * (rotary / 2);
    }
    // The other way round: which row, where neighbours turn, is row r where halves do.
    constexpr std::int64_t inverse(std::int64_t r) const {
        const auto in_head = static_cast<int>(r % head_dim);
        if (in_head >= rotary) return r;
        return r - in_head + in_head % (rotary / 2) * 2 + in_head / (rotary / 2);
    }
    constexpr bool plain() const { return rotary == 0; }
};
// Of a role; plain where its rows belong to no head that turns.
RowOrder reordered_rows(const ModelSpec& spec, Role role);

}  // namespace mr::model
