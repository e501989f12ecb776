// Fills in a block on the GPU: its state is in device memory, one kernel makes the inputs of a pass
// from it, and another settles guesses as ops::choose() does. So passes follow each other without
// the host, which reads a block when it is filled.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/cuda/loop.h"
#include "ops/denoise/denoise_cuda.h"

namespace mr::cuda {

inline constexpr int kBlockPlaces = 64;  // most places of a block

// In device memory. Positions count from the beginning of the text.
struct BlockState {
    GuessRow
        row;  // temperature, filters and seed of every place; every pass sets position and step
    ops::DenoiseParams how;
    std::int32_t mask;   // the mask token, for unknown places
    std::int32_t block;  // places of a block
    std::int32_t part;   // places that are guessed together: those of a block, or of a part of it
    std::int32_t size;   // tokens of the text
    std::int32_t from;   // tokens [from, start) go into the cache with the next pass
    std::int32_t start, end;            // of the open block
    std::int32_t pass;                  // passes of this block so far
    std::uint32_t passes, blocks;       // in all: passes, and filled blocks
    std::uint64_t known;                // bit i: place i is settled
    std::int32_t ids[kBlockPlaces];     // of the settled places
    std::int32_t before[kBlockPlaces];  // tokens [from, start)
};

// In host memory that the device writes: a filled block, and the progress of passes.
struct BlockReport {
    std::uint64_t progress;  // BlockState::blocks << 32 | passes; written last
    std::int32_t ids[kBlockPlaces];
    std::uint32_t flags;
};

// The rows of a pass: [from, from + count) of the text.
struct BlockRows {
    std::int32_t *ids, *positions, *sequence;  // [count]; not written if there is a `text`
    std::int32_t* first;                       // [2]: 0 and count
    GuessRow* guesses;                         // [asked]
    int count = 0;
    int asked = 0;  // rows with logits: guesses[g] is for place g + `place`
    int place = 0;
    bool commits = false;  // the rows end at the begin of the block
    // With full attention, passes read the whole text from device memory, with the mask token at
    // unknown places. The open block may be anywhere in the rows.
    std::int32_t* text = nullptr;      // [size], or null
    std::int32_t* asked_at = nullptr;  // [asked]: the rows with logits
    int speaks_of = 0;                 // the position of row 0's logits
};
void block_rows(const Context& ctx, const BlockState* state, const BlockRows& rows);

// Settles some of the places that block_rows() asked for, from made[0, asked). When none is left,
// the block is reported and the next one opens. `loop` runs again while there are places left.
void block_choose(const Context& ctx, BlockState* state, const BlockRows& rows,
                  const DeviceGuess* made, BlockReport* report, LoopGraph::Loop loop);

// The places of the state's block that the next pass asks for, as bits.
#ifdef __CUDACC__
__host__ __device__
#endif
    inline std::uint64_t
    block_asks(std::uint64_t known, int places, int part) {
    const std::uint64_t all = places >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << places) - 1;
    const std::uint64_t unknown = ~known & all;
    if (unknown == 0) return 0;
    int first = 0;  // the first unknown place
    while ((unknown >> first & 1) == 0) ++first;
    const int begin = first / part * part;
    const std::uint64_t these = part >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << part) - 1;
    return unknown & these << begin;
}

}  // namespace mr::cuda
