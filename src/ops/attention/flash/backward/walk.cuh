// The warps of the one-pass backward that do not compute: one loads tiles, two add dQ to memory.
#pragma once

#include "core/cuda/tma.cuh"
#include "ops/attention/flash/backward/shared.cuh"

namespace mr::cuda::flash {

// The loading warp's description of a stage: the tile of queries and these flags. kDiagonal: the
// mask is causal without a window, and no query is missing.
constexpr int kMasked = 1, kShort = 2, kDiagonal = 4, kKinds = 8;
__device__ __forceinline__ int read_word(unsigned at) {
    int x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}
__device__ __forceinline__ void write_word(unsigned at, int x) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

// The work of a block. It lies in shared memory, because no warp has registers for it.
struct BlockWork {
    int kv_head;
    int first_tile;     // of the sequence's rows, in scratch
    int key_tile, end;  // tiles of keys [key_tile, end), within the sequence
    Sequence s;

    __device__ __forceinline__ void write(unsigned at) const {
        const int words[8] = {kv_head, first_tile, key_tile, end, s.q, s.k, s.queries, s.keys};
#pragma unroll
        for (int i = 0; i < 8; ++i) write_word(at + 4 * i, words[i]);
    }
    static __device__ __forceinline__ int read_kv_head(unsigned at) { return read_word(at); }
    static __device__ __forceinline__ int read_first_tile(unsigned at) { return read_word(at + 4); }
    static __device__ __forceinline__ int read_key_tile(unsigned at) { return read_word(at + 8); }
    static __device__ __forceinline__ int read_end(unsigned at) { return read_word(at + 12); }
    static __device__ __forceinline__ Sequence read_sequence(unsigned at) {
        return {read_word(at + 16), read_word(at + 20), read_word(at + 24), read_word(at + 28)};
    }
};

// What the computing warps must do with dq of a step.
struct DqStep {
    int tile;          // tile of queries
    bool last, alone;  // write it to the tensor; there are no earlier sums
    int head;

    __device__ __forceinline__ void write(unsigned at) const {
        write_word(at, tile * 4 + (last ? 2 : 0) + (alone ? 1 : 0));
        write_word(at + 4, head);
    }
    static __device__ __forceinline__ DqStep read(unsigned at) {
        const int word = read_word(at);
        return {word / 4, (word & 2) != 0, (word & 1) != 0, read_word(at + 4)};
    }
};

// The walk of a tile of keys, for the loading and the adding warps.
template <int kRows>
struct BackwardWalk {
    int kv_head, first_tile;
    int count;  // tiles of queries
    int steps;  // count, for every head of the group
    BackwardWalks<kRows, kBackwardKeys> walks;
    QueryTiles<kRows> seen;

