// Decode attention on tensor cores. A team of four warps takes one part of the keys of one
// sequence and kv head, for up to eight rows of q: keys and values go from memory straight into the
// registers that the matrix instructions read, 16 bytes per load and all of a step's in flight.
#pragma once

#include "ops/attention/paged/products.cuh"

namespace mr::cuda::attn {

// The work of a team: every count-th part of the keys, from the z-th on, of one kv head and of tile
// `tile` of the batch (a sequence and rows of it).
struct DecodePlace {
    int kv_head, tile, z, count;
};

// A team of kDecodeThreads computes its parts; the last of a tile's teams combines them. `keys` and
// `values` are the cache's and replace those of `a`. With a tagged link (one token; its q, key and
// value are in flight from other blocks) the team loads from the cache before it waits for them.
// kViews: there may be sinks and streams.
template <typename T, int D, bool kViews = true, typename Team, typename Link = MemoryLink>
__device__ __forceinline__ void decode_parts(const Args& a, const void* keys, const void* values,
                                             const DecodePlace& place, DecodeShared<D>& shared,
                                             Team team, const Link& link = {}) {
    static_assert(!Link::kTagged || (D <= 128 && !kViews), "step_view.cuh has views");
    // Whether the loads of the next step are in flight while this one is computed: only if the
    // registers can hold keys, values, sums and q at the same time.
    constexpr bool kAhead = D <= 128;
    const int warp = team.thread() / 32, lane = team.thread() % 32;
    const int g = lane / 4, c = lane % 4;
    const int kv_head = place.kv_head, z = place.z;
    const int s = place.tile / a.row_tiles;
    const std::int32_t* pages = a.pages + static_cast<std::int64_t>(s) * a.max_pages;

    // Loads that do not need the position are issued before it arrives: lane i < 4 has the page of
    // its warp's keys in step i of the part that this block will most likely take.
    const int shorts = kViews ? a.shorts : kShortParts;
    const auto page_key = [&](int part) {
        return part_begin(part, shorts) + kStepKeys * min(lane, 3) + kWarpKeys * warp;
    };
    Tile t = rows_at(a, s, place.tile % a.row_tiles, kv_head);
    const int early_page = pages[ops::table_entry(page_key(z) / kPageKeys, a.max_pages)];
    if (t.rows <= 0) return;
    const int position = last_position(a, t);
    std::uint32_t q[D / 8];
    if constexpr (Link::kTagged) {
        define(q);
    } else {
        load_row<T, D>(q, static_cast<const T*>(a.q) + t.at(a, min(g, t.rows - 1), kv_head, D), c,
                       g < t.rows);
    }
    t.see<kViews>(a, position, s);

    if (t.parts() == 0) {
        for (int i = 2 * team.thread(); i < t.rows * D && z == 0; i += 2 * kDecodeThreads) {
            link.template store<T>(a, t.at(a, i / D, kv_head, D) + i % D, {0, 0}, 0);
        }
        return;
    }
    KeyRange sees[2];  // rows 2 c and 2 c + 1
    const auto look = [&](const Tile& tile, int part) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            sees[e] = KeyRange{0, 0};
            if (2 * c + e >= tile.rows) continue;
            sees[e] = kViews ? tile.sees(a, 2 * c + e, part) : tile.sees(a, 2 * c + e);
        }
    };

    if (team.thread() == 0) shared.tile = t;

    // Long parts come first, so that no block starts one when the others end; parts of sinks come
    // last.
    const auto part_at = [&](const Tile& tile, int i) {
        const int sinks_from = tile.end - tile.begin;
        if (kViews && i >= sinks_from) return i - sinks_from;
        const int long_begin = max(tile.begin, shorts);
        const int long_parts = max(0, tile.end - long_begin);
        return i < long_parts ? long_begin + i : tile.begin + i - long_parts;
    };
    if (z >= t.parts()) return;
    // This warp's keys of the first step of a part begin at `from`, keys that may be read are in
    // [lo, hi), and lane i has the page of step i.
    struct Stretch {
        int part, from, lo, hi, newest, page;
    };
    const auto stretch_of = [&](const Tile& tile, int part, bool early) {
        const bool sinks = kViews && part < tile.ahead;
        Stretch out{part,
                    part_begin(part, shorts) + kWarpKeys * warp,
                    sinks ? 0 : tile.range.lo,
                    min(part_begin(part + 1, shorts), sinks ? tile.sinks_end : tile.range.hi),
                    kViews && !sinks ? position - tile.shift : position,
                    early_page};
        if (early) return out;
        if constexpr (kViews) {
            out.page = table_of(a, s, sinks)[tile.entry(a, part, page_key(part))];
        } else {
            out.page = pages[ops::table_entry(page_key(part) / kPageKeys, a.max_pages)];
        }
        return out;
    };
    int i = z;
    const int first = part_at(t, z), rows = t.rows;
    const bool sinks_first = kViews && first < t.ahead;
    Stretch here = stretch_of(t, first, first == z && shorts != kAllShort);
    look(t, first);
    // The sinks need another q. A team processes them last.
    const auto ask_sinks = [&](const Tile& tile) {
        load_row<T, D>(q, asking<T>(a, true) + tile.at(a, min(g, rows - 1), kv_head, D), c,
                       g < rows);
    };
    if (sinks_first) ask_sinks(t);

    std::uint32_t k[2][D / 8], v[4][D / 16];
    const auto load_keys = [&](const Stretch& of, int step) {
        const int key = of.from + step * kStepKeys;
        const T* at = cache_at<T>(a, keys, __shfl_sync(~0u, of.page, step), kv_head, key, D);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = key_of_row(g) + 2 * h;
            const bool on = KeyRange{of.lo, of.hi}.holds(key + row) &&
                            !(Link::kTagged && key + row == of.newest);
            load_row<T, D>(k[h], at + row * D, c, on);
        }
    };
    const auto load_values = [&](const Stretch& of, int step) {
        const int key = of.from + step * kStepKeys;
        const T* at = cache_at<T>(a, values, __shfl_sync(~0u, of.page, step), kv_head, key, D);
#pragma unroll
        for (int h = 0; h < 4; ++h) {
            const int row = 4 * c + h;
            const bool on = KeyRange{of.lo, of.hi}.holds(key + row) &&
                            !(Link::kTagged && key + row == of.newest);
            load_value<T, D>(v[h], at + row * D, g, on);
        }
    };
