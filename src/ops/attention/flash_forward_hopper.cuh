// The forward for sm_90a, after FlashAttention-3. A block is one producer and two or three groups
// of four warps, consumers, with 64 queries each:
//  - the producer's one thread copies Q, K and V with TMA, as far ahead as shared memory reaches;
//  - a consumer starts the scores of the next tile of keys and the product of this tile's weights
//    with V, both behind its back, and while they run takes the softmax of the scores;
//  - consumers take turns in starting their products, so that one's softmax falls into the other's;
//  - the queries' sums never leave registers; weights go from scores to the second product there.
// Blocks stay and take tile after tile of queries, the ones with most keys first; while one is
// written, the next one's Q, K and V are already on their way.
#pragma once

#include "core/cuda/mma.cuh"
#include "core/cuda/tma.cuh"
#include "core/cuda/wgmma.cuh"
#include "ops/attention/flash_problem.h"

namespace mr::cuda::flash {

// D: numbers of a head, padded to what the products are made for (zeros cost time, nothing else).
template <int D, int kGroups_, int kKeys_, int kStages_, bool kOrdered_ = true>
struct ForwardShape {
    static constexpr int kDim = D;
    static constexpr int kGroups = kGroups_;  // consumers
    static constexpr int kRows = 64 * kGroups;
    static constexpr int kKeys = kKeys_;      // of a tile
    static constexpr int kStages = kStages_;  // tiles of K, and of V, on their way or in use
    static constexpr bool kOrdered = kOrdered_;
    static constexpr int kThreads = 128 * (kGroups + 1);
    static constexpr int kPanels = (D + 63) / 64;  // of 64 numbers, 128 bytes
    static constexpr int kQueryBytes = kPanels * kRows * 128;
    static constexpr int kTileBytes = kPanels * kKeys * 128;
    static constexpr int kBytes = kQueryBytes + 2 * kStages * kTileBytes + 1024 + 256;
    static constexpr int kProducerRegisters = kGroups == 2 ? 40 : 32;
    static constexpr int kConsumerRegisters = kGroups == 2 ? 232 : 160;
    static_assert(D % 16 == 0 && kKeys % 16 == 0 && kBytes <= 227 * 1024);
};

// How tiles of queries follow each other: sections of `section` (sequence, head) pairs whose keys
// and values fit in L2 together; in a section the last queries first, which see most keys.
struct ForwardPlan {
    int row_tiles = 0;  // of the longest sequence
    int pairs = 0;      // sequences * heads
    int section = 1;
    int tiles = 0;                // row_tiles * pairs
    unsigned* counter = nullptr;  // zero, and zero again afterwards; null: blocks take turns
    float scale_log2 = 1;         // scale * log2(e): weights are powers of two
    Stamp* stamp = nullptr;

