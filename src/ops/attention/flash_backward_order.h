// In which order the one-pass backward works, and in which order tiles of keys add to a tile of dq.
// All constexpr: kernels call it on the device, tests on the host.
//
// A block has one tile of keys and walks along the tiles of queries that see it; each step adds to
// the dq of one tile of queries. Additions to a tile take turns: the block whose turn() is t adds
// when t others have. Turns follow the walks: where all blocks of a sequence start together, each
// comes to a tile some steps after the one before it, and nobody waits.
//   - Masks with a diagonal: a tile of keys is first seen at the diagonal, so later keys come to a
//     tile of queries earlier: the last keys go first (flash_mask.h's KeyTiles).
//   - Full: everybody sees all, so block i of a gang of n begins i / n along the way, and the turns
//     go round with it.
// Waiting for a block that has not started would be for ever. So blocks are numbered as they start,
// and wait for none of a later gang: gangs of `gang` tiles of keys start from the last keys to the
// first, and no gang is greater than what the device runs at once.
#pragma once

#include "ops/attention/flash_mask.h"

namespace mr::cuda::flash {

// The work of the n-th block to start: a tile of keys of one pair of sequence and kv head.
struct BackwardWork {
    int pair = 0, key_tile = 0;
};
// For `pairs` pairs with at most `key_tiles` tiles of keys each. Sequences may be shorter: then
// there is nothing to do for a block beyond their last tile.
struct BackwardWorkOrder {
    int pairs = 0, gang = 1, width = 1, gangs = 0;

    constexpr BackwardWorkOrder() = default;
    constexpr BackwardWorkOrder(int pairs_, int key_tiles, int gang_)
        : pairs(pairs_),
          gang(gang_),
          width(std::min(gang_, key_tiles)),
          gangs((key_tiles + gang_ - 1) / gang_) {}
    constexpr std::int64_t blocks() const { return std::int64_t{gangs} * pairs * width; }
    constexpr BackwardWork at(std::int64_t n) const {
        const std::int64_t round = n / width;  // of one gang of one pair
        const int from_last = static_cast<int>(round / pairs), i = static_cast<int>(n % width);
        return {static_cast<int>(round % pairs), (gangs - 1 - from_last) * gang + i};
    }
};

// The walks of a sequence, with tiles of kQ queries and kK keys.
template <int kQ, int kK>
class BackwardWalks {
  public:
    constexpr BackwardWalks(const Mask& mask, const Sequence& s, int gang)
        : mask_(mask),
          s_(s),
          gang_(gang),
          round_(mask.kind == Mask::Kind::full && mask.window == Mask::kNever) {}

    constexpr int query_tiles() const { return (s_.queries + kQ - 1) / kQ; }
    constexpr int key_tiles() const { return (s_.keys + kK - 1) / kK; }
    constexpr QueryTiles<kQ> seen_by(int key_tile) const {
        const int key = key_tile * kK;
        return {mask_, s_, key, std::min(kK, s_.keys - key)};
    }
    // How far from seen_by().begin a tile of keys begins its walk, which goes on to the end and
    // then round to where it began.
    constexpr int start(int key_tile) const {
        if (!round_) return 0;
        const auto size = static_cast<unsigned>(gang_size(key_tile));
        const auto i = static_cast<unsigned>(key_tile % gang_);
        return static_cast<int>(i * static_cast<unsigned>(query_tiles()) / size);
    }
    // How many add to dq of the tile of queries before this tile of keys does.
    constexpr int turn(int query_tile, int key_tile) const {
        if (round_) {
            const int size = gang_size(key_tile), tiles = query_tiles(), i = key_tile % gang_;
            const int behind = std::max(0, key_tiles() - (key_tile / gang_ + 1) * gang_);
            // The last of the gang that began at or before the tile comes first.
            const int first = static_cast<int>(
                ((static_cast<unsigned>(query_tile) + 1) * static_cast<unsigned>(size) - 1) /
                static_cast<unsigned>(tiles));
            return behind + first - i + (first < i ? size : 0);
        }
        const int first = s_.position(query_tile * kQ);
        const int last = s_.position(std::min((query_tile + 1) * kQ, s_.queries) - 1);
        const KeyTiles<kK> tiles(mask_, first, last, s_.keys);
        return key_tile >= tiles.begin ? tiles.end - 1 - key_tile
                                       : tiles.end - tiles.begin + tiles.sink_end - 1 - key_tile;
    }

  private:
    constexpr int gang_size(int key_tile) const {
        return std::min(gang_, key_tiles() - key_tile / gang_ * gang_);
    }

    Mask mask_;
    Sequence s_;
    int gang_;
    bool round_;
};

// Rows of scratch: every sequence begins a tile of kQ rows of its own.
constexpr int first_row_tile(int first_query, int sequence, int rows) {
    return first_query / rows + sequence;
}
constexpr std::int64_t row_tiles(std::int64_t tokens, int sequences, int rows) {
    return tokens / rows + sequences;
}

}  // namespace mr::cuda::flash
