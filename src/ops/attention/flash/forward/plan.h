// The shapes of the Hopper forward's tiles, and the order in which they are processed.
#pragma once

#include <algorithm>
#include <cstddef>

#include "core/cuda/timeline.h"
#include "ops/attention/flash/pages.h"

namespace mr::cuda::flash {

// D: head_dim, padded with zeros to a size that the instructions support (zeros cost only time).
template <int D, int kGroups_, int kKeys_, int kStages_, bool kUniform_>
struct ForwardShape {
    static constexpr int kDim = D;
    static constexpr int kGroups = kGroups_;  // consumers
    static constexpr int kRows = 64 * kGroups;
    static constexpr int kKeys = kKeys_;      // per tile
    static constexpr int kStages = kStages_;  // tiles of K, and of V, in flight or in use
    // Whether offsets in the ring buffer pass through a warp reduction, of which the compiler keeps
    // the result in uniform registers: products then take their descriptors without copies.
    // Measured: 1% faster at head_dim 64, no difference at 128.
    static constexpr bool kUniform = kUniform_;
    // Whether a tile consists of whole pages of a cache; otherwise the shape is only for plain
    // tensors.
    static constexpr bool kPaged = kKeys % PagedKeys::kPage == 0;
    static constexpr int kPages = kKeys / PagedKeys::kPage;
    static constexpr int kThreads = 128 * (kGroups + 1);
    static constexpr int kPanels = (D + 63) / 64;  // panels of 64 numbers, 128 bytes
    static constexpr int kQueryBytes = kPanels * kRows * 128;
    static constexpr int kTileBytes = kPanels * kKeys * 128;
    static constexpr int kBytes = kQueryBytes + 2 * kStages * kTileBytes + 1024 + 256;
    static constexpr int kProducerRegisters = kGroups == 2 ? 40 : 32;
    static constexpr int kConsumerRegisters = kGroups == 2 ? 232 : 160;
    static_assert(D % 16 == 0 && kKeys % 16 == 0 && kBytes <= 227 * 1024);
};

// A tile as the producer describes it to the consumers.
struct ForwardTile {
    int row0, head;  // first query, in its sequence; below 0: missing rows come first
    int q, queries;  // the sequence's first query as a token of q, and its length; 0: no more tiles
    int keys, key0;  // number of keys, and the first as a token of k
};

// The order of tiles of queries: sections of `section` (sequence, head) pairs. In a section the
// last queries of all pairs come first, because they see most keys, so that the last tiles are
// short.
struct ForwardPlan {
    int row_tiles = 0;     // tiles of the longest sequence
    int pairs = 0;         // sequences * heads
    int section = 1;       // pairs that are processed together
    int tiles = 0;         // row_tiles * pairs
    int counter = -1;      // counts tiles taken (tile_counters); -1: each block has its own tiles
    float scale_log2 = 1;  // scale * log2(e): weights are powers of two
    Stamp* stamp = nullptr;

    struct Tile {
        int pair, row;
    };
    constexpr Tile tile(int t) const {
        const int whole = section * row_tiles, first = t / whole * section;
        const int width = std::min(section, pairs - first), rest = t - first * row_tiles;
        return {first + rest % width, row_tiles - 1 - rest / width};
    }
    // The first query of a sequence's tile `row`; `queries` or more if there is none. Tiles end
    // with the last query. If they do not fit exactly, the first tile is the partial one, and its
    // queries see few keys.
    static constexpr int first_row(int row, int queries, int rows) {
        const int tiles_here = (queries + rows - 1) / rows;
        return row < tiles_here ? queries - (tiles_here - row) * rows : queries;
    }
    // The next tile of a block; its first has the block's number. `ticket` is the number of tickets
    // taken before by all blocks. Every tile takes one ticket, so that a launch counts exactly to
    // `tiles`, where atomicInc() wraps to 0.
    static constexpr int after_ticket(int blocks, unsigned ticket) {
        return blocks + static_cast<int>(ticket);
    }
    // The same without a counter: alternating directions, so that a block with a long tile gets a
    // short one next. round = 1, 2, ...
    static constexpr int own(int block, int blocks, int round) {
        return round * blocks + (round % 2 ? blocks - 1 - block : block);
    }
};

// Blocks that read the same keys at the same time find them in L2. With many pairs at once few
// blocks share keys; with few pairs long tiles remain for the end, where tiles differ in length.
// Where tiles are equal: at least four pairs, or as many as fit in a sixth of L2 (queries and
// results pass through it as well). Else: at least four blocks per pair, or as many pairs as fit in
// a third.
inline ForwardPlan plan_forward(const Problem& p, int rows, int multiprocessors,
                                std::size_t l2_bytes, Stamp* stamp) {
    ForwardPlan plan;
    plan.row_tiles = (p.max_queries + rows - 1) / rows;
    plan.pairs = p.sequences * p.heads;
    plan.tiles = plan.row_tiles * plan.pairs;
    const double bytes_of_pair = 4.0 * p.max_keys * p.head_dim / p.group;
    const bool equal = p.mask.kind == Mask::Kind::full && p.mask.window == Mask::kNever && !p.cu_q;
    const double fit =
        static_cast<double>(l2_bytes) / (equal ? 6 : 3) / std::max(1.0, bytes_of_pair);
    const int least = equal ? 4 : std::max(multiprocessors / 4, 1);
    const int most = std::max(static_cast<int>(std::min(fit, 1e6)), least);
    const int sections = (plan.pairs + most - 1) / most;
    plan.section = (plan.pairs + sections - 1) / sections;
    plan.scale_log2 = p.scale * kLog2e;
    plan.stamp = stamp;
    return plan;
}

}  // namespace mr::cuda::flash
