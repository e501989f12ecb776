// Which tiles of keys a tile of queries visits, which tiles of queries see a tile of keys, and
// which tiles the mask cuts. All constexpr: kernels call it on the device, tests on the host.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/attention/mask.h"

namespace mr::cuda::flash {

// One sequence of a batch: its first query and key as tokens of the tensors, and their numbers.
struct Sequence {
    int q = 0, k = 0;
    int queries = 0, keys = 0;
    // The position of query i of the sequence; keys have positions 0, 1, ...
    constexpr int position(int query) const { return keys - queries + query; }
};

// Kernels use the definition itself and compare keys with its bounds.
using Mask = ops::KeyMask;

// The bounds of Mask for the one-pass backward, which computes them for every score of a cut tile.
// A sum and a minimum cost less there than the cases of Mask: full and causal differ in a number
// alone, and a bound may be negative where Mask's is 0. mask_test.cpp compares them with Mask.
struct ScoreBounds {
    const Mask& mask;
    int beyond;  // full, causal: position p sees keys below p + beyond

    constexpr explicit ScoreBounds(const Mask& m)
        : mask(m), beyond(m.kind == Mask::Kind::full ? Mask::kNever : 1) {}
    constexpr int hi(int p, int keys) const {
        int end = std::min(keys, p + beyond);
        if (mask.kind == Mask::Kind::block_causal) end = mask.hi(p, keys);
        return end;
    }
    constexpr int lo(int p) const { return p - mask.window + 1; }
};

// The tiles of kTile keys of which the queries [first, last] (positions) see a key, in the order of
// visits: from the last keys to the first, because causal masks cut the last ones, and the sinks at
// the end.
template <int kTile>
struct KeyTiles {
    int sink_end = 0;        // tiles [0, sink_end)
    int begin = 0, end = 0;  // and [begin, end)
    // Every query sees keys [all_lo, all_hi) and, below all_hi, [0, sinks).
    int all_lo = 0, all_hi = 0;
    int sinks = 0;

    constexpr KeyTiles(const Mask& mask, int first, int last, int keys) {
        const int hi = mask.hi(last, keys), lo = std::min(mask.lo(first), hi);
        end = (hi + kTile - 1) / kTile;
        begin = lo / kTile;
        sinks = mask.sinks;
        sink_end = std::min((std::min(sinks, hi) + kTile - 1) / kTile, begin);
        all_hi = mask.hi(first, keys);
        all_lo = mask.lo(last);
        if (hi == 0) begin = end = sink_end = 0;
    }
    constexpr int count() const { return sink_end + end - begin; }
    // The first key of the i-th tile visited, i in [0, count()).
    constexpr int at(int i) const {
        return (i < end - begin ? end - 1 - i : sink_end - 1 - (i - (end - begin))) * kTile;
    }
    // Whether the tile at key n is visited.
    constexpr bool visits(int n) const {
        return n < end * kTile && (n >= begin * kTile || n < sinks);
    }
    // The first key of the tile visited after the one at key n; below 0: none.
    constexpr int after(int n) const {
        const int last_sinks = (sinks + kTile - 1) / kTile * kTile - kTile;
        return n > begin * kTile ? n - kTile : std::min(n - kTile, last_sinks);
    }
    // Whether some query does not see some key of the tile at key n.
    constexpr bool cut(int n) const {
        return n + kTile > all_hi || (n < all_lo && n + kTile > sinks);
    }
};

// The tiles of kTile queries of a sequence that see one of the keys [key, key + count), count > 0:
// one range [begin, end), and whether the mask cuts a tile (missing rows do not count as a cut).
template <int kTile>
struct QueryTiles {
    int begin = 0, end = 0;

    constexpr QueryTiles(const Mask& mask, const Sequence& s, int key, int count)
        : mask_(mask), s_(s), key_(key), last_(key + count - 1) {
        // The first position that sees `key`: the first with hi() > key.
        int from = s.position(0);
        if (mask.kind == Mask::Kind::causal) from = std::max(from, key);
        if (mask.kind == Mask::Kind::block_causal) {
            // The begin of the key's block (the first may be shorter), or of the next one.
            const int end = (key - mask.origin + mask.block) / mask.block * mask.block;
            from = std::max({from, 0, end - mask.ahead});
        }
        // The last position that sees the last key; all do if the first key is a sink.
        int to = s.keys - 1;
        if (key >= mask.sinks && mask.window < Mask::kNever) {
            to = std::min(to, last_ + mask.window - 1);
        }
        const int first_row = from - s.position(0), last_row = to - s.position(0);
        if (last_row < first_row || s.queries == 0) return;
        begin = first_row / kTile;
        end = last_row / kTile + 1;
    }
    constexpr int count() const { return end - begin; }
    // Whether some query of tile t does not see some of the keys.
    constexpr bool cut(int t) const {
        const int first = s_.position(t * kTile);
        const int last = s_.position(std::min((t + 1) * kTile, s_.queries) - 1);
        return last_ >= mask_.hi(first, s_.keys) || (key_ < mask_.lo(last) && last_ >= mask_.sinks);
    }

  private:
    Mask mask_;
    Sequence s_;
    int key_, last_;
};

}  // namespace mr::cuda::flash
