// The forward for sm_90a, after FlashAttention-3. A block has one producer and two or three
// consumers, warp groups with 64 queries each:
//  - one thread of the producer copies Q, K and V with TMA, as far ahead as shared memory reaches;
//  - a consumer starts the scores of the next tile of keys and the product of this tile's weights
//    with V, both asynchronous, and computes the softmax of the scores while they run;
//  - consumers take turns in starting their products, so that the softmax of one overlaps with the
//    products of the other;
//  - the queries' sums never leave registers, and weights go to the second product in registers.
// Blocks are persistent. A free block takes the next tile of queries, those with most keys first;
// while it writes one tile, the Q, K and V of the next are already in flight.
#pragma once

#include "core/cuda/wgmma.cuh"
#include "ops/attention/flash/forward/pages.cuh"
#include "ops/attention/flash/forward/softmax.cuh"

namespace mr::cuda::flash {

// Tiles differ in length, so a free block takes the next one. A launch counts to `tiles` in a
// counter of its own (atomicInc), which is zero again for another launch afterwards.
inline constexpr int kTileCounters = 1 << 16;
static __device__ unsigned tile_counters[kTileCounters];

namespace forward {

constexpr int kTurn = 1;  // barriers kTurn + consumer, plus one for all consumers
constexpr int kAll = 4;

__device__ __forceinline__ void named_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// The slots of a ring buffer of tiles in shared memory, by the number of tiles before.
template <int kStages>
__device__ __forceinline__ int slot_of(unsigned tile) {
    static_assert((kStages & (kStages - 1)) == 0);
    return static_cast<int>(tile % kStages);
}
template <int kStages>
__device__ __forceinline__ unsigned phase_of(unsigned tile) {
    return tile / kStages % 2;
}

// Addresses in shared memory.
template <typename S>
struct Layout {
    unsigned q, k, v, barriers;
    __device__ explicit Layout(unsigned base) {
        q = (base + 1023) / 1024 * 1024;
        k = q + S::kQueryBytes;
        v = k + S::kStages * S::kTileBytes;
        barriers = v + S::kStages * S::kTileBytes;
    }
    __device__ unsigned q_full() const { return barriers; }
    __device__ unsigned q_empty() const { return barriers + 8; }
    __device__ unsigned k_full(int i) const { return barriers + 16 + 8 * i; }
    __device__ unsigned k_empty(int i) const { return barriers + 16 + 8 * (S::kStages + i); }
    __device__ unsigned v_full(int i) const { return barriers + 16 + 8 * (2 * S::kStages + i); }
    __device__ unsigned v_empty(int i) const { return barriers + 16 + 8 * (3 * S::kStages + i); }
    // The descriptions of this tile of queries and of the next: one is published while the other is
    // written out.
    __device__ unsigned tile(unsigned number) const { return barriers + 192 + 32 * (number % 2); }
    static_assert(16 + 32 * S::kStages <= 192);
};

__device__ __forceinline__ ForwardTile read_tile(unsigned address) {
    ForwardTile tile;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tile.row0), "=r"(tile.head), "=r"(tile.q), "=r"(tile.queries)
                 : "r"(address));
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(tile.keys), "=r"(tile.key0)
                 : "r"(address + 16));
    return tile;
}