#pragma unroll 1
    while (true) {
        const int hi = here.hi, from = here.from;
        const int steps = hi > from ? (hi - from + kStepKeys - 1) / kStepKeys : 0;
        WarpSums<D> sums;
        sums.clear();
        // Called even without a step, where it reads nothing: registers that are not written on
        // every path count as live from the kernel's first instruction on.
        load_keys(here, 0);
        if constexpr (kAhead) load_values(here, 0);
        if constexpr (Link::kTagged) {
            if (i == z) {
                link.template receive<T, D>(a, t, kv_head, team);
                load_row<T, D, FromShared>(q, link.template q<T, D>(min(g, rows - 1)), c, g < rows);
            }
        }
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            if constexpr (Link::kTagged) {  // the newest key and value are not in the cache yet
                const int key = from + step * kStepKeys;
                if (here.newest >= key && here.newest < key + kWarpKeys) {
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        if (key + key_of_row(g) + 2 * h != here.newest) continue;
                        load_row<T, D, FromShared>(k[h], link.template key<T, D>(), c, true);
                    }
#pragma unroll
                    for (int h = 0; h < 4; ++h) {
                        if (key + 4 * c + h != here.newest) continue;
                        load_value<T, D, FromShared>(v[h], link.template value<T, D>(), g, true);
                    }
                }
            }
            const bool more = step + 1 < steps;
            const Scores scores = score<T, D>(k, q);
            if constexpr (kAhead) {
                if (more) load_keys(here, step + 1);
            } else {
                load_values(here, step);
            }

            const Weights weights = sums.template weigh<T>(
                scores, from + step * kStepKeys + key_of_row(g), sees, a.scale);
            sums.template add<T>(weights, v);
            if (more) {
                if constexpr (kAhead) {
                    load_values(here, step + 1);
                } else {
                    load_keys(here, step + 1);
                }
            }
        }

        sums.put(shared, warp, g, c, rows);
        team.sync();
        merge_warps<T>(a, kv_head, here.part, rows, shared, team, link);
        i += place.count;
        if (i >= shared.tile.parts()) break;
        const bool sinks = here.part < shared.tile.ahead;
        here = stretch_of(shared.tile, part_at(shared.tile, i), false);
        team.sync();  // the next part overwrites the shared sums
        if (kViews && !sinks && here.part < shared.tile.ahead) {
            look(shared.tile, here.part);
            ask_sinks(shared.tile);
        }
    }
    const Tile tile = shared.tile;
    if (tile.parts() <= 1) return;
    if constexpr (Link::kTagged) {
        if (z > 0) return;
        team.sync();
        combine<T>(a, tile, kv_head, D, shared.sums, team, link,
                   [&](std::int64_t slot) { return link.template parts<D>(slot); });
    } else {
        finish<T>(a, tile, kv_head, D, place.count, shared.sums, &shared.last, team);
    }
}

}  // namespace mr::cuda::attn
