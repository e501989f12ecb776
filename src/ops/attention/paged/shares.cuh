// The work of stream.cu: the list of the parts of the keys, the share of each team, and the copies
// to shared memory.
#pragma once

#include "core/cuda/bulk.cuh"
#include "ops/attention/paged/deal.h"
#include "ops/attention/paged/lanes.cuh"

namespace mr::cuda::attn {

constexpr int kMostSharedTiles = 256;
constexpr int kLongSteps = kLongPart / kStepKeys;
static_assert(kLongSteps == Deal::kLongSteps);

// All parts of all tiles and heads. Costs are counted in steps of 64 keys. First come the long
// parts of all tiles, then the short ones: a team with fewer long parts gets more short ones.
template <bool kViews>
struct ShareList {
    TileOf<kViews> tiles[kMostSharedTiles];
    int before[2 * kMostSharedTiles + 1];  // steps of the sections before this one
    int sums[2][kMostSharedTiles / 32];
    int count;       // tiles; section i is the long parts of tile i, i + count its short ones
    int all_shorts;  // argument of parts_of() if kViews

    __device__ __forceinline__ int shorts() const { return kViews ? all_shorts : kShortParts; }

    __device__ __forceinline__ bool is_long(int section) const { return section < count; }
    __device__ __forceinline__ int tile(int section) const {
        return is_long(section) ? section : section - count;
    }
    __device__ __forceinline__ int steps() const { return before[2 * count]; }
    __device__ __forceinline__ int long_steps() const { return before[count]; }
};

// The steps of one head in a section: [0, sinks) and [first, last). Parts begin at multiples of a
// step, and a long part counts as whole; parts of sinks are short ones.
template <bool kViews>
struct Section {
    int sinks, first, last;
    __device__ __forceinline__ int count() const { return sinks + last - first; }
    __device__ __forceinline__ int at(int i) const {
        return kViews && i < sinks ? i : first + i - sinks;
    }
};
template <bool kViews>
__device__ __forceinline__ Section<kViews> section_of(const TileOf<kViews>& t, bool is_long,
                                                      int shorts) {
    if (t.begin >= t.end) {  // only sinks, or nothing
        const int sinks = is_long ? 0 : t.ahead;
        return {sinks, sinks, sinks};
    }
    const int first = part_begin(t.begin, shorts) / kStepKeys;
    const int last = part_begin(t.end, shorts) / kStepKeys;
    if (is_long) return {0, max(first, shorts), max(last, shorts)};
    return {t.ahead, min(first, shorts), min((t.range.hi + kStepKeys - 1) / kStepKeys, shorts)};
}
template <bool kViews>
__device__ __forceinline__ Section<kViews> section_of(const ShareList<kViews>& list, int section) {
    return section_of<kViews>(list.tiles[list.tile(section)], list.is_long(section), list.shorts());
}

// Prefetches the positions and the page tables together, because later loads need one after the
// other: every thread takes a cache line of the page tables, and positions as if every sequence had
// one row.
__device__ __forceinline__ void bring_near(const Args& a, int tiles) {
    const int sequences = tiles / a.row_tiles, i = 32 * static_cast<int>(threadIdx.x);
    const auto bring = [](const std::int32_t* at) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
    };
    if (i < sequences) bring(a.positions + i);
    if (i < std::int64_t{sequences} * a.max_pages) bring(a.pages + i);
}

// Every block makes its own list, with at least kMostSharedTiles threads.
template <typename T, int D, bool kViews>
__device__ __forceinline__ void list_sections(const Args& a, int tiles, ShareList<kViews>& list) {
    const int tile = static_cast<int>(threadIdx.x), warp = tile / 32, lane = tile % 32;
    int sums[2] = {0, 0};  // up to this tile: long, short
    if (tile < kMostSharedTiles) {
        const TileOf<kViews> t = listed_tile<T, D, kViews>(a, tiles, tile);
        list.tiles[tile] = t;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const Section<kViews> s = section_of<kViews>(t, i == 0, t.shorts(a));
            sums[i] = s.count() * a.kv_heads;
#pragma unroll
            for (int near = 1; near < 32; near *= 2) {
                const int left = __shfl_up_sync(~0u, sums[i], near);
                if (lane >= near) sums[i] += left;
            }
            if (lane == 31) list.sums[i][warp] = sums[i];
        }
    }
    __syncthreads();
    if (tile < tiles) {
        int long_ones = 0;
        for (int i = 0; i < kMostSharedTiles / 32; ++i) {
            const int l = list.sums[0][i];
            long_ones += l;
            if (i >= warp) continue;
            sums[0] += l;
            sums[1] += list.sums[1][i];
        }
        list.before[tile + 1] = sums[0];
        list.before[tiles + tile + 1] = long_ones + sums[1];
        if (tile == 0) {
            list.before[0] = 0;
            list.count = tiles;
            if (kViews) list.all_shorts = a.shorts;
        }
    }
    __syncthreads();
}