template <typename S>
__device__ __forceinline__ void produce(const Problem& p, const ForwardPlan& plan,
                                        const PagedKeys& paged, const Layout<S>& shared,
                                        const CUtensorMap& q_map, const CUtensorMap& k_map,
                                        const CUtensorMap& v_map) {
    unsigned loaded = 0;  // tiles of keys so far
    unsigned number = 0;  // tiles of queries so far
    // Waits for the slot of the next queries and publishes their description.
    const auto publish = [&](const ForwardTile& tile) {
        barrier_wait(shared.q_empty(), number % 2 ^ 1);
        const unsigned at = shared.tile(number++);
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(tile.row0),
                     "r"(tile.head), "r"(tile.q), "r"(tile.queries)
                     : "memory");
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at + 16), "r"(tile.keys),
                     "r"(tile.key0)
                     : "memory");
    };
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    int next = 0;
    for (int t = block, round = 1; t < plan.tiles; t = next, ++round) {
        next = plan.counter < 0
                   ? ForwardPlan::own(block, blocks, round)
                   : ForwardPlan::after_ticket(
                         blocks, atomicInc(&tile_counters[plan.counter], unsigned(plan.tiles) - 1));
        const auto [pair, row] = plan.tile(t);
        const Sequence s =
            S::kPaged ? paged.sequence(p, pair / p.heads) : p.sequence(pair / p.heads);
        const int head = pair % p.heads, kv_head = head / p.group;
        const int row0 = ForwardPlan::first_row(row, s.queries, S::kRows);
        if (row0 >= s.queries) continue;
        const KeyTiles<S::kKeys> tiles(p.mask, s.position(max(row0, 0)),
                                       s.position(min(row0 + S::kRows, s.queries) - 1), s.keys);
        publish({row0, head, s.q, s.queries, s.keys, s.k});
        barrier_expect(shared.q_full(), S::kQueryBytes);
#pragma unroll
        for (int i = 0; i < S::kPanels; ++i) {
            copy_box(shared.q + i * S::kRows * 128, q_map, 64 * i, head, s.q + row0,
                     shared.q_full());
        }
        if (S::kPaged && paged.table) {
            const int table = pair / p.heads * paged.max_pages;
            const int hi = p.mask.hi(s.position(min(row0 + S::kRows, s.queries) - 1), s.keys);
            const int lo = min(p.mask.lo(s.position(max(row0, 0))), hi);
            for (int i = 0; i < tiles.count(); ++i, ++loaded) {
                const int slot = slot_of<S::kStages>(loaded);
                const unsigned phase = phase_of<S::kStages>(loaded) ^ 1;
                const PageRows<S> rows(paged, p, table, kv_head, tiles.at(i), lo, hi);
                barrier_wait(shared.k_empty(slot), phase);
                barrier_expect(shared.k_full(slot), S::kTileBytes);
                rows.copy(shared.k + slot * S::kTileBytes, k_map, shared.k_full(slot));
                barrier_wait(shared.v_empty(slot), phase);
                barrier_expect(shared.v_full(slot), S::kTileBytes);
                rows.copy(shared.v + slot * S::kTileBytes, v_map, shared.v_full(slot));
            }
            continue;
        }
        for (int i = 0; i < tiles.count(); ++i) {
            const int token = s.k + tiles.at(i), slot = slot_of<S::kStages>(loaded);
            const unsigned phase = phase_of<S::kStages>(loaded) ^ 1;
            barrier_wait(shared.k_empty(slot), phase);
            barrier_expect(shared.k_full(slot), S::kTileBytes);
#pragma unroll
            for (int j = 0; j < S::kPanels; ++j) {
                copy_box(shared.k + slot * S::kTileBytes + j * S::kKeys * 128, k_map, 64 * j,
                         kv_head, token, shared.k_full(slot));
            }
            barrier_wait(shared.v_empty(slot), phase);
            barrier_expect(shared.v_full(slot), S::kTileBytes);
#pragma unroll
            for (int j = 0; j < S::kPanels; ++j) {
                copy_box(shared.v + slot * S::kTileBytes + j * S::kKeys * 128, v_map, 64 * j,
                         kv_head, token, shared.v_full(slot));
            }
            ++loaded;
        }
    }
    publish({0, 0, 0, 0, 0, 0});  // no more tiles
    barrier_arrive(shared.q_full());
}

// The offset of tile number `tile`, uniform in a warp.
template <typename S>
__device__ __forceinline__ int place_of(unsigned tile) {
    const int slot = slot_of<S::kStages>(tile);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (S::kUniform) {
        return static_cast<int>(__reduce_max_sync(~0u, static_cast<unsigned>(slot)));
    }
#endif
    return slot;
}

