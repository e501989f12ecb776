// A tile of rows, the unit of work of the attention kernels over pages: which keys its rows see,
// and where these and their pages are stored.
#pragma once

#include <limits>
#include <type_traits>

#include "core/cuda/kernel.cuh"
#include "ops/attention/paged/parts.h"
#include "ops/attention/paged/problem.h"

namespace mr::cuda::attn {

// Decode: rows of q that share their loads of keys and values; a row is (token, head of the kv
// head's group), tokens outermost.
inline constexpr int kTileRows = 8;
inline constexpr int kDecodeThreads = 128;
inline constexpr float kLog2e = 1.4426950408889634f;

struct Args {
    void* out;           // [tokens, heads, head_dim]
    const void* q;       // [tokens, heads, head_dim]
    const void* keys;    // [pages, kv_heads, 32, head_dim]
    const void* values;  // as keys
    const std::int32_t* first;
    const std::int32_t* positions;
    const std::int32_t* pages;  // [sequences, max_pages], circular (page_table.h)
    int max_pages, max_keys;
    // Sinks (parts.h, view_lead): their queries, as q; by sequence their number and the window; and
    // their pages. If null: q; the mask's for all; the entries in `pages`.
    const void* q_sinks;
    const int2* streams;         // [sequences]
    const std::int32_t* fronts;  // [sequences, max_fronts]
    int max_fronts;
    int shorts;  // parts_of()
    int heads, kv_heads, group, head_dim;
    int row_tiles;  // per sequence of max_count rows
    ops::AttentionMask mask;
    float scale;  // times log2(e): weights are powers of two

    // The partial results of every (row, head) slot, decode form only.
    unsigned* counters;  // [slots]            blocks that have finished
    float2* tops;        // [slots, max_parts] largest score (times scale), sum of weights
    float* sums;         // [slots, max_parts, head_dim] sum of weight * value
    int max_parts;
    Stamp* stamp;

    // Whether there may be sinks or streams. Without them q_sinks is not used.
    bool has_views() const { return streams || mask.sinks > 0; }
};

struct KeyRange {
    int lo, hi;
    __device__ __forceinline__ bool holds(int key) const { return key >= lo && key < hi; }
};

// The slots of a row's parts in its partial results: part p has slot p, and the parts of the sinks
// are moved up next to the others by a multiple of four, so that no loop runs over the gap. Slots
// [first, sinks) and [begin, end) are in use; `first` is a multiple of four.
struct Places {
    static constexpr int kNoSinks = std::numeric_limits<int>::min();  // below every place
    int first, sinks, begin, end;
    __device__ __forceinline__ bool hold(int place) const {
        return place < end && (place >= begin || place < sinks);
    }
};

// kTileRows rows of one sequence and kv head, and the keys that they see. Filled in two steps,
// because a kernel issues other loads while it waits for the position.
struct Tile {
    int first, count;  // the sequence: rows [first, first + count) of the batch
    int row, rows;     // the tile: rows [row, row + rows) of count * group; rows <= 0: none
    int slot;          // of the first row in the partial results; the next row's is kv_heads on
    int keys;          // row t of the sequence has position keys - count + t
    KeyRange range;    // keys that any of the rows sees besides the sinks
    int begin, end;    // the parts it touches
    int ahead;         // parts with sinks only: [0, ahead), at most begin
    // With sinks or a stream, keys have other numbers than in their sequence (parts.h): those of
    // the window are `shift` less, and so is `keys`.
    int shift;
    int sinks, window;  // window 0: all earlier keys are seen
    int sinks_end;      // end of the sinks that any of the rows sees

