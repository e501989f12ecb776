// Which tokens of a batch a model is to fill in: the noise of the diffusion objective.
//
// Of every block of B tokens exactly k become the mask, k from 1 to B: the rate is t = k / B, and a
// masked token's loss counts 1 / t. (B is without a token that is given, documents.h.) With k
// uniform and the k places uniform, the mean of that is the bound of masked diffusion with a rate
// uniform in (0, 1] and every token masked by itself, integrated exactly over rates: sum over k of
// (1/k) * mean over places. So no block is without a masked token, no weight is above B, and no
// rate has to be clipped.
// The k of a batch's blocks are stratified: block i has u = (permuted i + offset) / blocks and
// k = 1 + floor(u B), so that every k comes equally often in a batch of many blocks.
// All of it is a function of (seed, step, row, position): going on at any step needs no other
// state.
#pragma once

#include <cstdint>
#include <span>

#include "model/train/train_ops.h"

namespace mr::train {

struct NoiseOptions {
    std::uint64_t seed = 0;
    std::int32_t mask = 0;
    // Rows 2i and 2i + 1 hold one text, and what is known in one is unknown in the other: every
    // token counts once in the two, and each by 1. Where all of a block is unknown in one row, the
    // other has nothing to fill in there.
    bool complementary = false;
};

// How many of a block's `tokens` are masked, for block `i` of `blocks` of the batch `step`.
int masked_in_block(std::uint64_t seed, std::uint64_t step, std::uint64_t i, std::uint64_t blocks,
                    int tokens);

// ids [sequences, seq], of which `rows` sequences are there, into a batch slot: the noisy half, the
// clean one, and the rows that count. ~id is a given token. Gives their number (TrainEngine::put).
std::int64_t add_noise(const model::SlotParts<std::int32_t>& to, const model::TrainShape& shape,
                       std::span<const std::int32_t> ids, std::int64_t rows, std::uint64_t step,
                       const NoiseOptions& options);

}  // namespace mr::train
