// Decode attention on tensor cores. A team of four warps takes one part of the keys of one
// sequence and kv head, for up to eight rows of q: keys and values go from memory straight into the
// registers that the matrix instructions read, 16 bytes a load and all of a step's in flight.
//
// Eight rows are the N of m16n8k16, so everything is transposed:
//   scoresᵀ [16 keys, 8 rows] = K [16 keys, head_dim] · Qᵀ        (A = keys, as they lie in memory)
//   outᵀ    [head_dim, 8 rows] = Vᵀ [head_dim, 16 keys] · weightsᵀ
// The order of head_dim inside a product is free as long as both sides agree, and so is the order
// of the keys: both are chosen such that a lane's 16 bytes of a key, or of a value, are what it
// needs.
#pragma once

#include "ops/attention/attention_common.cuh"
#include "ops/attention/attention_mma.cuh"

namespace mr::cuda::attn {

constexpr int kDecodeWarps = kDecodeThreads / 32;
constexpr int kWarpKeys = kStepKeys / kDecodeWarps;  // 16: the K of the second product
static_assert(kWarpKeys == 16);

// How a lane reads a row: from memory, or from what its team has put into shared memory.
struct FromMemory {
    template <int kWords>
    static __device__ __forceinline__ void words(std::uint32_t* to, const void* from, bool on) {
        load_words<kWords>(to, from, on);
    }
};
struct FromShared {
    template <int kWords>
    static __device__ __forceinline__ void words(std::uint32_t* to, const void* from, bool on) {
        if (!on) {
#pragma unroll
            for (int i = 0; i < kWords; ++i) to[i] = 0;
        } else {
            using Vector = std::conditional_t<kWords == 4, uint4,
                                              std::conditional_t<kWords == 2, uint2, uint1>>;
            const Vector v = *static_cast<const Vector*>(from);
            memcpy(to, &v, sizeof v);
        }
    }
};

// What lane 4 g + c holds of one row along head_dim for the first product: 16 bytes from every 32
// elements (two k16 steps), 8 bytes from a last 16. Words 2 i and 2 i + 1 belong to k16 step i.
template <typename T, int D, typename From = FromMemory>
__device__ __forceinline__ void load_row(std::uint32_t (&words)[D / 8], const T* row, int c,
                                         bool on) {
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
        From::template words<4>(words + 4 * i, row + 32 * i + 8 * c, on);
    }
    if constexpr (D % 32 != 0) {
        From::template words<2>(words + D / 32 * 4, row + D / 32 * 32 + 4 * c, on);
    }
}

// What lane 4 g + c holds of one value for the second product: word w has two neighbours of
// head_dim, beginning at value_column(w, g), which are rows g and g + 8 of m16 tile w.
template <typename T, int D, typename From = FromMemory>
__device__ __forceinline__ void load_value(std::uint32_t (&words)[D / 16], const T* row, int g,
                                           bool on) {
#pragma unroll
    for (int i = 0; i < D / 64; ++i) {
        From::template words<4>(words + 4 * i, row + 64 * i + 8 * g, on);
    }
    constexpr int kRest = D / 64 * 64;
    if constexpr (D % 64 >= 32) {
        From::template words<2>(words + kRest / 16, row + kRest + 4 * g, on);
    }
    if constexpr (D % 32 != 0) {
        From::template words<1>(words + D / 32 * 2, row + D / 32 * 32 + 2 * g, on);
    }
}
template <int D>
__device__ __forceinline__ int value_column(int w, int g) {
    const int d = 16 * w;
    if (d < D / 64 * 64) return d / 64 * 64 + 8 * g + 2 * (w % 4);
    if (d < D / 32 * 32) return d / 32 * 32 + 4 * g + 2 * (w % 2);
    return d + 2 * g;
}

// What a team works in, of shared memory.
template <int D>
struct DecodeShared {
    static constexpr int kStride = D + 2;  // floats: lanes of different rows meet in few banks
    alignas(16) float sums[kDecodeWarps * kTileRows * kStride];
    float2 tops[kDecodeWarps][kTileRows];
    Tile tile;  // what is needed again only when a part is done
    bool last;
};

// Which part of the work a team takes: of the kv head and of tile `tile` of the batch (sequence and
// rows of it) every count-th part of the keys, from the z-th on.
struct DecodePlace {
    int kv_head, tile, z, count;
};

