// The noise of the diffusion objective: which tokens of a batch are masked.
//
// In every block of B tokens exactly k become the mask, k from 1 to B: the rate is t = k
// / B, and a masked token's loss has weight 1 / t. (B does not count given tokens,
// documents.h.) With k uniform and the k places uniform, the mean is the bound of masked
// diffusion with a rate uniform in (0, 1] and every token masked independently,
// integrated exactly over rates: sum over k of (1/k) * mean over places. So every block
// has a masked token, no weight is above B, and no rate has to be clipped. The k of a
// batch's blocks are stratified: block i has u = (permuted i + offset) / blocks and k = 1
// + floor(u B), so that every k is equally frequent in a batch of many blocks. Everything
// is a function of (seed, step, row, position): resuming at any step needs no other
// state.
#pragma once

#include <cstdint>
#include <span>

#include "model/train/train_ops.h"

namespace mr::train {

struct NoiseOptions {
    std::uint64_t seed = 0;
    std::int32_t mask = 0;
    // Rows 2i and 2i + 1 hold the same text with complementary masks: every token counts once in
    // the two, with weight 1. If all of a block is masked in one row, the other row has nothing to
    // fill in there.
    bool complementary = false;
};

// How many of a block's `tokens` are masked, for block `i` of `blocks` of the batch `step`.
int masked_in_block(std::uint64_t seed, std::uint64_t step, std::uint64_t i, std::uint64_t blocks,
                    int tokens);

// Writes ids [sequences, seq], of which the first `rows` sequences are valid, into a batch slot:
// the noisy half, the clean one, and the rows that count. ~id is a given token. Returns the number
// of rows that count (TrainEngine::put).
std::int64_t add_noise(const model::SlotParts<std::int32_t>& to, const model::TrainShape& shape,
                       std::span<const std::int32_t> ids, std::int64_t rows, std::uint64_t step,
                       const NoiseOptions& options);

}  // namespace mr::train
