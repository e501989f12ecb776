// The order of work of the one-pass backward, and the order in which tiles of keys add to a tile of
// dq. All constexpr: kernels call it on the device, tests on the host.
//
// A block has one tile of keys and walks along the tiles of queries that see it;
// each step adds to the dq of one tile of queries. Additions to a tile take turns:
// earlier keys go first, so turn() is the number of tiles of keys before this one
// that see a query of the tile. Blocks take tickets as they start. A ticket waits
// only for lower tickets of its own launch: those of earlier keys. A block with a
// lower ticket is running or done, and the lowest running one waits for no other.
// So every wait ends, for any number of concurrent blocks and beside any other
// work. Waiting is rare if a block follows the one before it at a distance:
//   - Without a window all keys are seen by the last queries, and later keys by fewer of the first.
//     So walks go from the last queries to the first: two blocks that start together are a step
//     apart from then on, and the longest walks are the first to start.
//   - With a window walks go from the first queries to the last, as the window does. All blocks
//     wait for the sinks, which go ahead of the window.
#pragma once

#include "ops/attention/flash/mask.h"

namespace mr::cuda::flash {

// The work of ticket n: tiles of keys [key_tile, end) of one pair of sequence and kv head.
struct BackwardWork {
    int pair = 0, key_tile = 0, end = 0;
};
// For `pairs` pairs with at most `key_tiles` tiles of keys each. Sequences may be shorter: then
// there is nothing to do beyond their last tile. Pairs are worked on in sections: large enough that
// few blocks follow one another along the same queries, small enough that those find the queries in
// L2. With `whole` a block has all tiles of a pair, one after the other, and waits for no other
// block. The results have the same bits in every case.
struct BackwardWorkOrder {
    unsigned pairs = 0, key_tiles = 0, section = 1;
    bool whole = false;

    constexpr BackwardWorkOrder() = default;
    constexpr BackwardWorkOrder(int pairs_, int key_tiles_, int section_, bool whole_ = false)
        : pairs(static_cast<unsigned>(pairs_)),
          key_tiles(static_cast<unsigned>(key_tiles_)),
          section(static_cast<unsigned>(section_)),
          whole(whole_) {}
    constexpr std::int64_t blocks() const { return std::int64_t{pairs} * (whole ? 1 : key_tiles); }
    constexpr BackwardWork at(unsigned n) const {
        if (whole) return {static_cast<int>(n), 0, static_cast<int>(key_tiles)};
        const unsigned first = n / (section * key_tiles) * section,
                       rest = n % (section * key_tiles);
        const unsigned here = std::min(section, pairs - first);
        const int tile = static_cast<int>(rest / here);
        return {static_cast<int>(first + rest % here), tile, tile + 1};
    }
};

// The walks of a sequence, with tiles of kQ queries and kK keys.
template <int kQ, int kK>
class BackwardWalks {
  public:
    constexpr BackwardWalks(const Mask& mask, const Sequence& s) : mask_(mask), s_(s) {}

    constexpr int query_tiles() const { return (s_.queries + kQ - 1) / kQ; }
    constexpr int key_tiles() const { return (s_.keys + kK - 1) / kK; }
    constexpr QueryTiles<kQ> seen_by(int key_tile) const {
        const int key = key_tile * kK;
        return {mask_, s_, key, std::min(kK, s_.keys - key)};
    }
    // From one tile of queries to the next.
    constexpr int direction() const { return mask_.window < Mask::kNever ? 1 : -1; }
    // The number of tiles of keys that add to dq of the tile of queries before this one.
    constexpr int turn(int query_tile, int key_tile) const {
        const KeyTiles<kK> tiles = seen_from(query_tile);
        return key_tile < tiles.begin ? key_tile : tiles.sink_end + key_tile - tiles.begin;
    }
    // Whether no tile of keys adds after this one.
    constexpr bool last(int query_tile, int key_tile) const {
        return key_tile + 1 == seen_from(query_tile).end;
    }

  private:
    constexpr KeyTiles<kK> seen_from(int query_tile) const {
        const int first = s_.position(query_tile * kQ);
        const int last = s_.position(std::min((query_tile + 1) * kQ, s_.queries) - 1);
        return {mask_, first, last, s_.keys};
    }
    Mask mask_;
    Sequence s_;
};

// Rows of scratch: every sequence begins a tile of kQ rows of its own.
constexpr int first_row_tile(int first_query, int sequence, int rows) {
    return first_query / rows + sequence;
}
constexpr std::int64_t row_tiles(std::int64_t tokens, int sequences, int rows) {
    return tokens / rows + sequences;
}

}  // namespace mr::cuda::flash