template <typename T, typename S>
__device__ __forceinline__ void consume(const Problem& p, const ForwardPlan& plan,
                                        const Layout<S>& shared, int group) {
    constexpr int D = S::kDim;
    // Computed again where it is needed between tiles of queries: registers are scarce.
    const auto row_of_thread = [&] {
        const int thread = thread_here() % 128;
        return 64 * group + thread / 32 * 16 + thread % 32 / 4;
    };
    const int lane = static_cast<int>(threadIdx.x) % 32, c = lane % 4;
    const float scale = plan.scale_log2;
    const std::uint64_t q_at = rows_descriptor(shared.q + group * 64 * 128);
    const std::uint64_t k_at = rows_descriptor(shared.k);
    const std::uint64_t v_at = columns_descriptor(shared.v, S::kKeys * 128);

    unsigned used = 0;    // tiles of keys so far; their values are used one tile later
    unsigned number = 0;  // tiles of queries so far
    Softmax softmax;
    float s[S::kKeys / 2];              // scores, then weights
    float o[D / 2];                     // sums
    std::uint32_t w[S::kKeys / 16][4];  // weights in the second product's layout

    const auto release = [&](unsigned barrier) {
        if (lane == 0) barrier_arrive(barrier);
    };
    const auto wait_for_keys = [&] {
        barrier_wait(shared.k_full(slot_of<S::kStages>(used)), phase_of<S::kStages>(used));
    };
    const auto wait_for_values = [&](unsigned which) {
        barrier_wait(shared.v_full(slot_of<S::kStages>(which)), phase_of<S::kStages>(which));
    };
    // Consumers start their products in turns, each of them once for every tile of keys.
    const auto begin_turn = [&] { named_sync(kTurn + group, 256); };
    const auto end_turn = [&] { named_arrive(kTurn + (group + 1) % S::kGroups, 256); };
    if (group == S::kGroups - 1) end_turn();  // the first turn is the first group's
    // Products with the keys, or the values, in slot `at`.
    const auto start_scores = [&](int at) {
        const std::uint64_t k = further(k_at, at * S::kTileBytes);
#pragma unroll
        for (auto& x : s) asm volatile("" : "=f"(x));  // the old values are dead
        multiply_begin();
#pragma unroll
        for (int d = 0; d < D / 16; ++d) {
            multiply<T>(s, further(q_at, d / 4 * S::kRows * 128 + d % 4 * 32),
                        further(k, d / 4 * S::kKeys * 128 + d % 4 * 32), d > 0);
        }
        multiply_commit();
    };
    const auto start_sums = [&](int at) {
        wait_for_values(used - 1);  // values of the previous tile
        const std::uint64_t v = further(v_at, at * S::kTileBytes);
        multiply_begin();
#pragma unroll
        for (int i = 0; i < S::kKeys / 16; ++i) {
            multiply<T, 1>(o, w[i], further(v, i * 2048), 1);
        }
        multiply_commit();
    };
    const auto sums_done = [&] {
        multiply_wait<0>();
        keep_order(o);
        release(shared.v_empty(slot_of<S::kStages>(used - 1)));
    };
    while (true) {
        barrier_wait(shared.q_full(), number % 2);
        const ForwardTile tile = read_tile(shared.tile(number));
        if (tile.queries == 0) break;
        const int shift = tile.keys - tile.queries;  // position of a query minus its number
        const int keys = tile.keys, position = shift + tile.row0 + row_of_thread();
        const KeyTiles<S::kKeys> tiles(p.mask, shift + max(tile.row0, 0),
                                       shift + min(tile.row0 + S::kRows, tile.queries) - 1, keys);
        const int count = tiles.count();
        // Skips those of the first tiles that this group does not see.
        const int end = tile.row0 + 64 * group + 64;
        const int mine = max(end - 64, 0), last = min(end, tile.queries) - 1;
        const KeyTiles<S::kKeys> seen(p.mask, shift + mine, shift + last, keys);
        const int skipped = last < mine || seen.count() == 0
                                ? count
                                : min(max(tiles.end - seen.end, 0), tiles.end - tiles.begin);
        if (count > 0 && tiles.at(0) + S::kKeys > keys && tile.key0 + keys < p.tokens_k) {
            // Values past the end belong to another sequence. Their weights are 0, but 0 times NaN
            // or infinity is NaN, so they are overwritten with zeros.
            wait_for_values(used);
            const unsigned v = shared.v + slot_of<S::kStages>(used) * S::kTileBytes;
            const int from = (keys - tiles.at(0)) * 8;  // in pieces of 16 bytes
#pragma unroll
            for (int j = 0; j < S::kPanels; ++j) {
                for (int i = from + thread_here(); i < S::kKeys * 8; i += 128 * S::kGroups) {
                    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(
                                     v + j * S::kKeys * 128 + i * 16),
                                 "r"(0)
                                 : "memory");
                }
            }
            stores_before_products();
            named_sync(kAll, 128 * S::kGroups);
        }

        // Tiles from the last to the one at `begin`, then those of the sinks.
        const int begin = tiles.begin * S::kKeys, sink_end = tiles.sink_end * S::kKeys;
        const auto next = [&](int n) { return (n == begin ? sink_end : n) - S::kKeys; };
        softmax.reset();
#pragma unroll
        for (int i = 0; i < D / 2; ++i) o[i] = 0;
        for (int i = 0; i < skipped; ++i, ++used) {
            wait_for_keys();
            wait_for_values(used);
            __syncwarp();  // all lanes have left the wait before the next copies arrive
            release(shared.k_empty(slot_of<S::kStages>(used)));
            release(shared.v_empty(slot_of<S::kStages>(used)));
            begin_turn();
            end_turn();
        }
        if (skipped < count) {
            int n = tiles.at(skipped);
            wait_for_keys();
            begin_turn();
            start_scores(place_of<S>(used));
            end_turn();
            multiply_wait<0>();
            keep_order(s);
            release(shared.k_empty(slot_of<S::kStages>(used++)));
            if (next(n) < 0) release(shared.q_empty());
            if (seen.cut(n)) hide(s, p.mask, position, keys, n, 2 * c);
            softmax.weigh(s, scale);
            pack_weights<T>(w, s);
            for (n = next(n); n >= 0; n = next(n)) {
                const int keys_at = place_of<S>(used), values_at = place_of<S>(used - 1);
                wait_for_keys();
                begin_turn();
                start_scores(keys_at);
                start_sums(values_at);
                end_turn();
                multiply_wait<1>();
                keep_order(s);
                release(shared.k_empty(slot_of<S::kStages>(used)));
                if (next(n) < 0) release(shared.q_empty());  // the next queries can be loaded
                if (seen.cut(n)) hide(s, p.mask, position, keys, n, 2 * c);
                softmax.weigh(s, scale);
                keep_order(s);
                softmax.finish();
                sums_done();
                ++used;
                softmax.rescale(o);
                pack_weights<T>(w, s);
            }
        }
        if (skipped == count) {
            __syncwarp();
            release(shared.q_empty());
        }
        if (skipped < count) {
            start_sums(place_of<S>(used - 1));
            sums_done();
        }
        // Read again: registers are scarce in the loop.
        write_rows<T, D>(p, read_tile(shared.tile(number++)), row_of_thread(), c, softmax, o);
    }
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    forward_kernel(const __grid_constant__ Problem p, const __grid_constant__ ForwardPlan plan,
                   const __grid_constant__ PagedKeys paged,
                   const __grid_constant__ CUtensorMap q_map,
                   const __grid_constant__ CUtensorMap k_map,
                   const __grid_constant__ CUtensorMap v_map) {
    extern __shared__ unsigned char memory[];
    const Layout<S> shared(shared_address(memory));
    // The shuffle tells the compiler that all threads of a warp have the same group.
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
    if (threadIdx.x == 0) {
        prefetch_map(q_map);
        prefetch_map(k_map);
        prefetch_map(v_map);
        barrier_init(shared.q_full(), 1);
        barrier_init(shared.q_empty(), 4 * S::kGroups);  // a warp arrives once
        for (int i = 0; i < S::kStages; ++i) {
            barrier_init(shared.k_full(i), 1);
            barrier_init(shared.v_full(i), 1);
            barrier_init(shared.k_empty(i), 4 * S::kGroups);
            barrier_init(shared.v_empty(i), 4 * S::kGroups);
        }
        barriers_ready();
    }
    __syncthreads();
    wait_for_previous();
    let_next_start();
    const StageClock clock(plan.stamp);
    if (group == S::kGroups) {
        give_registers<S::kProducerRegisters>();
        if (threadIdx.x % 128 == 0) produce<S>(p, plan, paged, shared, q_map, k_map, v_map);
    } else {
        take_registers<S::kConsumerRegisters>();
        consume<T, S>(p, plan, shared, group);
    }
}

}  // namespace forward
}  // namespace mr::cuda::flash
