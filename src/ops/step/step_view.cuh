// Attention of a step of one token whose keys have the numbers of a view: there may be sinks and
// streams (ops/attention/paged/parts.h). Keys and values come through the ring buffer of the
// weights: those in the cache depend on no result of the step, so the loading warps bring them in
// the order of the phases, ahead of the query that asks them.
//
// A unit of the work is one part of the keys, 64 of them, of a kv head and a tile of its rows. All
// units are one list, head by head, and every team has an equal stretch of it. So a step takes as
// long as its keys are many, wherever the window begins in its first part.
#pragma once

#include "ops/attention/paged/products.cuh"
#include "ops/step/step_link.cuh"
#include "ops/step/step_params.cuh"

namespace mr::cuda::step {

// What all teams know about a step's keys. The position, and so the view, is that of all layers.
struct View {
    attn::Tile tile;  // of the first kv head's first rows; the others see the same keys
    int parts;        // of a head and tile

    __device__ void make(const attn::Args& a) {
        tile = attn::rows_at(a, 0, 0, 0);
        tile.see(a, attn::last_position(a, tile), 0);
        parts = tile.parts();
    }
    __device__ __forceinline__ attn::Tile rows_of(const attn::Args& a, int head,
                                                  int row_tile) const {
        attn::Tile t = tile;
        t.row = row_tile * attn::kTileRows;
        t.rows = min(attn::kTileRows, a.group - t.row);
        t.slot = t.row * a.kv_heads + head;
        return t;
    }
    // The number of the newest key in a part. It is in the last part.
    __device__ __forceinline__ int newest(bool sinks) const {
        return tile.keys - 1 + (sinks ? tile.shift : 0);
    }
};

// The units of one team: [begin, end) of the list, and where `begin` is.
struct Stretch {
    int units;
    int head, row_tile, i;  // its first unit is the i-th part of these
    __device__ Stretch(const attn::Args& a, const View& view, int team) {
        const auto teams = static_cast<unsigned>(gridDim.x) * kTeams;
        const auto all = static_cast<std::uint64_t>(a.kv_heads * a.row_tiles) *
                         static_cast<unsigned>(view.parts);
        const auto begin = static_cast<unsigned>(all * static_cast<unsigned>(team) / teams);
        const auto end = static_cast<unsigned>(all * static_cast<unsigned>(team + 1) / teams);
        units = static_cast<int>(end - begin);
        const int at = static_cast<int>(begin / static_cast<unsigned>(view.parts));
        i = static_cast<int>(begin % static_cast<unsigned>(view.parts));
        head = at / a.row_tiles;
        row_tile = at % a.row_tiles;
    }
    __device__ __forceinline__ void next(const attn::Args& a, int parts) {
        if (++i < parts) return;
        i = 0;
        if (++row_tile < a.row_tiles) return;
        row_tile = 0;
        ++head;
    }
};

// A unit takes four stages of the ring: the first and the second 32 keys, which are a page each,
// then their values. A stage has those of both teams of the block. Rows are padded, so that at most
// two lanes of a load meet in a bank.
template <int D>
struct KeyStage {
    static constexpr int kPitch = 2 * D + 16;
    static constexpr int kTeamBytes = attn::kPageKeys * kPitch;
    static constexpr int kBytes = kTeams * kTeamBytes;
};
constexpr int kUnitStages = 4;

// The copies of one loading thread, which serves one team.
template <typename R, typename T, int D>
class KeyFetch {
  public:
    static constexpr int kEach = R::kFetching / kTeams;  // threads for a team

    // After the kernels before this one, which wrote the positions.
    __device__ KeyFetch(const attn::Args& a, const View& view, int thread)
        : mine_(a, view, first_team() + thread / kEach), thread_(thread) {
        const int other = first_team() + 1 - thread / kEach;
        rounds_ = max(mine_.units, Stretch(a, view, other).units);
        first_ = pages(a, view, mine_);
    }
    __device__ __forceinline__ int rounds() const { return rounds_; }

    // Calls stage() for the place of every stage and fills it.
    template <typename Stage, typename Filled>
    __device__ __forceinline__ void all(const attn::Args& a, const View& view, const void* keys,
                                        const void* values, Stage&& stage, Filled&& filled) const {
        Stretch at = mine_;
        int2 page = first_;
#pragma unroll 1
        for (int round = 0; round < rounds_; ++round) {
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
                const T* from =
                    attn::cache_at<T>(a, cache, second ? here.y : here.x, head, 0, D);
                copy(stage(), from, lo - second * attn::kPageKeys, hi - second * attn::kPageKeys,
                     newest - second * attn::kPageKeys);
                filled();
            }
        }
    }

  private:
    static __device__ __forceinline__ int first_team() {
        return static_cast<int>(blockIdx.x) * kTeams;
    }
    // Of the part's two pages. Those of a part that the team does not have are any entries.
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
        constexpr int kPieces = D / 8;  // of 16 bytes, a row
        constexpr int kCopies = attn::kPageKeys * kPieces / kEach;
        static_assert(attn::kPageKeys * kPieces % kEach == 0);
        const int here = computed_here(thread_);
        const unsigned to = stage + here / kEach * KeyStage<D>::kTeamBytes;
        from += here % kEach * 8;
#pragma unroll 4
        for (int j = 0; j < kCopies; ++j) {
            const int piece = here % kEach + j * kEach, row = piece / kPieces;
            const bool on = row >= lo && row < hi && row != newest;
            copy16(to + row * KeyStage<D>::kPitch + piece % kPieces * 16, from + j * kEach * 8,
                   on);
        }
    }

    Stretch mine_;
    int thread_, rounds_;
    int2 first_;  // the pages of the first unit, of every layer
};

