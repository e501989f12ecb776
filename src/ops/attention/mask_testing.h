// Masks for the tests of every form of attention.
#pragma once

#include <cmath>
#include <vector>

#include "ops/attention/mask.h"

namespace mr::ops::reference {

// Whether the query at position `query` sees key `key`, by the description of AttentionMask.
inline bool sees(const AttentionMask& mask, int query, int key) {
    const auto block_of = [&](int position) {
        return std::floor((double(position) - mask.origin) / mask.block);
    };
    switch (mask.kind) {
        case AttentionMask::Kind::causal:
            if (key > query) return false;
            break;
        case AttentionMask::Kind::block_causal:
            // A query before the first key is before the first block.
            if (query < 0 || block_of(key) > block_of(query)) return false;
            break;
        case AttentionMask::Kind::block_before:
            if (query < 0 || key / mask.block >= query / mask.block) return false;
            break;
        case AttentionMask::Kind::full:
            break;
    }
    return mask.window == 0 || query - key < mask.window || key < mask.sinks;
}

// Blocks from every distinct origin, and some equivalent ones.
inline std::vector<AttentionMask> origin_masks() {
    std::vector<AttentionMask> out;
    for (const int block : {1, 3, 4, 32}) {
        for (int origin = 0; origin <= block + 1; ++origin) {
            AttentionMask mask{AttentionMask::Kind::block_causal, block};
            mask.origin = origin;
            out.push_back(mask);
        }
    }
    return out;
}

}  // namespace mr::ops::reference
