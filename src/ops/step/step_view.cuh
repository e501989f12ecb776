// Attention of a step of one token whose keys are numbered by a view: there may be sinks and
// streams (ops/attention/paged/parts.h). Keys and values come through the ring buffer of the
// weights: those in the cache depend on no result of the step, so the loading warps load them in
// phase order, ahead of their query.
//
// A unit of the work is one part of the keys, 64 of them, of a kv head and a tile of its rows. All
// units are one list, head by head, and every team has an equal stretch of it: a window that begins
// inside a part has one more part, which costs no team an extra round.
#pragma once

#include "ops/attention/paged/products.cuh"
#include "ops/step/step_link.cuh"
#include "ops/step/step_params.cuh"

namespace mr::cuda::step {

// The units of one team: their number, and the position of the first.
struct Stretch {
    int units;
    int head, row_tile, i;  // i: index of the part
    __device__ __forceinline__ void next(const attn::Args& a, int parts) {
        if (++i < parts) return;
        i = 0;
        if (++row_tile < a.row_tiles) return;
        row_tile = 0;
        ++head;
    }
};

// A block's description of a step's keys. The position, and so the view, holds for all layers.
struct View {
    attn::Tile tile;  // of the first kv head's first rows; all others see the same keys
    int parts;        // per head and tile
    Stretch teams[kTeams];
    int rounds;  // units of the team with the most

    __device__ void make(const attn::Args& a) {
        tile = attn::rows_at(a, 0, 0, 0);
        tile.see(a, attn::last_position(a, tile), 0);
        parts = tile.parts();
        rounds = 0;
        const auto each = static_cast<unsigned>(max(parts, 1));
        const auto all =
            static_cast<std::uint64_t>(a.kv_heads * a.row_tiles) * static_cast<unsigned>(parts);
        const unsigned count = gridDim.x * kTeams;
        for (int t = 0; t < kTeams; ++t) {
            const unsigned team = blockIdx.x * kTeams + static_cast<unsigned>(t);
            const auto begin = static_cast<unsigned>(all * team / count);
            const auto end = static_cast<unsigned>(all * (team + 1) / count);
            const int at = static_cast<int>(begin / each);
            teams[t] = {static_cast<int>(end - begin), at / a.row_tiles, at % a.row_tiles,
                        static_cast<int>(begin % each)};
            rounds = max(rounds, teams[t].units);
        }
    }
    // The offset of row `row` (over all heads) in q and out, in elements.
    __device__ __forceinline__ std::int64_t at(const attn::Args& a, int row, int dim) const {
        return (static_cast<std::int64_t>(tile.first) * a.heads + row) * dim;
    }
    // The number of the newest key, which is in the last part.
    __device__ __forceinline__ int newest(bool sinks) const {
        return tile.keys - 1 + (sinks ? tile.shift : 0);
    }
};

// A unit takes four stages of the ring: the first and the second 32 keys, a page each, then their
// values. A stage is for both teams of the block. Rows are padded, so that at most two lanes of a
// load share a bank.
template <int D>
struct KeyStage {
    static constexpr int kPitch = 2 * D + 16;
    static constexpr int kTeamBytes = attn::kPageKeys * kPitch;
    static constexpr int kBytes = kTeams * kTeamBytes;
};
constexpr int kUnitStages = 4;
constexpr int kKeyFetching = kThreads - kMultiplying;

// The copies of one loading thread, which serves one team. All threads of the loading warp group
// copy keys.
template <typename T, int D>
class KeyFetch {
  public:
    static constexpr int kEach = kKeyFetching / kTeams;  // threads per team

