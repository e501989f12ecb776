// Decode attention for many sequences at once, at the speed of memory (sm_80 and up). It has the
// bits of decode.cuh with another distribution of the work.
//
// In decode.cuh a block has a part of 64 keys and every warp 16 of them; with thousands of parts a
// block spends its time on starting and ending. Here one persistent block per multiprocessor does
// all of the work, and a warp takes part after part: all parts of all rows and heads are one list,
// and every warp has an equal stretch of it. Keys and values flow through a ring buffer of the warp
// in shared memory (cp.async, 4 KB per stage), which runs ahead across parts, heads and sequences;
// the loop has no barrier. A warp does the work of a team's four warps, 16 keys each, one after the
// other, first all scores, then all values: the sums are the same, in the same order.
#include "core/cuda/device.h"
#include "ops/attention/paged/units.cuh"

namespace mr::cuda::attn {
namespace {

// Whether this warp's `mine` parts were the last of `all` to be written. If so, the counter is
// reset, and the parts of other warps can be read from L2.
__device__ __forceinline__ bool last_of_parts(unsigned* counter, int mine, int all, int lane) {
    __syncwarp();
    if (mine == all) return true;
    unsigned before = 0;
    if (lane == 0) {
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                     : "=r"(before)
                     : "l"(counter), "r"(mine)
                     : "memory");
        if (before + static_cast<unsigned>(mine) == static_cast<unsigned>(all)) *counter = 0;
    }
    before = __shfl_sync(~0u, before, 0);
    __syncwarp();
    return before + static_cast<unsigned>(mine) == static_cast<unsigned>(all);
}

// combine() by one warp: a lane computes the four sums (of every fourth part each) that four warps
// compute there.
template <typename T, int D, bool kViews>
__device__ __forceinline__ void combine_parts(const Args& a, const TileOf<kViews>& t, int head,
                                              int lane) {
    constexpr int kInFlight = 8;
    const int column = 4 * lane;
    const Places places = t.places();
#pragma unroll 1
    for (int r = 0; r < t.rows; ++r) {
        const std::int64_t slot = t.slot + head + static_cast<std::int64_t>(r) * a.kv_heads;
        const float2* part_tops = a.tops + slot * a.max_parts;
        const float* part_sums = a.sums + slot * a.max_parts * D;
        float top = -INFINITY;
        for (int p = places.first + lane; p < places.end; p += 32) {
            if (places.hold(p)) top = fmaxf(top, __ldcg(part_tops + p).x);
        }
        const float base = base_of(warp_max(top));
        float sums[4][4] = {}, weights[4] = {};
#pragma unroll 1
        for (int p0 = places.first; p0 < places.end; p0 += kInFlight) {
            float2 of[kInFlight];
            float4 x[kInFlight];
#pragma unroll
            for (int i = 0; i < kInFlight; ++i) {
                const int p = p0 + i;
                const bool on = places.hold(p);
                of[i] = on ? __ldcg(part_tops + p) : float2{-INFINITY, 0};
                x[i] = on && column < D
                           ? __ldcg(reinterpret_cast<const float4*>(
                                 part_sums + static_cast<std::int64_t>(p) * D + column))
                           : float4{0, 0, 0, 0};
            }
#pragma unroll
            for (int i = 0; i < kInFlight; ++i) {
                const float w = exp2_fast(of[i].x - base);
                weights[i % 4] = fmaf(w, of[i].y, weights[i % 4]);
                sums[i % 4][0] = fmaf(w, x[i].x, sums[i % 4][0]);
                sums[i % 4][1] = fmaf(w, x[i].y, sums[i % 4][1]);
                sums[i % 4][2] = fmaf(w, x[i].z, sums[i % 4][2]);
                sums[i % 4][3] = fmaf(w, x[i].w, sums[i % 4][3]);
            }
        }
        if (column >= D) continue;
        const float weight = (weights[0] + weights[1]) + (weights[2] + weights[3]);
        const std::int64_t at = t.at(a, r, head, D) + column;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            store_normalised<T>(a, at + e, (sums[0][e] + sums[1][e]) + (sums[2][e] + sums[3][e]),
                                weight);
        }
    }
}