// A team of kDecodeThreads takes its parts; whoever is the last of a tile's teams puts the parts
// together. `keys` and `values` are the cache's, instead of those of `a`.
// A tagged link (one token, whose q, key and value are on their way from other blocks): everything
// that is in the cache already is asked for before they have come.
template <typename T, int D, typename Team, typename Link = MemoryLink>
__device__ __forceinline__ void decode_parts(const Args& a, const void* keys, const void* values,
                                             const DecodePlace& place, DecodeShared<D>& shared,
                                             Team team, const Link& link = {}) {
    static_assert(!Link::kTagged || D <= 128);
    // The loads of the next step are under way while this one is computed, where the registers hold
    // keys, values, sums and q at the same time.
    constexpr bool kAhead = D <= 128;
    constexpr int kStride = DecodeShared<D>::kStride;
    const int warp = team.thread() / 32, lane = team.thread() % 32;
    const int g = lane / 4, c = lane % 4;
    const int kv_head = place.kv_head, z = place.z;
    const int s = place.tile / a.row_tiles;
    const std::int32_t* pages = a.pages + static_cast<std::int64_t>(s) * a.max_pages;

    // Everything that does not wait for the position is asked for before it: lane i < 4 has the
    // page of its warp's keys in step i of the part that this block will most likely take.
    const auto page_index = [&](int part) {
        return (part_begin(part) + kStepKeys * min(lane, 3) + kWarpKeys * warp) / kPageKeys;
    };
    Tile t = rows_at(a, s, place.tile % a.row_tiles, kv_head);
    const int early_page = pages[min(page_index(z), a.max_pages - 1)];
    if (t.rows <= 0) return;
    const int position = last_position(a, t);
    std::uint32_t q[D / 8];
    if constexpr (Link::kTagged) {
        define(q);
    } else {
        load_row<T, D>(q, static_cast<const T*>(a.q) + t.at(a, min(g, t.rows - 1), kv_head, D), c,
                       g < t.rows);
    }
    t.see(a, position);

    if (t.begin == t.end) {
        for (int i = 2 * team.thread(); i < t.rows * D && z == 0; i += 2 * kDecodeThreads) {
            link.template store<T>(a, t.at(a, i / D, kv_head, D) + i % D, {0, 0}, 0);
        }
        return;
    }
    KeyRange sees[2];  // rows 2 c and 2 c + 1
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        sees[e] = 2 * c + e < t.rows ? t.sees(a, 2 * c + e) : KeyRange{0, 0};
    }

    const int key_of_row = 4 * (g / 2) + g % 2;

    if (team.thread() == 0) shared.tile = t;

    // Long parts first, so that no block begins one when the others end; the sinks' last.
    const auto part_at = [](const Tile& tile, int i) {
        const int sinks_from = tile.end - tile.begin;
        if (i >= sinks_from) return i - sinks_from;
        const int long_begin = max(tile.begin, kShortParts);
        const int long_parts = max(0, tile.end - long_begin);
        return i < long_parts ? long_begin + i : tile.begin + i - long_parts;
    };
    if (z >= t.parts()) return;
    int i = z, part = part_at(t, z);
    const KeyRange range = t.range;
    const int rows = t.rows;
#pragma unroll 1
    while (true) {
        const int from = part_begin(part) + kWarpKeys * warp;  // this warp's keys of the first step
        const int hi = part_end(a, range, part);
        const int steps = hi > from ? (hi - from + kStepKeys - 1) / kStepKeys : 0;
        int page = early_page;
        if (i != z || part != z) {
            page = lane < steps ? pages[page_index(part)] : 0;
        }

        std::uint32_t k[2][D / 8], v[4][D / 16];
        // Row m of the first product's A is key 4 (m / 2 % 4) + 2 (m / 8) + m % 2, so that the
        // keys whose weights a lane gets, 2 c, 2 c + 1, 2 c + 8 and 2 c + 9, are neighbours.
        const auto may_load = [&](int key) {
            return KeyRange{range.lo, hi}.holds(key, a.mask.sinks) &&
                   !(Link::kTagged && key == position);
        };
        const auto load_keys = [&](int step) {
            const int key = from + step * kStepKeys;
            const T* at = cache_at<T>(a, keys, __shfl_sync(~0u, page, step), kv_head, key, D);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = key_of_row + 2 * h;
                load_row<T, D>(k[h], at + row * D, c, may_load(key + row));
            }
        };
        const auto load_values = [&](int step) {
            const int key = from + step * kStepKeys;
            const T* at = cache_at<T>(a, values, __shfl_sync(~0u, page, step), kv_head, key, D);
#pragma unroll
            for (int h = 0; h < 4; ++h) {
                const int row = 4 * c + h;
                load_value<T, D>(v[h], at + row * D, g, may_load(key + row));
            }
        };

        float out[D / 16][4];
#pragma unroll
        for (int w = 0; w < D / 16; ++w) {
#pragma unroll
            for (int e = 0; e < 4; ++e) out[w][e] = 0;
        }
        float top[2] = {-INFINITY, -INFINITY}, weight[2] = {0, 0};
        // Also where there are no steps, and then nothing is read: registers that are not written
        // on every path count as in use from the kernel's first instruction on.
        load_keys(0);
        if constexpr (kAhead) load_values(0);
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
                if (position >= key && position < key + kWarpKeys) {
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        if (key + key_of_row + 2 * h != position) continue;
                        load_row<T, D, FromShared>(k[h], link.template key<T, D>(), c, true);
                    }
#pragma unroll
                    for (int h = 0; h < 4; ++h) {
                        if (key + 4 * c + h != position) continue;
                        load_value<T, D, FromShared>(v[h], link.template value<T, D>(), g, true);
                    }
                }
            }
            float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};  // two chains: half the latency