// A stretch of the list.
struct Stretch {
    int begin, end;
};
// The share of team `team` of `teams`: a stretch of the long parts, and one of the short ones.
struct Share {
    Stretch stretch[2];
};
template <bool kViews>
__device__ __forceinline__ Share share_of(const ShareList<kViews>& list, int team, int teams,
                                          int lane) {
    const Deal deal(list.long_steps(), list.steps(), teams);
    Share share;
    int bounds[2][2];
#pragma unroll
    for (int end = 0; end < 2; ++end) {
        const int t = team + end;
        bounds[0][end] = deal.longs_before(t) * kLongSteps;
        int before;
        if (deal.few()) {
            before = deal.few_before(t);
        } else {
            before = deal.missing(t - min(lane, min(deal.back, t)));
#pragma unroll
            for (int far = 1; far < 32; far *= 2) {
                before = max(before, __shfl_xor_sync(~0u, before, far));
            }
        }
        bounds[1][end] = list.long_steps() + min(before, deal.shorts);
    }
    share.stretch[0] = {bounds[0][0], bounds[0][1]};
    share.stretch[1] = {bounds[1][0], bounds[1][1]};
    return share;
}

// A position in a team's share.
template <bool kViews>
struct Walk {
    int section, head, step;  // the step is relative to the head's first key
    int left, which;          // steps left of stretch `which`; 0: the share is done

    __device__ __forceinline__ void place(const ShareList<kViews>& list, int at) {
        int lo = 0, hi = 2 * list.count - 1;  // the last section with before[section] <= at
        while (lo < hi) {
            const int middle = (lo + hi + 1) / 2;
            if (list.before[middle] <= at) {
                lo = middle;
            } else {
                hi = middle - 1;
            }
        }
        section = lo;
        const Section<kViews> s = section_of(list, lo);
        const int each = s.count(), in = at - list.before[lo];
        head = in / each;
        step = s.at(in - head * each);
    }
    __device__ __forceinline__ void begin(const ShareList<kViews>& list, const Share& share) {
        which = -1;
        left = 0;
        next_stretch(list, share);
    }
    // Moves to the next stretch.
    __device__ __forceinline__ void next_stretch(const ShareList<kViews>& list,
                                                 const Share& share) {
        while (left == 0 && ++which < 2) {
            left = share.stretch[which].end - share.stretch[which].begin;
            if (left > 0) place(list, share.stretch[which].begin);
        }
    }
    // Advances by `steps`, at most to the end of the sinks or of the head's section.
    __device__ __forceinline__ void advance(const ShareList<kViews>& list, const Share& share,
                                            int kv_heads, int steps) {
        step += steps;
        left -= steps;
        if (left == 0) return next_stretch(list, share);
        const Section<kViews> s = section_of(list, section);
        if (kViews && step == s.sinks)
            step = s.first;  // after the sinks; without sinks it is never 0
        if (step < s.last) return;
        if (++head == kv_heads) {
            head = 0;
            const int at = list.before[section + 1];
            while (list.before[++section + 1] == at) {
            }
        }
        step = section_of(list, section).at(0);
    }
};

// The swizzle of a stage: the position of 16-byte chunk `chunk` of a row. Lanes that read keys or
// values at the same time, as the products need them, use different banks.
__device__ __forceinline__ int swizzled(int row, int chunk) {
    return chunk ^ (row & 1) << 2 ^ (row >> 2 & 3) << 1;
}

// copy16() for data that is read once, so that the partial results stay in L2.
__device__ __forceinline__ void copy16_once(unsigned to, const void* from, bool on,
                                            std::uint64_t policy) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to),
        "l"(from), "r"(on ? 16 : 0), "l"(policy)
        : "memory");
#else
    copy16(to, from, on);
#endif
}

