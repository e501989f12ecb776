// Attention of one token over many keys in a step: a warp has a part of 64 keys to itself, and all
// loads of a part are in flight at once. A team of four warps with 16 keys each (decode.cuh) waits
// for memory once a part; that suits few parts, where every team has one.
//
// The sums are those of decode.cuh, in the same order (as in many.cu).
#pragma once

#include "ops/attention/paged/products.cuh"
#include "ops/step/step_link.cuh"

namespace mr::cuda::step {

// Whether registers hold the keys of a part, and of its values those that are loaded with them.
constexpr bool kAlone(int head_dim) { return head_dim <= 80; }

// The words of row g of q, or of a row that is the same for all lanes, as load_row() orders them.
template <int D>
__device__ __forceinline__ void receive_row(std::uint32_t (&to)[D / 8], const Word* row, int c,
                                            bool on, unsigned tag) {
    uint4 v[D / 16];
    receive(v, tag, [&](int i) -> const Word* {
        if (!on) return nullptr;
        const int d = i < D / 32 * 2 ? i / 2 * 32 + 8 * c + i % 2 * 4 : D / 32 * 32 + 4 * c;
        return row + d / 2;
    });
#pragma unroll
    for (int i = 0; i < D / 16; ++i) to[2 * i] = v[i].x, to[2 * i + 1] = v[i].z;
}
// The words of a value, as load_value() orders them.
template <int D>
__device__ __forceinline__ void receive_value(std::uint32_t (&to)[D / 16], const Word* row, int g,
                                              unsigned tag) {
#pragma unroll
    for (int w = 0; w < D / 16; ++w) {
        to[w] = receive_one(row + attn::value_column<D>(w, g) / 2, tag);
    }
}

// Part `i` of the parts of a tile (Tile::part()), by one warp.
template <typename T, int D>
__device__ __forceinline__ void attend_part(const attn::Args& a, const void* keys,
                                            const void* values, const attn::Tile& t, int sequence,
                                            int position, int kv_head, int i,
                                            const TaggedLink& link) {
    using namespace attn;
    constexpr int kSubs = kStepKeys / kWarpKeys, kFirstValues = 1;
    const int lane = thread_here() % 32, g = lane / 4, c = lane % 4;
    const int part = t.part(i), from = part * kStepKeys, hi = t.part_end(a, part);
    const bool sinks = part < t.ahead;
    const int lo = sinks ? 0 : t.range.lo, newest = sinks ? position : position - t.shift;
    const int pages =
        table_of(a, sequence, sinks)[t.entry(a, part, from + kPageKeys * (lane & 1))];

    std::uint32_t k[kSubs][2][D / 8], v[kSubs][4][D / 16];
    const auto may_load = [&](int key) { return key >= lo && key < hi && key != newest; };
    const auto load_values = [&](int sub) {
        const int key = from + kWarpKeys * sub;
        const T* at = cache_at<T>(a, values, __shfl_sync(~0u, pages, sub / 2), kv_head, key, D);
#pragma unroll
        for (int h = 0; h < 4; ++h) {
            const int row = 4 * c + h;
            load_value<T, D>(v[sub][h], at + row * D, g, may_load(key + row));
        }
    };
#pragma unroll
    for (int sub = 0; sub < kSubs; ++sub) {
        const int key = from + kWarpKeys * sub;
        const T* at = cache_at<T>(a, keys, __shfl_sync(~0u, pages, sub / 2), kv_head, key, D);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = key_of_row(g) + 2 * h;
            load_row<T, D>(k[sub][h], at + row * D, c, may_load(key + row));
        }
    }
#pragma unroll
    for (int sub = 0; sub < kFirstValues; ++sub) load_values(sub);