    bool fold = false;
    struct Tile {
        int pair, row;  // row < 0: none
    };
    // The step-th tile of a block that takes turns with others.
    constexpr Tile tile(int t) const {
        const int whole = section * row_tiles, first = t / whole * section;
        const int width = std::min(section, pairs - first), rest = t - first * row_tiles;
        return {first + rest % width, row_tiles - 1 - rest / width};
    }
    constexpr int units() const { return (row_tiles + 1) / 2 * pairs; }
    constexpr Tile folded(int u, int half) const {
        const int rows = (row_tiles + 1) / 2, whole = section * rows, first = u / whole * section;
        const int width = std::min(section, pairs - first), rest = u - first * rows;
        const int j = rest / width, row = half ? j : row_tiles - 1 - j;
        return {first + rest % width, half && j == row_tiles - 1 - j ? -1 : row};
    }
};

inline ForwardPlan plan_forward(const Problem& p, int rows, std::size_t l2_bytes, Stamp* stamp) {
    ForwardPlan plan;
    plan.row_tiles = (p.max_queries + rows - 1) / rows;
    plan.pairs = p.sequences * p.heads;
    plan.tiles = plan.row_tiles * plan.pairs;
    // A third of L2 for keys and values: queries and results pass through it as well.
    const double bytes_of_pair = 4.0 * p.max_keys * p.head_dim / p.group;
    const double most = static_cast<double>(l2_bytes) / 3 / std::max(1.0, bytes_of_pair);
    plan.section = std::clamp(static_cast<int>(std::min(most, 1e9)), 1, plan.pairs);
    plan.scale_log2 = p.scale * 1.4426950408889634f;
    plan.stamp = stamp;
    plan.fold = true;
    return plan;
}

// What the producer tells the consumers about a tile.
struct ForwardTile {
    int row0, head, q, queries, keys, key0;
    int pad0, pad1;
};

namespace forward {

constexpr int kTurn = 1;  // barriers kTurn + consumer, and one of all consumers
constexpr int kAll = 4;
constexpr float kSlack = 8;  // a maximum may grow by 2^8 before what was summed is scaled again

__device__ __forceinline__ void named_sync(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The slots of a ring of tiles in shared memory, by how many tiles came before.
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
    // Of this tile of queries and the next: one is published while the other is written out.
    __device__ unsigned tile(unsigned phase) const { return barriers + 192 + 32 * phase; }
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
                                        const Layout<S>& shared, const CUtensorMap& q_map,
                                        const CUtensorMap& k_map, const CUtensorMap& v_map) {
    unsigned loaded = 0;  // tiles of keys
    unsigned q_phase = 0;
    const auto publish = [&](const ForwardTile& tile) {
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared.tile(q_phase)),
                     "r"(tile.row0), "r"(tile.head), "r"(tile.q), "r"(tile.queries)
                     : "memory");
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(shared.tile(q_phase) + 16),
                     "r"(tile.keys), "r"(tile.key0)
                     : "memory");
    };
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    int next = 0;
    const int end = plan.fold ? 2 * plan.units() : plan.tiles;
    for (int t = plan.fold ? 2 * block : block, round = 1; t < end; t = next, ++round) {
        if (plan.counter) {
            next = blocks +
                   static_cast<int>(atomicInc(plan.counter, static_cast<unsigned>(plan.tiles - 1)));
        } else if (plan.fold) {
            next = t % 2 == 0 ? t + 1 : t - 1 + 2 * blocks;
        } else {  // there and back again: who got a long tile gets a short one
            next = round * blocks + (round % 2 ? blocks - 1 - block : block);
        }
        const auto [pair, row] = plan.fold ? plan.folded(t / 2, t % 2) : plan.tile(t);
        if (row < 0) continue;
        const Sequence s = p.sequence(pair / p.heads);
        const int head = pair % p.heads, kv_head = head / p.group, row0 = row * S::kRows;
        if (row0 >= s.queries) continue;
        const KeyTiles<S::kKeys> tiles(p.mask, s.position(row0),
                                       s.position(min(row0 + S::kRows, s.queries) - 1), s.keys);
        barrier_wait(shared.q_empty(), q_phase ^ 1);
        publish({row0, head, s.q, s.queries, s.keys, s.k, 0, 0});
        barrier_expect(shared.q_full(), S::kQueryBytes);
        q_phase ^= 1;
#pragma unroll
        for (int i = 0; i < S::kPanels; ++i) {
            copy_box(shared.q + i * S::kRows * 128, q_map, 64 * i, head, s.q + row0,
                     shared.q_full());
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
    barrier_wait(shared.q_empty(), q_phase ^ 1);
    publish({-1, 0, 0, 0, 0, 0, 0, 0});  // no more
    barrier_arrive(shared.q_full());
}

// The running softmax of two rows a thread, g and g + 8 of its warp's 16.
struct Softmax {
    float top[2];     // what weights are relative to, times scale_log2
    float factor[2];  // by which what was summed before is to be multiplied
    float sum[2];     // of this thread's weights

    __device__ __forceinline__ void reset() {
        top[0] = top[1] = -INFINITY;
        sum[0] = sum[1] = 0;
    }
    template <int kCount>
    __device__ __forceinline__ void weigh(float (&s)[kCount], float scale) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float most = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
            for (int i = 4; i < kCount; i += 4) {
                most = fmaxf(most, fmaxf(s[i + 2 * h], s[i + 2 * h + 1]));
            }
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2)) * scale;
            // A row decides for itself, so that its bits are its own.
            const float before = top[h];
            if (most > before + kSlack || before == -INFINITY) top[h] = most;
            const float base = top[h] == -INFINITY ? 0.0f : top[h];
            factor[h] = top[h] == before ? 1.0f : exp2_fast(before - base);
            float added[2] = {0, 0};