    static __device__ int shorts(const Args& a) { return a.shorts; }
    __device__ bool of_sinks(int part) const { return part < ahead; }
    __device__ int token(const Args& a, int r) const { return (row + r) / a.group; }
    // The offset of row r's (token, head) in q and out, in elements.
    __device__ std::int64_t at(const Args& a, int r, int kv_head, int dim) const {
        const int t = token(a, r), g = (row + r) - t * a.group;
        return (static_cast<std::int64_t>(first + t) * a.heads + kv_head * a.group + g) * dim;
    }
    // The keys that row r sees besides the sinks.
    __device__ KeyRange sees(const Args& a, int r) const {
        const int position = keys - count + token(a, r);
        return {seen_from(window, sinks - shift, position),
                seen_to(a.mask, keys + shift, position + shift) - shift};
    }
    // The keys of a part that row r sees.
    __device__ KeyRange sees(const Args& a, int r, int part) const {
        const KeyRange own = sees(a, r);
        return part < ahead ? KeyRange{0, min(sinks, own.hi + shift)} : own;
    }
    // The second step, with the position of the sequence's last row. The bounds never decrease with
    // the row, so the first and the last row of the tile give the bounds of all. kViews: there may
    // be sinks and streams.
    template <bool kViews = true>
    __device__ void see(const Args& a, int last_position, int sequence) {
        shift = 0;
        sinks = kViews ? a.mask.sinks : 0;
        window = a.mask.window;
        bool viewed = sinks > 0;
        if (kViews && a.streams) {
            const int2 stream = a.streams[sequence];
            viewed = stream.y > 0;
            sinks = stream.x;
            window = viewed && (window == 0 || stream.y < window) ? stream.y : window;
        }
        keys = viewed ? last_position + 1 : min(last_position + 1, a.max_keys);
        if (viewed) {
            shift = view_shift(sinks, sees(a, 0).lo);
            keys -= shift;
        }
        range = {sees(a, 0).lo, sees(a, rows - 1).hi};
        const int shorts = kViews ? a.shorts : kShortParts;
        begin = part_of(range.lo, shorts);
        end = range.hi > range.lo ? part_of(range.hi - 1, shorts) + 1 : begin;
        sinks_end = min(sinks, range.hi + shift);
        ahead = parts_of(sinks_end, kAllShort);
    }
    // The end of the visible keys of a part.
    __device__ int part_end(const Args& a, int part) const {
        return min(part_begin(part + 1, a.shorts), part < ahead ? sinks_end : range.hi);
    }
    // The entry in table_of() of a key of the part; past the sinks, that of the last sink.
    __device__ int entry(const Args& a, int part, int key) const {
        const int page = key / kPageKeys;
        return part < ahead ? min(page, (sinks_end - 1) / kPageKeys)
                            : ops::table_entry(page + shift / kPageKeys, a.max_pages);
    }
    // In key order: part(0) ... part(parts() - 1).
    __device__ int parts() const { return ahead + end - begin; }
    __device__ int part(int i) const { return i < ahead ? i : begin + i - ahead; }
    __device__ Places places() const {
        const int first = max(0, begin / 4 * 4 - (ahead + 3) / 4 * 4);
        return {first, first + ahead, begin, end};
    }
    __device__ int place(int part) const { return part < begin ? places().first + part : part; }
};

// The same without sinks and streams: kernels that use it have no instruction for them, and the
// same bits. It overrides every function about them.
struct PlainTile : Tile {
    static constexpr int ahead = 0, sinks_end = 0;
    static __device__ int shorts(const Args&) { return kShortParts; }
    __device__ bool of_sinks(int) const { return false; }
    __device__ KeyRange sees(const Args& a, int r, int = 0) const {
        const int position = keys - count + token(a, r);
        return {seen_from(a.mask.window, 0, position), seen_to(a.mask, keys, position)};
    }
    __device__ void see(const Args& a, int last_position, int) {
        keys = min(last_position + 1, a.max_keys);
        range = {sees(a, 0).lo, sees(a, rows - 1).hi};
        begin = part_of(range.lo);
        end = range.hi > range.lo ? part_of(range.hi - 1) + 1 : begin;
    }
    __device__ int part_end(const Args&, int part) const {
        return min(part_begin(part + 1), range.hi);
    }
    __device__ int entry(const Args& a, int, int key) const {
        return ops::table_entry(key / kPageKeys, a.max_pages);
    }
    __device__ int parts() const { return end - begin; }
    __device__ int part(int i) const { return begin + i; }
    __device__ Places places() const { return {begin / 4 * 4, Places::kNoSinks, begin, end}; }
    __device__ int place(int part) const { return part; }
};
template <bool kViews>
using TileOf = std::conditional_t<kViews, Tile, PlainTile>;

template <typename TheTile = Tile>
__device__ __forceinline__ TheTile rows_at(const Args& a, int s, int tile, int kv_head) {
    TheTile t{};
    const int first_of_all = a.first[0];
    t.first = a.first[s];
    t.count = a.first[s + 1] - t.first;
    t.row = tile * kTileRows;
    t.rows = min(kTileRows, t.count * a.group - t.row);
    t.slot = ((t.first - first_of_all) * a.group + t.row) * a.kv_heads + kv_head;
    return t;
}
__device__ __forceinline__ int last_position(const Args& a, const Tile& t) {
    return a.positions[t.first + t.count - 1];
}

// The pages of the sinks, or of the other keys.
__device__ __forceinline__ const std::int32_t* table_of(const Args& a, int sequence, bool sinks) {
    if (sinks && a.fronts) return a.fronts + static_cast<std::int64_t>(sequence) * a.max_fronts;
    return a.pages + static_cast<std::int64_t>(sequence) * a.max_pages;
}
// The queries of a part's rows.
template <typename T>
__device__ __forceinline__ const T* asking(const Args& a, bool sinks) {
    return static_cast<const T*>(sinks && a.q_sinks ? a.q_sinks : a.q);
}

// The first element of key `key` in the cache, whose page is `page`.
template <typename T>
__device__ __forceinline__ const T* cache_at(const Args& a, const void* cache, int page,
                                             int kv_head, int key, int dim) {
    const std::int64_t row =
        (static_cast<std::int64_t>(page) * a.kv_heads + kv_head) * kPageKeys + key % kPageKeys;
    return static_cast<const T*>(cache) + row * dim;
}

}  // namespace mr::cuda::attn