    // Construct it after the preceding kernels, which wrote the positions.
    __device__ KeyFetch(const attn::Args& a, const View& view, int thread)
        : mine_(view.teams[thread / kEach]), thread_(thread), first_(pages(a, view, mine_)) {}
    // Calls stage() for the slot of every stage and fills it.
    template <typename Stage, typename Filled>
    __device__ __forceinline__ void all(const attn::Args& a, const View& view, const void* keys,
                                        const void* values, Stage&& stage, Filled&& filled) const {
        Stretch at = mine_;
        int2 page = first_;
#pragma unroll 1
        for (int round = 0; round < view.rounds; ++round) {
            const bool on = round < mine_.units;
            const int part = view.tile.part(at.i), key = part * attn::kStepKeys;
            const bool sinks = part < view.tile.ahead;
            const int lo = (sinks ? 0 : view.tile.range.lo) - key;
            const int hi = on ? view.tile.part_end(a, part) - key : 0;
            const int newest = view.newest(sinks) - key;
            const int head = at.head;
            const int2 here = page;
            at.next(a, view.parts);
            if (round + 1 < mine_.units) page = pages(a, view, at);
#pragma unroll 1
            for (int i = 0; i < kUnitStages; ++i) {
                const int second = i % 2;
                const void* cache = i < 2 ? keys : values;
                const T* from = attn::cache_at<T>(a, cache, second ? here.y : here.x, head, 0, D);
                copy(stage(), from, lo - second * attn::kPageKeys, hi - second * attn::kPageKeys,
                     newest - second * attn::kPageKeys);
                filled();
            }
        }
    }

  private:
    // The numbers of the two pages of the part.
    static __device__ __forceinline__ int2 pages(const attn::Args& a, const View& view,
                                                 const Stretch& at) {
        const attn::Tile& t = view.tile;
        const int part = t.part(at.i), key = part * attn::kStepKeys;
        const std::int32_t* table = attn::table_of(a, 0, part < t.ahead);
        return {table[t.entry(a, part, key)], table[t.entry(a, part, key + attn::kPageKeys)]};
    }
    // Rows outside of [lo, hi), and the newest one, become zeros.
    __device__ __forceinline__ void copy(unsigned stage, const T* from, int lo, int hi,
                                         int newest) const {
        constexpr int kPieces = D / 8;  // 16-byte pieces per row
        constexpr int kCopies = attn::kPageKeys * kPieces / kEach;
        static_assert(attn::kPageKeys * kPieces % kEach == 0);
        const int here = computed_here(thread_);
        const unsigned to = stage + here / kEach * KeyStage<D>::kTeamBytes;
        from += here % kEach * 8;
#pragma unroll 4
        for (int j = 0; j < kCopies; ++j) {
            const int piece = here % kEach + j * kEach, row = piece / kPieces;
            const bool on = row >= lo && row < hi && row != newest;
            copy16(to + row * KeyStage<D>::kPitch + piece % kPieces * 16, from + j * kEach * 8, on);
        }
    }

    Stretch mine_;
    int thread_;
    int2 first_;  // pages of the first unit, the same for every layer
};

// The rows that a team has received, in shared memory: the newest
// key and value, then q, then the queries for the sinks. Heads of
// up to four rows leave room for these queries of the next head.
struct Asked {
    static constexpr int kRows = 2 + 2 * attn::kTileRows;
    int index = -1;       // of the first head and tile
    bool second = false;  // the next one is present, too
    __device__ __forceinline__ bool holds(int at) const {
        return at == index || (second && at == index + 1);
    }
    // The index of q's row for a head and tile that it holds, of `rows` rows.
    __device__ __forceinline__ int q(int at, int rows, bool sinks) const {
        return 2 + (at == index ? 0 : 2 * rows) + (sinks ? rows : 0);
    }
};
template <typename T, int D>
struct ViewShared {
    attn::DecodeShared<D> decode;
    alignas(16) T rows[Asked::kRows * D];
};

// The softmax of kCount parts at once, each as in WarpSums::weigh(): the chains of one part
// hide the latency of another's. key: the first of the lane's two keys; ranges: what rows see of a
// part.
template <typename T, int kCount>
struct WeighedParts {
    float top[kCount][2], weight[kCount][2];
    attn::Weights weights[kCount];