#pragma unroll
            for (int i = 0; i < kCount; i += 4) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float& x = s[i + 2 * h + e];
                    x = exp2_fast(fmaf(x, scale, -base));
                    added[e] += x;
                }
            }
            sum[h] = fmaf(sum[h], factor[h], added[0] + added[1]);
        }
    }
    // Never traps. The assembler cannot know, and so takes the exponentials before what comes next:
    // otherwise it puts them off until V's product, which they are to run beside, is waited for.
    __device__ __forceinline__ void finish() const {
        asm volatile(
            "{ .reg .pred p; setp.gt.f32 p, %0, 0f7F800000; @p trap; }" ::"f"(sum[0] + sum[1]));
    }
    template <int kCount>
    __device__ __forceinline__ void rescale(float (&o)[kCount]) const {
        if (__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) {
#pragma unroll
            for (int i = 0; i < kCount; i += 4) {
                o[i] *= factor[0];
                o[i + 1] *= factor[0];
                o[i + 2] *= factor[1];
                o[i + 3] *= factor[1];
            }
        }
    }
};

// Scores that a row does not see become -infinity. `position` is that of row g, `column` 2 c.
template <int kCount>
__device__ __forceinline__ void hide(float (&s)[kCount], const Mask& mask, int position, int keys,
                                     int n, int column) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int hi = mask.hi(position + 8 * h, keys) - n - column;
#pragma unroll
        for (int i = 0; i < kCount / 4; ++i) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                if (8 * i + e >= hi) s[4 * i + 2 * h + e] = -INFINITY;
            }
        }
        if (mask.window == Mask::kNever) continue;
        const int lo = mask.lo(position + 8 * h) - n - column, sinks = mask.sinks - n - column;
#pragma unroll
        for (int i = 0; i < kCount / 4; ++i) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int key = 8 * i + e;
                if (key < lo && key >= sinks) s[4 * i + 2 * h + e] = -INFINITY;
            }
        }
    }
}

template <typename T, int kCount>
__device__ __forceinline__ void pack_weights(std::uint32_t (&w)[kCount / 8][4],
                                             const float (&s)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) w[i][j] = pack<T>(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]);
    }
}

// Four lanes of a quad hold four words each of a row, 8 columns apart; afterwards each has the four
// words of one 16-byte piece: lane c the c-th.
__device__ __forceinline__ uint4 gather_quad(const std::uint32_t (&w)[4], int c) {
    const bool odd = c & 1, high = c & 2;
    std::uint32_t x[2][2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const std::uint32_t mine = odd ? w[2 * j + 1] : w[2 * j];
        const std::uint32_t theirs = __shfl_xor_sync(~0u, odd ? w[2 * j] : w[2 * j + 1], 1);
        x[j][0] = odd ? theirs : mine;
        x[j][1] = odd ? mine : theirs;
    }
    std::uint32_t y[4];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
        const std::uint32_t mine = high ? x[1][k] : x[0][k];
        const std::uint32_t theirs = __shfl_xor_sync(~0u, high ? x[0][k] : x[1][k], 2);
        y[k] = high ? theirs : mine;
        y[2 + k] = high ? mine : theirs;
    }
    return {y[0], y[1], y[2], y[3]};
}