    // q, and where this part has it the newest key: not in the cache yet.
    const int q_dim = a.heads * D, kv_dim = a.kv_heads * D;
    std::uint32_t q[D / 8];
    const int first_q = sinks && a.q_sinks ? q_dim + 2 * kv_dim : 0;
    receive_row<D>(q, link.qkv + (first_q + t.at(a, min(g, t.rows - 1), kv_head, D)) / 2, c,
                   g < t.rows, link.qkv_tag);
    const bool has_newest = newest >= from && newest < hi;
    const Word* newest_key = link.qkv + (q_dim + kv_head * D) / 2;
    if (has_newest) {
        std::uint32_t row[D / 8];
        receive_row<D>(row, newest_key, c, true, link.qkv_tag);
#pragma unroll
        for (int sub = 0; sub < kSubs; ++sub) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const bool here = from + kWarpKeys * sub + key_of_row(g) + 2 * h == newest;
#pragma unroll
                for (int w = 0; w < D / 8; ++w) k[sub][h][w] = here ? row[w] : k[sub][h][w];
            }
        }
    }
    stamp_begin(link.stamp);

    KeyRange sees[2];  // rows 2 c and 2 c + 1
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        sees[e] = 2 * c + e < t.rows ? t.sees(a, 2 * c + e, part) : KeyRange{0, 0};
    }
    Weights weights[kSubs];
    float top[kSubs][2], weight[kSubs][2];
#pragma unroll
    for (int sub = 0; sub < kSubs; ++sub) {
        const Scores scores = score<T, D>(k[sub], q);
        if (sub + kFirstValues < kSubs) load_values(sub + kFirstValues);  // where its keys were
        weights[sub] = weigh<T>(
            scores, from + kWarpKeys * sub + key_of_row(g), sees, a.scale,
            [&](int e, float most) {
                top[sub][e] = most;
                return base_of(most);
            },
            [&](int e, float sum) { weight[sub][e] = sum; });
    }
    if (has_newest) {
        std::uint32_t row[D / 16];
        receive_value<D>(row, newest_key + kv_dim / 2, g, link.qkv_tag);
#pragma unroll
        for (int sub = 0; sub < kSubs; ++sub) {
#pragma unroll
            for (int h = 0; h < 4; ++h) {
                const bool here = from + kWarpKeys * sub + 4 * c + h == newest;
#pragma unroll
                for (int w = 0; w < D / 16; ++w) v[sub][h][w] = here ? row[w] : v[sub][h][w];
            }
        }
    }
    float most[2], total[2] = {0, 0}, factor[kSubs][2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        most[e] = fmaxf(fmaxf(top[0][e], top[1][e]), fmaxf(top[2][e], top[3][e]));
        const float base = base_of(most[e]);
#pragma unroll
        for (int sub = 0; sub < kSubs; ++sub) {
            factor[sub][e] = exp2_fast(top[sub][e] - base);
            total[e] = fmaf(factor[sub][e], weight[sub][e], total[e]);
        }
    }
    float sums[D / 16][4] = {};
#pragma unroll
    for (int sub = 0; sub < kSubs; ++sub) {
#pragma unroll
        for (int w = 0; w < D / 16; ++w) {
            float out[4] = {0, 0, 0, 0};
            mma<T>(out, __byte_perm(v[sub][0][w], v[sub][1][w], 0x5410),
                   __byte_perm(v[sub][0][w], v[sub][1][w], 0x7632),
                   __byte_perm(v[sub][2][w], v[sub][3][w], 0x5410),
                   __byte_perm(v[sub][2][w], v[sub][3][w], 0x7632), weights[sub].b0,
                   weights[sub].b1);
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[w][e] = fmaf(factor[sub][e % 2], out[e], sums[w][e]);
        }
    }
    const bool whole = t.parts() == 1;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        const int row = 2 * c + e;
        if (row >= t.rows) continue;
        const std::int64_t slot = t.slot + static_cast<std::int64_t>(row) * a.kv_heads;
#pragma unroll
        for (int w = 0; w < D / 16; ++w) {
            const int d = value_column<D>(w, g);
            const float2 pair{sums[w][e], sums[w][2 + e]};
            if (whole) {
                link.template store<T>(a, t.at(a, row, kv_head, D) + d, pair, total[e]);
            } else {
                link.template store_part<D>(a, slot, t.place(part), d, pair, {most[e], total[e]});
            }
        }
    }
}

}  // namespace mr::cuda::step