    __device__ __forceinline__ void weigh(const float4 (&s)[kCount], const int (&key)[kCount],
                                          const attn::KeyRange (&range)[kCount], int rows_left,
                                          float scale) {
        float p[kCount][4];
#pragma unroll
        for (int u = 0; u < kCount; ++u) {
            const bool on0 = range[u].holds(key[u]), on1 = range[u].holds(key[u] + 2);
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const bool row = e < rows_left;
                p[u][e] = row && on0 ? (e ? s[u].y : s[u].x) * scale : -INFINITY;
                p[u][2 + e] = row && on1 ? (e ? s[u].w : s[u].z) * scale : -INFINITY;
                top[u][e] = fmaxf(p[u][e], p[u][2 + e]);
            }
        }
#pragma unroll
        for (int far = 4; far < 32; far *= 2) {
#pragma unroll
            for (int u = 0; u < 2 * kCount; ++u) {
                float& most = top[u / 2][u % 2];
                most = fmaxf(most, __shfl_xor_sync(~0u, most, far));
            }
        }
        std::uint32_t packed[kCount][2];
#pragma unroll
        for (int u = 0; u < kCount; ++u) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const float base = attn::base_of(top[u][e]);
                p[u][e] = attn::exp2_fast(p[u][e] - base);
                p[u][2 + e] = attn::exp2_fast(p[u][2 + e] - base);
            }
            packed[u][0] = pack<T>(p[u][0], p[u][1]);
            packed[u][1] = pack<T>(p[u][2], p[u][3]);
            const float2 low = unpack<T>(packed[u][0]), high = unpack<T>(packed[u][1]);
            weight[u][0] = low.x + high.x;
            weight[u][1] = low.y + high.y;
        }
#pragma unroll
        for (int far = 4; far < 32; far *= 2) {
#pragma unroll
            for (int u = 0; u < 2 * kCount; ++u) {
                float& sum = weight[u / 2][u % 2];
                sum += __shfl_xor_sync(~0u, sum, far);
            }
        }
#pragma unroll
        for (int u = 0; u < kCount; ++u) {
            weights[u] = {attn::transpose(packed[u][0]), attn::transpose(packed[u][1])};
        }
    }
};

// attn::combine() for half of the columns of one row, with all of its parts in flight if there are
// at most 4 * kInFlight. idx: the row's index over all heads.
template <typename T, int D, typename Team>
__device__ __forceinline__ void combine_half(const attn::Args& a, const View& view, int idx,
                                             int half, float* shared, Team team,
                                             const TaggedLink& link) {
    constexpr int kInFlight = 10, kColumns = D / 2;
    const int warp = team.thread() / 32, lane = team.thread() % 32;
    const attn::Places places = view.tile.places();
    const int first = places.first + warp;
    float* sums = shared;                  // [4, kColumns]
    float* weights = sums + 4 * kColumns;  // [4]
    float* tops = weights + 4;             // [4]
    const int slot = idx % a.group * a.kv_heads + idx / a.group;
    const Word* words = link.parts_of<D>(slot);
    const int column = half * kColumns + min(2 * lane, kColumns - 2);
    float2 of[kInFlight], x[kInFlight];
    const auto load = [&](int p) {
        uint4 v[2 * kInFlight];
        cuda::receive(v, link.tag, [&](int i) -> const Word* {
            const int at = p + i / 2 * 4;
            return places.hold(at) ? words + at * (D + 2) + (i % 2 ? 2 + column : 0) : nullptr;
        });
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            of[i] = {__uint_as_float(v[2 * i].x), __uint_as_float(v[2 * i].z)};
            if (!places.hold(p + 4 * i)) of[i].x = -INFINITY;
            x[i] = {__uint_as_float(v[2 * i + 1].x), __uint_as_float(v[2 * i + 1].z)};
        }
    };
    load(first);
    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) top = fmaxf(top, of[i].x);
    for (int p = first + 4 * (kInFlight + lane); p < places.end; p += 128) {
        if (!places.hold(p)) continue;
        top = fmaxf(top, __uint_as_float(cuda::receive(words + p * (D + 2), link.tag).x));
    }
    top = warp_max(top);
    if (lane == 0) tops[warp] = top;
    team.sync();
    const float base = attn::base_of(fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3])));
    float2 sum{0, 0};
    float weight = 0;
    for (int p = first; p < places.end; p += 4 * kInFlight) {
        if (p != first) load(p);
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            const float w = attn::exp2_fast(of[i].x - base);
            weight = fmaf(w, of[i].y, weight);
            sum.x = fmaf(w, x[i].x, sum.x);
            sum.y = fmaf(w, x[i].y, sum.y);
        }
    }
    if (2 * lane < kColumns) *reinterpret_cast<float2*>(sums + warp * kColumns + 2 * lane) = sum;
    if (lane == 0) weights[warp] = weight;
    team.sync();
    const int d = 2 * team.thread();
    if (d < kColumns) {
        const auto all = [&](int i) {
            return (sums[i] + sums[kColumns + i]) +
                   (sums[2 * kColumns + i] + sums[3 * kColumns + i]);
        };
        const float total = (weights[0] + weights[1]) + (weights[2] + weights[3]);
        link.template store<T>(a, view.at(a, idx, D) + half * kColumns + d, {all(d), all(d + 1)},
                               total);
    }
    team.sync();
}

