// Masks for the tests of every form of attention.
#pragma once

#include <vector>

#include "ops/attention/mask.h"

namespace mr::ops::reference {

// Blocks from every origin that differs, and some that do not.
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