template <typename T, typename S>
__device__ __forceinline__ void consume(const Problem& p, const ForwardPlan& plan,
                                        const Layout<S>& shared, int group) {
    constexpr int D = S::kDim;
    const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32;
    const int row_of_thread = 64 * group + thread / 32 * 16 + lane / 4, c = lane % 4;
    const float scale = plan.scale_log2;
    const std::uint64_t q_at = rows_descriptor(shared.q + group * 64 * 128);
    const std::uint64_t k_at = rows_descriptor(shared.k);
    const std::uint64_t v_at = columns_descriptor(shared.v, S::kKeys * 128);
    const auto release = [&](unsigned barrier) {
        if (lane == 0) barrier_arrive(barrier);
    };
    if constexpr (S::kOrdered) {  // the first turn is the first group's
        if (group == S::kGroups - 1) named_arrive(kTurn, 256);
    }

    unsigned used = 0;  // tiles of keys; V is one behind
    unsigned q_phase = 0;
    float s[S::kKeys / 2];
    float o[D / 2];
    std::uint32_t w[S::kKeys / 16][4];
    while (true) {
        barrier_wait(shared.q_full(), q_phase);
        const ForwardTile tile = read_tile(shared.tile(q_phase));
        if (tile.row0 < 0) break;
        const int shift = tile.keys - tile.queries;  // position of a query minus its number
        const int keys = tile.keys, position = shift + tile.row0 + row_of_thread;
        const KeyTiles<S::kKeys> tiles(p.mask, shift + tile.row0,
                                       shift + min(tile.row0 + S::kRows, tile.queries) - 1, keys);
        const int count = tiles.count();
        // Of the first tiles, those that this group does not see: it lets them pass.
        const int mine = tile.row0 + 64 * group, last = min(mine + 64, tile.queries) - 1;
        const KeyTiles<S::kKeys> seen(p.mask, shift + mine, shift + last, keys);
        const int skipped = last < mine || seen.count() == 0
                                ? count
                                : min(max(tiles.end - seen.end, 0), tiles.end - tiles.begin);
        Softmax softmax;
        softmax.reset();
#pragma unroll
        for (int i = 0; i < D / 2; ++i) o[i] = 0;

        const auto wait_for_keys = [&] {
            barrier_wait(shared.k_full(slot_of<S::kStages>(used)), phase_of<S::kStages>(used));
        };
        const auto wait_for_values = [&](unsigned which) {
            barrier_wait(shared.v_full(slot_of<S::kStages>(which)), phase_of<S::kStages>(which));
        };
        const auto start_scores = [&] {
            const std::uint64_t k = further(k_at, slot_of<S::kStages>(used) * S::kTileBytes);
#pragma unroll
            for (int d = 0; d < D / 16; ++d) {
                multiply<T>(s, further(q_at, d / 4 * S::kRows * 128 + d % 4 * 32),
                            further(k, d / 4 * S::kKeys * 128 + d % 4 * 32), d > 0);
            }
            multiply_commit();
        };
        const auto start_sums = [&] {  // with the values of the tile before `used`
            const std::uint64_t v = further(v_at, slot_of<S::kStages>(used - 1) * S::kTileBytes);
#pragma unroll
            for (int i = 0; i < S::kKeys / 16; ++i) {
                multiply<T, 1>(o, w[i], further(v, i * 2048), 1);
            }
            multiply_commit();
        };

        if (count > 0 && tiles.at(0) + S::kKeys > keys && tile.key0 + keys < p.tokens_k) {
            // Values behind the end are another sequence's: 0 times whatever they are is 0 only
            // if they are.
            wait_for_values(used);
            const unsigned v = shared.v + slot_of<S::kStages>(used) * S::kTileBytes;
            const int from = (keys - tiles.at(0)) * 8;  // in pieces of 16 bytes
#pragma unroll
            for (int j = 0; j < S::kPanels; ++j) {
                for (int i = from + thread + 128 * group; i < S::kKeys * 8; i += 128 * S::kGroups) {
                    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(
                                     v + j * S::kKeys * 128 + i * 16),
                                 "r"(0)
                                 : "memory");
                }
            }
            stores_before_products();
            named_sync(kAll, 128 * S::kGroups);
        }
        for (int i = 0; i < skipped; ++i, ++used) {
            wait_for_keys();
            release(shared.k_empty(slot_of<S::kStages>(used)));
            wait_for_values(used);
            release(shared.v_empty(slot_of<S::kStages>(used)));
            if (S::kOrdered && i + 1 < count) {
                named_sync(kTurn + group, 256);
                named_arrive(kTurn + (group + 1) % S::kGroups, 256);
            }
        }
        if (skipped < count) {
            // Tiles from the last to the one at `begin`, then those of the sinks.
            const int begin = tiles.begin * S::kKeys, sink_end = tiles.sink_end * S::kKeys;
            const auto next = [&](int n) { return (n == begin ? sink_end : n) - S::kKeys; };
            int n = tiles.at(skipped);
            wait_for_keys();
            multiply_begin();
            start_scores();
            multiply_wait<0>();
            keep_order(s);
            release(shared.k_empty(slot_of<S::kStages>(used++)));
            if (seen.cut(n)) hide(s, p.mask, position, keys, n, 2 * c);
            softmax.weigh(s, scale);
            pack_weights<T>(w, s);
            for (n = next(n); n >= 0; n = next(n)) {
                wait_for_keys();
                if constexpr (S::kOrdered) named_sync(kTurn + group, 256);
                multiply_begin();
                start_scores();
                wait_for_values(used - 1);
                multiply_begin();
                start_sums();
                if constexpr (S::kOrdered) {
                    named_arrive(kTurn + (group + 1) % S::kGroups, 256);
                }
                multiply_wait<1>();
                keep_order(s);
                release(shared.k_empty(slot_of<S::kStages>(used)));
                if (seen.cut(n)) hide(s, p.mask, position, keys, n, 2 * c);
                softmax.weigh(s, scale);
                keep_order(s);
                softmax.finish();
                multiply_wait<0>();
                keep_order(o);
                release(shared.v_empty(slot_of<S::kStages>(used - 1)));
                ++used;
                softmax.rescale(o);
                pack_weights<T>(w, s);
            }
        }
        release(shared.q_empty());
        if (skipped < count) {
            wait_for_values(used - 1);
            multiply_begin();
            start_sums();
            multiply_wait<0>();
            keep_order(o);
            release(shared.v_empty(slot_of<S::kStages>(used - 1)));
        }

        // Read again: registers are scarce in the loop.
        const ForwardTile to_write = read_tile(shared.tile(q_phase));
        q_phase ^= 1;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float sum = softmax.sum[h];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            const bool any = softmax.top[h] != -INFINITY;
            const float factor = any ? 1.0f / sum : 0.0f;
            const int query = to_write.row0 + row_of_thread + 8 * h;
            const bool there = query < to_write.queries;
            T* to = p.out.row<T>(to_write.q + query, to_write.head, p.head_dim);
#pragma unroll
            for (int i = 0; i < (D + 31) / 32; ++i) {
                std::uint32_t words[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int at = 4 * (4 * i + j) + 2 * h;
                    words[j] = at < D / 2 ? pack<T>(o[at % (D / 2)] * factor,
                                                    o[(at + 1) % (D / 2)] * factor)
                                          : 0;
                }
                const uint4 piece = gather_quad(words, c);
                const int d = 32 * i + 8 * c;
                if (there && d < p.head_dim) *reinterpret_cast<uint4*>(to + d) = piece;
            }
            if (there && c == 0) {
                p.lse[static_cast<std::int64_t>(to_write.head) * p.tokens_q + to_write.q + query] =
                    any ? (softmax.top[h] + log2f(sum)) * 0.6931471805599453f : -INFINITY;
            }
        }
    }
}

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    forward_kernel(const __grid_constant__ Problem p, const __grid_constant__ ForwardPlan plan,
                   const __grid_constant__ CUtensorMap q_map,
                   const __grid_constant__ CUtensorMap k_map,
                   const __grid_constant__ CUtensorMap v_map) {
    extern __shared__ unsigned char memory[];
    const Layout<S> shared(shared_address(memory));
    // The compiler is told what it cannot see: all threads of a warp have the same group.
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
        if (threadIdx.x % 128 == 0) produce<S>(p, plan, shared, q_map, k_map, v_map);
    } else {
        take_registers<S::kConsumerRegisters>();
        consume<T, S>(p, plan, shared, group);
    }
}

}  // namespace forward
}  // namespace mr::cuda::flash