// kViews: see TileOf.
template <typename T, int D, int kStages, bool kViews>
__global__ void __maxnreg__(152) many_kernel(const __grid_constant__ Args a, int tiles) {
    using S = ManyShape<D, kStages>;
    let_next_start();
    extern __shared__ __align__(128) std::byte memory[];
    __shared__ UnitList<kViews> list;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4, c = lane % 4;
    wait_for_previous();
    const StageClock clock(a.stamp);

    const std::int64_t units = list_units<T, D>(a, tiles, list);
    const int workers = static_cast<int>(gridDim.x) * kManyWarps;
    // Neighbouring stretches go to different multiprocessors.
    const int worker = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
    const int first = static_cast<int>(units * worker / workers);
    int left = static_cast<int>(units * (worker + 1) / workers) - first;
    if (left == 0) return;

    Unit unit = unit_at(list, first);
    KeyStream<T, D, kStages, kViews> stream;
    stream.ring = shared_address(memory) + warp * kStages * S::kStageBytes;
    stream.begin(a, list, unit, left);
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) stream.fetch(a, list, lane);

    std::uint32_t q[D / 8];
    const auto load_q = [&](const Unit& u) {
        const TileOf<kViews>& t = list.tiles[u.tile];
        load_row<T, D>(q, asking<T>(a, t.of_sinks(u.part)) + t.at(a, min(g, t.rows - 1), u.head, D),
                       c, g < t.rows);
    };
    load_q(unit);

    const LaneReads<S::kRowBytes> reads(stream.ring, lane);
    unsigned slot = 0;
    const auto arrived = [&] {  // waits for the oldest stage
        wait_for_copies<kStages - 1>();
        __syncwarp();
    };
    const auto taken = [&] {  // frees the oldest stage: the next copies go to its slot
        __syncwarp();
        stream.fetch(a, list, lane);
        slot = slot + S::kStageBytes == kStages * S::kStageBytes ? 0 : slot + S::kStageBytes;
    };

    int mine = 0;  // parts of this tile and head done by this warp
#pragma unroll 1
    while (true) {
        const TileOf<kViews>& t = list.tiles[unit.tile];
        const int from = unit.part * kStepKeys;
        const int hi = t.part_end(a, unit.part);
        const int subs = (hi - from + kSubKeys - 1) / kSubKeys;

        std::uint32_t low[kSubs] = {}, high[kSubs] = {};
        float top[kSubs][2] = {}, weight[kSubs][2] = {};
        {
            KeyRange sees[2];  // rows 2 c and 2 c + 1
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                sees[e] = 2 * c + e < t.rows ? t.sees(a, 2 * c + e, unit.part) : KeyRange{0, 0};
            }
            // The loops are not unrolled and arrays shift by one: that takes few registers.
#pragma unroll 1
            for (int sub = 0; sub < kSubs; ++sub) {
#pragma unroll
                for (int i = 0; i < kSubs; ++i) {
                    const bool end = i == kSubs - 1;
                    low[i] = end ? 0 : low[i + 1];
                    high[i] = end ? 0 : high[i + 1];
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        top[i][e] = end ? -INFINITY : top[i + 1][e];
                        weight[i][e] = end ? 0 : weight[i + 1][e];
                    }
                }
                if (sub >= subs) continue;
                arrived();
                std::uint32_t k[2][D / 8];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
#pragma unroll
                    for (int i = 0; i < D / 32; ++i) {
                        load16(k[h] + 4 * i,
                               reads.keys[i % 2] + slot + h * 2 * S::kRowBytes + i / 2 * 128);
                    }
                }
                taken();
                const Scores scores = score<T, D>(k, q);
                const Weights weights = weigh<T>(
                    scores, from + sub * kSubKeys + key_of_row(g), sees, a.scale,
                    [&](int e, float most) {
                        top[kSubs - 1][e] = most;
                        return base_of(most);
                    },
                    [&](int e, float sum) { weight[kSubs - 1][e] = sum; });
                low[kSubs - 1] = weights.b0;
                high[kSubs - 1] = weights.b1;
            }
        }

        const Unit next = left > 1 ? unit_after(list, a, unit) : Unit{-1, -1, -1};
        const bool ends = next.tile != unit.tile || next.head != unit.head;
        // Loaded while the values are multiplied. After the sinks comes another q.
        if (left > 1 && (ends || (kViews && next.part == t.begin))) load_q(next);

        float most[2], total[2], factor[kSubs][2];
        merge_subs(top, weight, most, total, factor);
        float value[D / 16][4];  // head_dim 16 w + g: rows 2 c, 2 c + 1; and the same of g + 8
