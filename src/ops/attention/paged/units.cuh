// The work of many.cu: the list of the parts of the keys, the share of each warp, and the copies to
// shared memory.
#pragma once

#include "core/cuda/copy.cuh"
#include "ops/attention/paged/warp_part.cuh"

namespace mr::cuda::attn {

constexpr int kManyWarps = 8;
constexpr int kManyThreads = 32 * kManyWarps;
constexpr int kMostTiles = 256;
static_assert(kMostTiles == kManyThreads, "a thread looks at a tile");

// A part of the keys of one tile of rows and one head; all parts have one step.
struct Unit {
    int tile, head, part;
};

template <bool kViews>
struct UnitList {
    TileOf<kViews> tiles[kMostTiles];
    int before[kMostTiles + 1];  // units of the tiles before this one
    int warps[kManyWarps];
};

template <int D, int kStages>
struct ManyShape {
    static constexpr int kRowBytes = 2 * D;
    static constexpr int kChunks = D / 8;  // 16-byte chunks per row
    static constexpr int kStageBytes = kSubKeys * kRowBytes;
    static constexpr int kBytes = kManyWarps * kStages * kStageBytes;
};

// Makes the list of units, in every block. Returns their number.
template <typename T, int D, bool kViews>
__device__ __forceinline__ int list_units(const Args& a, int tiles, UnitList<kViews>& list) {
    const int tile = static_cast<int>(threadIdx.x), warp = tile / 32, lane = tile % 32;
    const TileOf<kViews> t = listed_tile<T, D, kViews>(a, tiles, tile);
    int sum = t.parts() * a.kv_heads;
    list.tiles[tile] = t;
#pragma unroll
    for (int near = 1; near < 32; near *= 2) {
        const int left = __shfl_up_sync(~0u, sum, near);
        if (lane >= near) sum += left;
    }
    if (lane == 31) list.warps[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warp; ++i) sum += list.warps[i];
    list.before[tile + 1] = sum;
    if (tile == 0) list.before[0] = 0;
    __syncthreads();
    return list.before[kMostTiles];
}

template <bool kViews>
__device__ __forceinline__ Unit unit_at(const UnitList<kViews>& list, int unit) {
    int lo = 0, hi = kMostTiles - 1;  // the last tile with before[tile] <= unit
    while (lo < hi) {
        const int middle = (lo + hi + 1) / 2;
        if (list.before[middle] <= unit) {
            lo = middle;
        } else {
            hi = middle - 1;
        }
    }
    const TileOf<kViews>& t = list.tiles[lo];
    const int parts = t.parts(), in = unit - list.before[lo];
    return {lo, in / parts, t.part(in % parts)};
}
// The next unit; this one must not be the last.
template <bool kViews>
__device__ __forceinline__ Unit unit_after(const UnitList<kViews>& list, const Args& a, Unit u) {
    const TileOf<kViews>& t = list.tiles[u.tile];
    ++u.part;
    if (kViews && u.part == t.ahead) u.part = t.begin;  // after the sinks
    if (u.part < t.end) return u;
    if (++u.head == a.kv_heads) {
        u.head = 0;
        do {
            ++u.tile;
        } while (u.tile < kMostTiles - 1 && list.tiles[u.tile].parts() == 0);
    }
    u.part = list.tiles[u.tile].part(0);
    return u;
}

// The copies of a warp: all stages of its units, first the keys of a part, then its values.
template <typename T, int D, int kStages, bool kViews>
struct KeyStream {
    using S = ManyShape<D, kStages>;
    Unit unit, next;
    int left;                                // units left, this one included
    int page, page2, next_page, next_page2;  // pages of the first and the last 32 keys
    int stage, subs;        // of this unit: stages [0, subs) are keys, [subs, 2 subs) values
    int from, lo, hi;       // its keys: the first one, and the visible ones [lo, hi)
    unsigned ring, to = 0;  // this warp's ring buffer, and the offset in it

    __device__ __forceinline__ void look_ahead(const Args& a, const UnitList<kViews>& list) {
        const TileOf<kViews>& t = list.tiles[next.tile];
        const std::int32_t* table = table_of(a, next.tile / a.row_tiles, t.of_sinks(next.part));
        const int key = next.part * kStepKeys;
        next_page = table[t.entry(a, next.part, key)];
        next_page2 = table[t.entry(a, next.part, key + kPageKeys)];
    }
    __device__ __forceinline__ void enter(const Args& a, const UnitList<kViews>& list) {
        unit = next;
        page = next_page, page2 = next_page2;
        const TileOf<kViews>& t = list.tiles[unit.tile];
        from = unit.part * kStepKeys;
        lo = t.of_sinks(unit.part) ? 0 : t.range.lo;
        hi = t.part_end(a, unit.part);
        subs = (hi - from + kSubKeys - 1) / kSubKeys;
        stage = 0;
        if (left > 1) {
            next = unit_after(list, a, unit);
            look_ahead(a, list);
        }
    }
    __device__ __forceinline__ void begin(const Args& a, const UnitList<kViews>& list, Unit first,
                                          int units) {
        next = first;
        left = units;
        look_ahead(a, list);
        enter(a, list);
    }
    // Copies the next stage, or nothing at the end. Always commits a group of copies.
    __device__ __forceinline__ void fetch(const Args& a, const UnitList<kViews>& list, int lane) {
        if (left > 0) {
            const bool value = stage >= subs;
            const int sub = value ? stage - subs : stage;
            const int key = from + sub * kSubKeys;
            const T* at = cache_at<T>(a, value ? a.values : a.keys, sub < 2 ? page : page2,
                                      unit.head, key, D);
            const int here = computed_here(lane);  // keeps no addresses of rows in registers
            const int row0 = here / S::kChunks, chunk = here % S::kChunks;
            constexpr int kRows = 32 / S::kChunks;  // rows per copy of the warp's 32 chunks
            at += row0 * D + chunk * 8;
            // swizzled_chunk(), inlined by hand: with the call nvcc 13.0 orders this loop
            // differently, and the speed of that was not measured.
            const auto place = [&](int row) {
                const int swizzled =
                    value ? chunk ^ ((row & 1) | (row >> 2 & 3) << 1) : chunk ^ (row & 1) << 2;
                return ring + to + row * S::kRowBytes + swizzled * 16;
            };
            if (key >= lo && key + kSubKeys <= hi) {
#pragma unroll
                for (int j = 0; j < kSubKeys; j += kRows) copy16(place(row0 + j), at + j * D);
            } else {
#pragma unroll 1
                for (int j = 0; j < kSubKeys; j += kRows) {
                    const int row = row0 + j;
                    copy16(place(row), at + j * D, KeyRange{lo, hi}.holds(key + row));
                }
            }
            to = to + S::kStageBytes == kStages * S::kStageBytes ? 0 : to + S::kStageBytes;
            if (++stage == 2 * subs && --left > 0) enter(a, list);
        }
        commit_copies();
    }
};

}  // namespace mr::cuda::attn