// One team's attention of a layer. take(load) waits for the next stage of the ring, calls load with
// the stage's first byte and frees the stage.
template <typename T, int D, typename Team, typename Take>
__device__ __forceinline__ void attend_view(const attn::Args& a, const View& view,
                                            ViewShared<T, D>& shared, int index, Team team,
                                            const TaggedLink& link, Take&& take) {
    // The most units computed at once, if the shared sums can hold them. With five, all of a team's
    // share of 2,048 keys, a step with heads of 80 takes 4% longer.
    constexpr int kMost = 3;
    const int warp = team.thread() / 32, lane = team.thread() % 32;
    const int g = lane / 4, c = lane % 4;
    const int teams = static_cast<int>(gridDim.x) * kTeams;
    const int first = static_cast<int>(blockIdx.x) + index * static_cast<int>(gridDim.x);
    if (view.parts == 0) {  // does not happen: a token sees itself
        for (int i = first; i < a.heads; i += teams) {
            const int d = 2 * team.thread();
            if (d < D) link.template store<T>(a, view.at(a, i, D) + d, {0, 0}, 0);
        }
        return;
    }
    const int most_rows = min(attn::kTileRows, a.group);
    const int most = min(kMost, attn::kTileRows / most_rows);
    const int rounds = view.rounds, batches = (rounds + most - 1) / most,
              batch = (rounds + batches - 1) / max(batches, 1);
    Stretch at = view.teams[index];
    const int units = at.units;
    Asked asked;
#pragma unroll 1
    for (int done = 0; done < rounds; done += batch) {
        const int count = min(batch, rounds - done), on = min(count, units - done);
        int part[kMost], slot[kMost], rows[kMost];
        int key[kMost];
        attn::KeyRange range[kMost];
        float4 scores[kMost];
        std::uint32_t v[kMost][4][D / 16];
        define(v);
#pragma unroll
        for (int u = 0; u < kMost; ++u) {
            part[u] = view.tile.part(at.i);
            rows[u] = min(attn::kTileRows, a.group - at.row_tile * attn::kTileRows);
            slot[u] = at.row_tile * attn::kTileRows * a.kv_heads + at.head;
            const bool sinks = part[u] < view.tile.ahead;
            const int from =
                part[u] * attn::kStepKeys + attn::kWarpKeys * warp;  // the warp's first key
            key[u] = from + attn::key_of_row(g);
            range[u] = sinks ? attn::KeyRange{0, view.tile.sinks_end} : view.tile.range;
            scores[u] = float4{};
            if (u >= count) continue;
            const int head_at = at.head * a.row_tiles + at.row_tile;
            if (u < on && !asked.holds(head_at)) {
                if (asked.index >= 0) team.sync();  // the previous rows have been read
                asked.index = head_at;
                const int left = units - done - u, here = min(left, view.parts - at.i);
                asked.second =
                    most_rows <= attn::kTileRows / 2 && left > here && left - here < view.parts;
                link.template receive_view<T, D>(a, view, at.head, at.row_tile,
                                                 at.i < view.tile.ahead, at.i + here == view.parts,
                                                 asked.second, team);
            }
            // The row of the warp's keys that holds the newest key, if this part sees it.
            const int newest = range[u].holds(view.newest(sinks)) ? view.newest(sinks) - from : -1;
            const int row0 = warp % 2 * attn::kWarpKeys;  // within its page
            const auto row_at = [&](const std::byte* stage, int row) {
                return reinterpret_cast<const T*>(stage + (row0 + row) * KeyStage<D>::kPitch);
            };
            std::uint32_t q[D / 8], k[2][D / 8];
            define(k);
#pragma unroll
            for (int page = 0; page < 2; ++page) {
                take([&](const std::byte* stage) {
                    if (u >= on || warp / 2 != page) return;
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const int row = attn::key_of_row(g) + 2 * h;
                        const T* from_row =
                            row == newest ? link.template key<T, D>() : row_at(stage, row);
                        attn::load_row<T, D, attn::FromShared>(k[h], from_row, c, true);
                    }
                });
            }
            if (u < on) {
                const int q_row = asked.q(head_at, rows[u], sinks && a.q_sinks);
                attn::load_row<T, D, attn::FromShared>(
                    q, link.template row<T, D>(q_row + min(g, rows[u] - 1)), c, g < rows[u]);
                const attn::Scores two = attn::score<T, D>(k, q);
                scores[u] = {two.even[0] + two.odd[0], two.even[1] + two.odd[1],
                             two.even[2] + two.odd[2], two.even[3] + two.odd[3]};
            }
#pragma unroll
            for (int page = 0; page < 2; ++page) {
                take([&](const std::byte* stage) {
                    if (u >= on || warp / 2 != page) return;
#pragma unroll
                    for (int h = 0; h < 4; ++h) {
                        const int row = 4 * c + h;
                        const T* from_row =
                            row == newest ? link.template value<T, D>() : row_at(stage, row);
                        attn::load_value<T, D, attn::FromShared>(v[u][h], from_row, g, true);
                    }
                });
            }
            if (u < on) at.next(a, view.parts);
        }
        if (on <= 0) continue;
        WeighedParts<T, kMost> softmax;
        softmax.weigh(scores, key, range, most_rows - 2 * c, a.scale);
#pragma unroll
        for (int u = 0; u < kMost; ++u) {
            if (u >= on) continue;
            attn::WarpSums<D> sums;
            sums.clear();
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                sums.top[e] = softmax.top[u][e];
                sums.weight[e] = softmax.weight[u][e];
                sums.factor[e] = 1;  // sums that are zero
            }
            sums.template add<T>(softmax.weights[u], v[u]);
            sums.put(shared.decode, warp, g, c, rows[u], u * most_rows);
        }
        team.sync();
        // Rows of all units are adjacent: row r of unit u is row u * most_rows + r of the sums.
        for (int i = 2 * team.thread(); i < on * most_rows * D; i += 2 * attn::kDecodeThreads) {
            const int row = i / D, d = i % D, u = row / most_rows, r = row - u * most_rows;
            int of_part = part[0], of_slot = slot[0], of_rows = rows[0];
#pragma unroll
            for (int j = 1; j < kMost; ++j) {
                if (u == j) of_part = part[j], of_slot = slot[j], of_rows = rows[j];
            }
            if (r >= of_rows) continue;
            const attn::MergedRow merged = attn::merge_row(shared.decode, row, d);
            if (view.parts == 1) {
                const int tile_row = of_slot / a.kv_heads, head = of_slot - tile_row * a.kv_heads;
                link.template store<T>(a, view.at(a, head * a.group + tile_row + r, D) + d,
                                       merged.sums, merged.top.y);
            } else {
                link.template store_part<D>(a, of_slot + r * a.kv_heads, view.tile.place(of_part),
                                            d, merged.sums, merged.top);
            }
        }
        team.sync();  // the next units overwrite the shared sums
    }
    // Every team finishes its units before it combines, so no two teams wait for each other.
    if (view.parts == 1) return;
#pragma unroll 1
    for (int i = first; i < 2 * a.heads; i += teams) {
        combine_half<T, D>(a, view, i / 2, i % 2, shared.decode.sums, team, link);
    }
}

}  // namespace mr::cuda::step