#pragma unroll
        for (int w = 0; w < D / 16; ++w) {
#pragma unroll
            for (int e = 0; e < 4; ++e) value[w][e] = 0;
        }
#pragma unroll 1
        for (int sub = 0; sub < subs; ++sub) {
            arrived();
            constexpr int kHalf = D / 32;  // tiles at a time, limited by registers
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                std::uint32_t v[kHalf][4];
                const int swizzled = computed_here(reads.swizzle);
                const unsigned at = reads.values + slot;
#pragma unroll
                for (int w = 0; w < kHalf; ++w) {
                    load_transposed(v[w], at + (2 * (half * kHalf + w) ^ swizzled) * 16);
                }
                if (half == 1) taken();
#pragma unroll
                for (int w = 0; w < kHalf; ++w) {
                    float out[4] = {0, 0, 0, 0};
                    mma<T>(out, v[w], low[0], high[0]);
                    float(&to)[4] = value[half * kHalf + w];
#pragma unroll
                    for (int e = 0; e < 4; ++e) to[e] = fmaf(factor[0][e % 2], out[e], to[e]);
                }
            }
#pragma unroll
            for (int i = 0; i + 1 < kSubs; ++i) {
                low[i] = low[i + 1];
                high[i] = high[i + 1];
                factor[i][0] = factor[i + 1][0];
                factor[i][1] = factor[i + 1][1];
            }
        }

        const int parts = t.parts();
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int row = 2 * c + e;
            if (row >= t.rows) continue;
            if (parts == 1) {
                const std::int64_t at = t.at(a, row, unit.head, D) + g;
#pragma unroll
                for (int w = 0; w < D / 16; ++w) {
                    store_normalised<T>(a, at + 16 * w, value[w][e], total[e]);
                    store_normalised<T>(a, at + 16 * w + 8, value[w][2 + e], total[e]);
                }
                continue;
            }
            const std::int64_t at =
                (t.slot + unit.head + static_cast<std::int64_t>(row) * a.kv_heads) * a.max_parts +
                t.place(unit.part);
            float* to = a.sums + at * D + g;
#pragma unroll
            for (int w = 0; w < D / 16; ++w) {
                to[16 * w] = value[w][e];
                to[16 * w + 8] = value[w][2 + e];
            }
            if (g == 0) a.tops[at] = {most[e], total[e]};
        }
        ++mine;
        if (ends) {
            if (parts > 1 && last_of_parts(a.counters + t.slot + unit.head, mine, parts, lane)) {
                combine_parts<T, D, kViews>(a, t, unit.head, lane);
            }
            mine = 0;
        }
        if (--left == 0) break;
        unit = next;
    }
    wait_for_copies<0>();
}

template <typename T, int D, int kStages, bool kViews>
bool start(const Context& ctx, int blocks, int tiles, const Args& args) {
    constexpr auto kKernel = many_kernel<T, D, kStages, kViews>;
    constexpr std::size_t kBytes = ManyShape<D, kStages>::kBytes;
    static const bool fits = [] {
        if (this_gpu().shared_per_block < kBytes + sizeof(UnitList<kViews>) + 1024) return false;
        allow_shared(kKernel, kBytes);
        return true;
    }();
    if (!fits) return false;
    launch(ctx, dim3(static_cast<unsigned>(blocks)), kManyThreads, kBytes, kKernel, args, tiles);
    return true;
}

template <typename T, bool kViews>
bool start_many(const Context& ctx, int blocks, int tiles, const Args& args) {
    if (args.head_dim == 128) return start<T, 128, 3, kViews>(ctx, blocks, tiles, args);
    return args.head_dim == 64 && start<T, 64, 6, kViews>(ctx, blocks, tiles, args);
}
template <typename T>
bool start_many(const Context& ctx, int blocks, int tiles, const Args& args) {
    return (args.has_views() ? start_many<T, true> : start_many<T, false>)(ctx, blocks, tiles,
                                                                           args);
}

}  // namespace

// For keys in short parts.
bool decode_many_on_tensor_cores(const Context& ctx, DType dtype, int multiprocessors,
                                 std::int64_t tiles, const Args& args) {
    if (tiles > kMostTiles || args.max_keys > args.shorts * kStepKeys) return false;
    const int count = static_cast<int>(tiles);
    if (dtype == DType::bf16) return start_many<bf16>(ctx, multiprocessors, count, args);
    return dtype == DType::f16 && start_many<__half>(ctx, multiprocessors, count, args);
}

}  // namespace mr::cuda::attn