// The copies of a warp: its 16 keys of a step, then their values, for all steps of its team's
// share. A stage holds keys or values.
template <typename T, int D, int kStages, bool kViews>
struct TeamStream {
    static constexpr int kRowBytes = 2 * D;
    static constexpr int kChunks = D / 8;  // 16-byte chunks per row
    static constexpr int kStageBytes = kWarpKeys * kRowBytes;
    static constexpr int kBytes = kStages * kStageBytes;

    Walk<kViews> next;    // after the run: up to 32 neighbouring steps of one tile and head
    int page, next_page;  // lane i has the page of the run's i-th step, and of the next run's
    int tile, head, step, first, stop;  // of the run; it is done when step == stop
    int lo, hi;                         // existing keys of the tile
    bool value;
    unsigned ring, to = 0;  // this warp's ring buffer, and the offset in it
    std::uint64_t policy;   // L2 eviction policy

    // Loads the pages of the next run while this one is copied.
    __device__ __forceinline__ void look_ahead(const Args& a, const ShareList<kViews>& list,
                                               int warp, int lane) {
        const int at = list.tile(next.section);
        const TileOf<kViews>& t = list.tiles[at];
        // A run is all sinks or none, and the first parts are short: the step tells which.
        const std::int32_t* table = table_of(a, at / a.row_tiles, t.of_sinks(next.step));
        const int key = (next.step + lane) * kStepKeys + kWarpKeys * warp;
        next_page = table[t.entry(a, next.step, key)];
    }
    __device__ __forceinline__ void enter(const Args& a, const ShareList<kViews>& list,
                                          const Share& share, int warp, int lane) {
        page = next_page;
        tile = list.tile(next.section);
        head = next.head;
        step = first = next.step;
        const Section<kViews> section = section_of(list, next.section);
        const bool sinks = kViews && step < section.sinks;
        lo = sinks ? 0 : list.tiles[tile].range.lo;
        hi = sinks ? list.tiles[tile].sinks_end : list.tiles[tile].range.hi;
        const int steps = min(min(next.left, 32), (sinks ? section.sinks : section.last) - step);
        stop = step + steps;
        next.advance(list, share, a.kv_heads, steps);
        if (next.left > 0) look_ahead(a, list, warp, lane);
    }
    // Moves to a step in which this warp has a key: the last step of a head may have none.
    __device__ __forceinline__ void settle(const Args& a, const ShareList<kViews>& list,
                                           const Share& share, int warp, int lane) {
        while (true) {
            if (step == stop) {
                if (next.left == 0) return;
                enter(a, list, share, warp, lane);
            } else if (step * kStepKeys + kWarpKeys * warp >= hi) {
                ++step;
            } else {
                return;
            }
        }
    }
    __device__ __forceinline__ void begin(const Args& a, const ShareList<kViews>& list,
                                          const Share& share, const Walk<kViews>& from, int warp,
                                          int lane) {
        next = from;
        value = false;
        step = stop = 0;
        policy = read_once_policy();
        look_ahead(a, list, warp, lane);
        settle(a, list, share, warp, lane);
    }
    // Copies the next stage, or nothing at the end. Always commits a group of copies.
    __device__ __forceinline__ void fetch(const Args& a, const ShareList<kViews>& list,
                                          const Share& share, int warp, int lane) {
        if (step < stop) {
            const int key = step * kStepKeys + kWarpKeys * warp;
            const T* at = cache_at<T>(a, value ? a.values : a.keys,
                                      __shfl_sync(~0u, page, step - first), head, key, D);
            const int here = computed_here(lane);  // keeps no addresses of rows in registers
            const int row0 = here / kChunks, chunk = here % kChunks;
            constexpr int kRows = 32 / kChunks;  // rows per copy of the warp's 32 chunks
            at += row0 * D + chunk * 8;
            const auto copy = [&](int row, const T* from, bool on) {
                const unsigned place = ring + to + row * kRowBytes + swizzled(row, chunk) * 16;
                copy16_once(place, from, on, policy);
            };
            if (key >= lo && key + kWarpKeys <= hi) {
#pragma unroll
                for (int j = 0; j < kWarpKeys; j += kRows) copy(row0 + j, at + j * D, true);
            } else {
#pragma unroll 1
                for (int j = 0; j < kWarpKeys; j += kRows) {
                    const int row = row0 + j;
                    copy(row, at + j * D, KeyRange{lo, hi}.holds(key + row));
                }
            }
            to = to + kStageBytes == kBytes ? 0 : to + kStageBytes;
            step += value;
            value = !value;
            if (!value) settle(a, list, share, warp, lane);
        }
        commit_copies();
    }
};

}  // namespace mr::cuda::attn