    __device__ BackwardWalk(const BackwardArgs& args, unsigned work, int key_tile)
        : kv_head(BlockWork::read_kv_head(work)),
          first_tile(BlockWork::read_first_tile(work)),
          walks(args.p.mask, BlockWork::read_sequence(work)),
          seen(walks.seen_by(key_tile)) {
        count = seen.count();
        steps = count * args.p.group;
    }
    struct Step {
        int head, tile;
    };
    // Iterates over the steps.
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

// The loading warp: one thread.
template <int kDim, int kRows>
__device__ __forceinline__ void backward_load(const CUtensorMap& q_map, const CUtensorMap& k_map,
                                              const CUtensorMap& v_map, const CUtensorMap& do_map,
                                              const BackwardArgs& args, unsigned base,
                                              const BackwardBarriers& barriers) {
    using L = BackwardLayout<kDim, kRows>;
    constexpr unsigned kAt = L::kWork;
    const auto load_keys = [&](const CUtensorMap& map, int tile, unsigned to, unsigned barrier) {
        const int kv_head = BlockWork::read_kv_head(base + kAt);
        const int token = BlockWork::read_sequence(base + kAt).k + tile * L::kKeys;
        barrier_expect(barrier, L::kKeyTile);
#pragma unroll
        for (int panel = 0; panel < L::kPanels; ++panel) {
            copy_box(to + panel * L::kKeyPanel, map, 64 * panel, kv_head, token, barrier,
                     args.read_policy);
        }
    };
    int i = 0;  // steps of all tiles of keys
    for (int n = 0; n < BlockWork::read_end(base + kAt) - BlockWork::read_key_tile(base + kAt);
         ++n) {
        const int tile = BlockWork::read_key_tile(base + kAt) + n;
        const BackwardWalk<kRows> walk(args, base + kAt, tile);
        if (walk.steps == 0) return;
        if (i == 0) load_keys(k_map, tile, base + L::kK, barriers.k_full(0));
        auto step = walk.first(args.p.group);
        for (int j = 0; j < walk.steps; ++j, ++i) {
            const int stage = i & 1;
            const unsigned free = ((i >> 1) & 1) ^ 1;
            const Sequence s = BlockWork::read_sequence(base + kAt);
            const int token = s.q + step.tile * kRows;
            const bool is_short = (step.tile + 1) * kRows > s.queries;
            const bool few_keys = s.keys - tile * L::kKeys < L::kKeys;
            const bool masked = is_short || few_keys || walk.seen.cut(step.tile);
            const bool diagonal = !is_short && args.p.mask.kind == Mask::Kind::causal &&
                                  args.p.mask.window == Mask::kNever;
            const int kind =
                (masked ? diagonal ? kDiagonal : kMasked : 0) | (is_short ? kShort : 0);
            const std::int64_t row = args.tile(step.head, walk.first_tile + step.tile) * kRows;
            const auto load_rows = [&](const CUtensorMap& map, const float* number, unsigned to,
                                       unsigned number_to, unsigned full, unsigned empty) {
                barrier_wait(empty, free);
                if (number == args.lse2) {
                    write_word(base + L::kSteps + stage * 4, step.tile * kKinds + kind);
                }
                barrier_expect(full, L::kRowTile + kRows * 4);
#pragma unroll
                for (int panel = 0; panel < L::kPanels; ++panel) {
                    copy_box(to + stage * L::kRowTile + panel * L::kRowPanel, map, 64 * panel,
                             step.head, token, full, args.read_policy);
                }
                copy_bulk(number_to + stage * kRows * 4, number + row, kRows * 4, full);
            };
            load_rows(q_map, args.lse2, base + L::kQ, base + L::kLse, barriers.q_full(stage),
                      barriers.q_empty(stage));
            if (i == 0) load_keys(v_map, tile, base + L::kV, barriers.v_full(0));
            load_rows(do_map, args.delta, base + L::kDo, base + L::kDelta, barriers.do_full(stage),
                      barriers.do_empty(stage));
            walk.advance(step);
            // The slot of the next keys is that of the keys before these, which is free once the
            // first queries of these keys have been used. So they are loaded after two more stages
            // of queries.
            if (L::kKeySlots == 2 && j == min(2, walk.steps - 1) &&
                tile + 1 < BlockWork::read_end(base + kAt)) {
                const int slot = (n + 1) & 1;
                barrier_wait(barriers.keys_empty(slot), (((n + 1) >> 1) & 1) ^ 1);
                load_keys(k_map, tile + 1, base + L::kK + slot * L::kKeyTile,
                          barriers.k_full(slot));
                load_keys(v_map, tile + 1, base + L::kV + slot * L::kKeyTile,
                          barriers.v_full(slot));
            }
        }
    }
}

// A warp that adds dQ to memory: one thread. There are two such warps, for even and odd steps,
// because an addition has to be complete in memory before the next block may add, and that takes
// long.
template <int kDim, int kRows>
__device__ __forceinline__ void backward_add(const BackwardArgs& args, unsigned base,
                                             const BackwardBarriers& barriers, int stage) {
    using L = BackwardLayout<kDim, kRows>;
    using Tile = DqTile<kDim, kRows>;
    unsigned* added = nullptr;  // counter to write once the last addition is in memory
    unsigned next_turn = 0;
    const auto finish_last = [&] {
        bulk_wait();
        fence_async_proxy();
        if (added) write_turn(added, next_turn);
        added = nullptr;
    };
    int i = 0;  // steps of all tiles of keys
    for (int key_tile = BlockWork::read_key_tile(base + L::kWork);
         key_tile < BlockWork::read_end(base + L::kWork); ++key_tile) {
        const BackwardWalk<kRows> walk(args, base + L::kWork, key_tile);
        auto step = walk.first(args.p.group);
        for (int j = 0; j < walk.steps; ++j, ++i, walk.advance(step)) {
            if ((i & 1) != stage) continue;
            const unsigned turn = static_cast<unsigned>(walk.walks.turn(step.tile, key_tile));
            const std::int64_t tile = args.tile(step.head, walk.first_tile + step.tile);
            float* sums = args.dq + tile * Tile::kFloats;
            const unsigned at = base + L::kDq + stage * L::kDqTile;
            const bool last = L::kFold && args.fold && walk.walks.last(step.tile, key_tile);
            if (last && turn > 0) {
                finish_last();
                wait_for_turn(args.turns + tile, turn);
                fence_async_proxy();
                DqStep{step.tile, last, false, step.head}.write(base + L::kDqSteps + stage * 8);
                barrier_expect(barriers.dq_ready(stage), L::kDqTile);
                copy_bulk(at, sums, L::kDqTile, barriers.dq_ready(stage), args.end_policy);
            } else {
                bulk_wait_read();
                if (L::kFold) {
                    DqStep{step.tile, last, true, step.head}.write(base + L::kDqSteps + stage * 8);
                }
                barrier_arrive(barriers.dq_ready(stage));
                finish_last();
            }
            if (!last) {
                wait_for_turn(args.turns + tile, turn);
                fence_async_proxy();
            }
#pragma unroll
            for (int group = 0; group < 2; ++group) {
                barrier_wait(barriers.dq_full(stage, group), (i >> 1) & 1);
                const unsigned from = at + Tile::begin(group) * 4;
                constexpr int kBytes[2] = {64 * Tile::width(0) * 4, 64 * Tile::width(1) * 4};
                if (last) continue;
                if (turn == 0) {  // the first addition: there is nothing to add to
                    bulk_store(sums + Tile::begin(group), from, kBytes[group], args.sums_policy);
                } else {
                    bulk_add(sums + Tile::begin(group), from, kBytes[group], args.sums_policy);
                }
            }
            bulk_commit();
            added = args.turns + tile;
            next_turn = turn + 1;
        }
    }
    finish_last();
}

}  // namespace mr::cuda::flash