#pragma unroll
            for (int i16 = 0; i16 < D / 16; ++i16) {
                mma<T>(i16 % 2 ? odd : even, k[0][2 * i16], k[1][2 * i16], k[0][2 * i16 + 1],
                       k[1][2 * i16 + 1], q[2 * i16], q[2 * i16 + 1]);
            }
            if constexpr (kAhead) {
                if (step + 1 < steps) load_keys(step + 1);
            } else {
                load_values(step);
            }

            // Weights; lane 4 g + c has rows 2 c and 2 c + 1 of key_of_row and the key two further.
            const int key = from + step * kStepKeys + key_of_row;
            float p[4], factor[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const bool on0 = sees[e].holds(key, a.mask.sinks);
                const bool on1 = sees[e].holds(key + 2, a.mask.sinks);
                const float s0 = on0 ? (even[e] + odd[e]) * a.scale : -INFINITY;
                const float s1 = on1 ? (even[2 + e] + odd[2 + e]) * a.scale : -INFINITY;
                float most = fmaxf(s0, s1);
#pragma unroll
                for (int far = 4; far < 32; far *= 2) {
                    most = fmaxf(most, __shfl_xor_sync(~0u, most, far));
                }
                most = fmaxf(most, top[e]);
                const float base = base_of(most);
                factor[e] = exp2_fast(top[e] - base);
                top[e] = most;
                p[e] = exp2_fast(s0 - base);
                p[2 + e] = exp2_fast(s1 - base);
            }
            const std::uint32_t low = pack<T>(p[0], p[1]), high = pack<T>(p[2], p[3]);
            // The sum is of the weights as they are used, rounded.
            const float2 low2 = unpack<T>(low), high2 = unpack<T>(high);
            float sum[2] = {low2.x + high2.x, low2.y + high2.y};
#pragma unroll
            for (int e = 0; e < 2; ++e) {
#pragma unroll
                for (int far = 4; far < 32; far *= 2) {
                    sum[e] += __shfl_xor_sync(~0u, sum[e], far);
                }
                weight[e] = fmaf(weight[e], factor[e], sum[e]);
            }
            const std::uint32_t b0 = transpose(low), b1 = transpose(high);
#pragma unroll
            for (int w = 0; w < D / 16; ++w) {
                out[w][0] *= factor[0];
                out[w][1] *= factor[1];
                out[w][2] *= factor[0];
                out[w][3] *= factor[1];
                mma<T>(out[w], __byte_perm(v[0][w], v[1][w], 0x5410),
                       __byte_perm(v[0][w], v[1][w], 0x7632), __byte_perm(v[2][w], v[3][w], 0x5410),
                       __byte_perm(v[2][w], v[3][w], 0x7632), b0, b1);
            }
            if (step + 1 < steps) {
                if constexpr (kAhead) {
                    load_values(step + 1);
                } else {
                    load_keys(step + 1);
                }
            }
        }

        // The warps' sums, each for the keys it had, become the block's.
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int row = 2 * c + e;
            if (row >= rows) continue;
            float* to = shared.sums + (warp * kTileRows + row) * kStride;
#pragma unroll
            for (int w = 0; w < D / 16; ++w) {
                *reinterpret_cast<float2*>(to + value_column<D>(w, g)) = {out[w][e], out[w][2 + e]};
            }
            if (g == 0) shared.tops[warp][row] = {top[e], weight[e]};
        }
        team.sync();
        const Tile& tile = shared.tile;
        const int parts = tile.parts();
        for (int index = 2 * team.thread(); index < rows * D; index += 2 * kDecodeThreads) {
            const int row = index / D, d = index % D;
            float most = -INFINITY;
#pragma unroll
            for (int w = 0; w < kDecodeWarps; ++w) most = fmaxf(most, shared.tops[w][row].x);
            const float base = base_of(most);
            float2 value{0, 0};
            float total = 0;
#pragma unroll
            for (int w = 0; w < kDecodeWarps; ++w) {
                const float factor = exp2_fast(shared.tops[w][row].x - base);
                total = fmaf(factor, shared.tops[w][row].y, total);
                const float2 sum = *reinterpret_cast<const float2*>(
                    shared.sums + (w * kTileRows + row) * kStride + d);
                value.x = fmaf(factor, sum.x, value.x);
                value.y = fmaf(factor, sum.y, value.y);
            }
            if (parts == 1) {
                link.template store<T>(a, tile.at(a, row, kv_head, D) + d, value, total);
                continue;
            }
            const std::int64_t slot = tile.slot + static_cast<std::int64_t>(row) * a.kv_heads;
            if constexpr (Link::kTagged) {
                link.template send_part<D>(slot, tile.place(part), d, value, {most, total});
            } else {
                const std::int64_t at = slot * a.max_parts + tile.place(part);
                *reinterpret_cast<float2*>(a.sums + at * D + d) = value;
                if (d == 0) a.tops[at] = {most, total};
            }
        }
        i += place.count;
        if (i >= parts) break;
        part = part_at(tile, i);
        team.sync();  // the next part writes the shared sums again
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