// The shared memory of a team.
template <typename T, int D>
struct ViewShared {
    attn::DecodeShared<D> decode;
    // The newest key and value; q; what asks the sinks.
    alignas(16) T rows[(2 + 2 * attn::kTileRows) * D];
};

// One team's attention of a layer. take(load) waits for the next stage of the ring, calls load with
// the stage's first byte and gives the stage back.
template <typename T, int D, typename Team, typename Take>
__device__ __forceinline__ void attend_view(const attn::Args& a, const View& view, int rounds,
                                            ViewShared<T, D>& shared, int index, Team team,
                                            const TaggedLink& link, Take&& take) {
    using attn::kDecodeWarps;
    const int warp = team.thread() / 32, lane = team.thread() % 32;
    const int g = lane / 4, c = lane % 4;
    const int teams = static_cast<int>(gridDim.x) * kTeams;
    Stretch at(a, view, static_cast<int>(blockIdx.x) * kTeams + index);
    const int units = at.units;
    bool enter = true;  // rows of another head
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        const bool on = round < units;
        const int rows = min(attn::kTileRows, a.group - at.row_tile * attn::kTileRows);
        if (on && enter) {
            const attn::Tile t = view.rows_of(a, at.head, at.row_tile);
            if (team.thread() == 0) shared.decode.tile = t;
            link.template receive_view<T, D>(a, t, at.head, at.i < t.ahead,
                                             at.i + units - round >= view.parts, team);
        }
        const int part = view.tile.part(at.i);
        const bool sinks = part < view.tile.ahead;
        const int key = part * attn::kStepKeys + attn::kWarpKeys * warp;  // the warp's first
        const int newest = on ? view.newest(sinks) : -1;
        const attn::KeyRange range =
            sinks ? attn::KeyRange{0, view.tile.sinks_end} : view.tile.range;
        attn::KeyRange sees[2];  // rows 2 c and 2 c + 1
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            sees[e] = 2 * c + e < rows ? range : attn::KeyRange{0, 0};
        }
        std::uint32_t q[D / 8], k[2][D / 8], v[4][D / 16];
        define(k);
        define(v);
        const bool has_newest = newest >= key && newest < key + attn::kWarpKeys;
        const int row0 = warp % 2 * attn::kWarpKeys;  // of its page
        const auto row_at = [&](const std::byte* stage, int row) {
            return reinterpret_cast<const T*>(stage + (row0 + row) * KeyStage<D>::kPitch);
        };
#pragma unroll
        for (int page = 0; page < 2; ++page) {
            take([&](const std::byte* stage) {
                if (!on || warp / 2 != page) return;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int row = attn::key_of_row(g) + 2 * h;
                    const T* from = has_newest && key + row == newest ? link.template key<T, D>()
                                                                      : row_at(stage, row);
                    attn::load_row<T, D, attn::FromShared>(k[h], from, c, true);
                }
            });
        }
        attn::load_row<T, D, attn::FromShared>(
            q, link.template q<T, D>(min(g, rows - 1) + (sinks && a.q_sinks ? attn::kTileRows : 0)),
            c, g < rows);
        const attn::Scores scores = attn::score<T, D>(k, q);
#pragma unroll
        for (int page = 0; page < 2; ++page) {
            take([&](const std::byte* stage) {
                if (!on || warp / 2 != page) return;
#pragma unroll
                for (int h = 0; h < 4; ++h) {
                    const int row = 4 * c + h;
                    const T* from = has_newest && key + row == newest ? link.template value<T, D>()
                                                                      : row_at(stage, row);
                    attn::load_value<T, D, attn::FromShared>(v[h], from, g, true);
                }
            });
        }
        if (!on) continue;
        attn::WarpSums<D> sums;
        sums.clear();
        const attn::Weights weights =
            sums.template weigh<T>(scores, key + attn::key_of_row(g), sees, a.scale);
        sums.template add<T>(weights, v);
        sums.put(shared.decode, warp, g, c, rows);
        team.sync();
        attn::merge_warps<T>(a, at.head, part, rows, shared.decode, team, link);
        team.sync();  // the next unit overwrites the shared sums
        const int head = at.head, row_tile = at.row_tile;
        at.next(a, view.parts);
        enter = head != at.head || row_tile != at.row_tile;
    }
    if (view.parts <= 1) return;
    // All units of the grid are computed before any team combines, so no team waits for a unit
    // that waits for it.
    for (int i = static_cast<int>(blockIdx.x) + index * static_cast<int>(gridDim.x);
         i < a.kv_heads * a.row_tiles; i += teams) {
        const int head = i / a.row_tiles;
        attn::combine<T>(a, view.rows_of(a, head, i % a.row_tiles), head, D, shared.decode.sums,
                         team, link,
                         [&](std::int64_t slot) { return link.template parts<D, 8>(slot); });
    }
}

}  // namespace mr::cuda::step
