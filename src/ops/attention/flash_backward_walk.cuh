// The warps of the one-pass backward that do not compute: one loads tiles, two add dQ to memory.
#pragma once

#include "core/cuda/tma.cuh"
#include "ops/attention/flash_backward_shared.cuh"

namespace mr::cuda::flash {

// What the warp that loads tells of a stage: the tile of queries, and what is special about it.
constexpr int kMasked = 1, kShort = 2;
__device__ __forceinline__ int read_word(unsigned at) {
    int x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}
__device__ __forceinline__ void write_word(unsigned at, int x) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

// One block's walk, as the warps that load and add see it.
template <int kRows>
struct BackwardWalk {
    Sequence s;
    int sequence, kv_head, key_tile;
    int first_tile;  // of the sequence, in scratch
    int count;       // tiles of queries
    int steps;       // count, for every head of the group
    BackwardWalks<kRows, kBackwardKeys> walks;
    QueryTiles<kRows> seen;

    __device__ BackwardWalk(const BackwardArgs& args, const BackwardWork& work, const Sequence& s_)
        : s(s_),
          sequence(work.pair / args.p.kv_heads),
          kv_head(work.pair % args.p.kv_heads),
          key_tile(work.key_tile),
          first_tile(first_row_tile(s_.q, sequence, kRows)),
          walks(args.p.mask, s_),
          seen(walks.seen_by(work.key_tile)) {
        count = seen.count();
        steps = count * args.p.group;
    }
    struct Step {
        int head, tile;
    };
    // Steps one after the other.
    __device__ __forceinline__ Step first(int group) const {
        return {kv_head * group, walks.direction() > 0 ? seen.begin : seen.end - 1};
    }
    __device__ __forceinline__ void advance(Step& step) const {
        step.tile += walks.direction();
        if (step.tile == (walks.direction() > 0 ? seen.end : seen.begin - 1)) {
            step.tile = walks.direction() > 0 ? seen.begin : seen.end - 1;
            ++step.head;
        }
    }
};

// The warp that loads: one thread.
template <int kDim, int kRows>
__device__ __forceinline__ void backward_load(const CUtensorMap& q_map, const CUtensorMap& k_map,
                                              const CUtensorMap& v_map, const CUtensorMap& do_map,
                                              const BackwardArgs& args,
                                              const BackwardWalk<kRows>& walk, unsigned base,
                                              const BackwardBarriers& barriers) {
    using L = BackwardLayout<kDim, kRows>;
    const int key = walk.s.k + walk.key_tile * L::kKeys;
    const bool few_keys = walk.s.keys - walk.key_tile * L::kKeys < L::kKeys;
    const auto load_keys = [&](const CUtensorMap& map, unsigned to, unsigned barrier) {
        barrier_expect(barrier, L::kKeyTile);
#pragma unroll
        for (int panel = 0; panel < L::kPanels; ++panel) {
            copy_box(to + panel * L::kKeyPanel, map, 64 * panel, walk.kv_head, key, barrier);
        }
    };
    if (walk.steps == 0) return;
    load_keys(k_map, base + L::kK, barriers.k_full());
    auto step = walk.first(args.p.group);
    for (int i = 0; i < walk.steps; ++i) {
        const int stage = i & 1;
        const unsigned free = ((i >> 1) & 1) ^ 1;
        const int token = walk.s.q + step.tile * kRows;
        const bool is_short = (step.tile + 1) * kRows > walk.s.queries;
        const int kind = (is_short || few_keys || walk.seen.cut(step.tile) ? kMasked : 0) |
                         (is_short ? kShort : 0);
        const std::int64_t row = args.tile(step.head, walk.first_tile + step.tile) * kRows;
        const auto load_rows = [&](const CUtensorMap& map, const float* number, unsigned to,
                                   unsigned number_to, unsigned full, unsigned empty) {
            barrier_wait(empty, free);
            if (number == args.lse2) write_word(base + L::kSteps + stage * 4, step.tile * 4 + kind);
            barrier_expect(full, L::kRowTile + kRows * 4);
#pragma unroll
            for (int panel = 0; panel < L::kPanels; ++panel) {
                copy_box(to + stage * L::kRowTile + panel * L::kRowPanel, map, 64 * panel,
                         step.head, token, full);
            }
            copy_bulk(number_to + stage * kRows * 4, number + row, kRows * 4, full);
        };
        load_rows(q_map, args.lse2, base + L::kQ, base + L::kLse, barriers.q_full(stage),
                  barriers.q_empty(stage));
        if (i == 0) load_keys(v_map, base + L::kV, barriers.v_full());
        load_rows(do_map, args.delta, base + L::kDo, base + L::kDelta, barriers.do_full(stage),
                  barriers.do_empty(stage));
        walk.advance(step);
    }
}

// A warp that adds dQ to memory: one thread. There are two, for even and odd steps: an addition has
// to be in memory before the next block is told, and that takes longer than it should.
template <int kDim, int kRows>
__device__ __forceinline__ void backward_add(const BackwardArgs& args,
                                             const BackwardWalk<kRows>& walk, unsigned base,
                                             const BackwardBarriers& barriers, int stage) {
    using L = BackwardLayout<kDim, kRows>;
    using Tile = DqTile<kDim, kRows>;
    auto step = walk.first(args.p.group);
    for (int i = 0; i < walk.steps; ++i) {
        if ((i & 1) == stage) {
            const unsigned turn = static_cast<unsigned>(walk.walks.turn(step.tile, walk.key_tile));
            const std::int64_t tile = args.tile(step.head, walk.first_tile + step.tile);
            wait_for_turn(args.turns + tile, turn);
            fence_async_proxy();
            float* to = args.dq + tile * Tile::kFloats;
#pragma unroll
            for (int group = 0; group < 2; ++group) {
                barrier_wait(barriers.dq_full(stage, group), (i >> 1) & 1);
                const unsigned from = base + L::kDq + stage * L::kDqTile + Tile::begin(group) * 4;
                constexpr int kBytes[2] = {64 * Tile::width(0) * 4, 64 * Tile::width(1) * 4};
                if (turn == 0) {  // nobody before: there is nothing to add to
                    bulk_store(to + Tile::begin(group), from, kBytes[group]);
                } else {
                    bulk_add(to + Tile::begin(group), from, kBytes[group]);
                }
            }
            bulk_commit();
            bulk_wait_read();
            barrier_arrive(barriers.dq_empty(stage));
            bulk_wait();
            fence_async_proxy();
            write_turn(args.turns + tile, turn + 1);
        }
        walk.advance(step);
    }
}

}  // namespace mr::cuda::flash
