// Decode attention at the speed of memory, for long caches (sm_80 and up). It has the products,
// parts and bits of decode.cuh with another distribution of the work.
//
// In decode.cuh a block reads some parts and ends, and loads the keys of a part only when the sums
// of the last part are complete. Here one persistent block per multiprocessor, three teams of four
// warps, does all of the work. All parts of all rows and heads are one list, of which every team
// has an equal share. Keys and values flow through ring buffers in shared memory, one for each warp
// (cp.async, 16 keys per stage), which run ahead across parts, heads and sequences.
#include "core/cuda/device.h"
#include "ops/attention/paged/products.cuh"
#include "ops/attention/paged/shares.cuh"

namespace mr::cuda::attn {
namespace {

constexpr int kPartsInFlight = 16;  // registers are free when parts are combined

// last_to_arrive() for a team that has written `mine` of `all` parts.
template <typename Team>
__device__ __forceinline__ bool last_of_parts(unsigned* counter, int mine, int all, bool* flag,
                                              Team team) {
    team.sync();
    if (team.thread() == 0) {
        unsigned before;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                     : "=r"(before)
                     : "l"(counter), "r"(mine)
                     : "memory");
        *flag = before + static_cast<unsigned>(mine) == static_cast<unsigned>(all);
        if (*flag) *counter = 0;
    }
    team.sync();
    return *flag;
}

// combine() with one row per warp: a lane computes the four sums (of every fourth part each) that
// four warps compute there.
template <typename T, int D, bool kViews>
__device__ __forceinline__ void combine_rows(const Args& a, const TileOf<kViews>& t, int head,
                                             int warp, int lane) {
    const int column = 4 * lane;
    const Places places = t.places();
#pragma unroll 1
    for (int r = warp; r < t.rows; r += kDecodeWarps) {
        const MemoryParts<1> parts(a, t.slot + static_cast<std::int64_t>(r) * a.kv_heads, D);
        float top = -INFINITY;
        for (int p = places.first + lane; p < places.end; p += 32) {
            if (places.hold(p)) top = fmaxf(top, parts.top(p).x);
        }
        const float base = base_of(warp_max(top));
        float sums[4][4] = {}, weights[4] = {};
#pragma unroll 1
        for (int p0 = places.first; p0 < places.end; p0 += kPartsInFlight) {
            float4 x[kPartsInFlight];
#pragma unroll
            for (int i = 0; i < kPartsInFlight; ++i) {
                const int p = p0 + i;
                x[i] = float4{0, 0, 0, 0};
                if (!places.hold(p) || column >= D) continue;
                x[i] = __ldcg(reinterpret_cast<const float4*>(
                    parts.sums + static_cast<std::int64_t>(p) * D + column));
            }
            // Lane i has the factor of the part at p0 + i.
            const int mine = p0 + lane;
            const float2 of =
                lane < kPartsInFlight && places.hold(mine) ? parts.top(mine) : float2{-INFINITY, 0};
            const float factor = exp2_fast(of.x - base);
#pragma unroll
            for (int i = 0; i < kPartsInFlight; ++i) {
                const float w = __shfl_sync(~0u, factor, i);
                weights[i % 4] = fmaf(w, __shfl_sync(~0u, of.y, i), weights[i % 4]);
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
        for (int e = 0; e < 4; e += 2) {
            const auto sum = [&](int i) {
                return (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
            };
            MemoryLink{}.template store<T>(a, at + e, {sum(e), sum(e + 1)}, weight);
        }
    }
}

template <typename T, int D, int kTeams, int kStages, bool kViews>
struct StreamShared {
    static constexpr int kRingBytes = TeamStream<T, D, kStages, kViews>::kBytes;
    alignas(128) std::byte rings[kTeams * kDecodeWarps * kRingBytes];
    DecodeShared<D, TileOf<kViews>> teams[kTeams];
    ShareList<kViews> list;
    Share shares[kTeams];
};

// kViews: see TileOf.
template <typename T, int D, int kTeams, int kStages, bool kViews>
__global__ void __launch_bounds__(kTeams* kDecodeThreads, 1)
    stream_kernel(const __grid_constant__ Args a, int tiles) {
    using Stream = TeamStream<T, D, kStages, kViews>;
    using Shared = StreamShared<T, D, kTeams, kStages, kViews>;
    let_next_start();
    extern __shared__ __align__(128) std::byte memory[];
    auto& all = *reinterpret_cast<Shared*>(memory);
    const ShareList<kViews>& list = all.list;
    wait_for_previous();
    const StageClock clock(a.stamp);
    bring_near(a, tiles);

    const int number = static_cast<int>(threadIdx.x) / kDecodeThreads;
    const WarpsTeam<kDecodeThreads> team{number * kDecodeThreads, 1 + number};
    DecodeShared<D, TileOf<kViews>>& shared = all.teams[number];
    const int warp = team.thread() / 32, lane = team.thread() % 32;
    const int g = lane / 4, c = lane % 4;

    list_sections<T, D>(a, tiles, all.list);
    // Neighbouring stretches go to different multiprocessors.
    const int place = number * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
    const Share& share = all.shares[number];
    if (warp == 0) {
        const Share mine = share_of(list, place, static_cast<int>(gridDim.x) * kTeams, lane);
        if (lane == 0) all.shares[number] = mine;
    }
    team.sync();
    Walk<kViews> walk;
    walk.begin(list, share);
    if (walk.left == 0) return;

    Stream stream;
    stream.ring = shared_address(all.rings) +
                  static_cast<unsigned>((number * kDecodeWarps + warp) * Stream::kBytes);
    stream.begin(a, list, share, walk, warp, lane);
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) stream.fetch(a, list, share, warp, lane);

    std::uint32_t q[D / 8];
    const auto load_q = [&] {
        const TileOf<kViews>& t = list.tiles[list.tile(walk.section)];
        load_row<T, D>(
            q, asking<T>(a, t.of_sinks(walk.step)) + t.at(a, min(g, t.rows - 1), walk.head, D), c,
            g < t.rows);
    };
    load_q();

    // The addresses that this lane reads of a stage, see swizzled(): of keys two rows, of every 64
    // bytes the c-th 16; of values four rows, of every 128 bytes the g-th 16.
    const unsigned key_row = stream.ring + static_cast<unsigned>(key_of_row(g) * Stream::kRowBytes);
    const unsigned keys_at[2] = {
        key_row + static_cast<unsigned>(swizzled(key_of_row(g), c) * 16),
        key_row + static_cast<unsigned>(swizzled(key_of_row(g), c + 4) * 16)};
    const unsigned value_row = stream.ring + static_cast<unsigned>(4 * c * Stream::kRowBytes);
    const unsigned values_at[2] = {value_row + static_cast<unsigned>(swizzled(4 * c, g) * 16),
                                   value_row + static_cast<unsigned>(swizzled(4 * c + 1, g) * 16)};
    unsigned slot = 0;
    const auto arrived = [&] {  // waits for the oldest stage
        wait_for_copies<kStages - 1>();
        __syncwarp();
    };
    const auto taken = [&] {  // frees the oldest stage: the next copies go to its slot
        __syncwarp();
        stream.fetch(a, list, share, warp, lane);
        slot = slot + Stream::kStageBytes == Stream::kBytes ? 0 : slot + Stream::kStageBytes;
    };

    int mine = 0;  // parts of this tile and head done by this team
#pragma unroll 1
    while (true) {
        const int tile = list.tile(walk.section);
        const TileOf<kViews>& t = list.tiles[tile];
        const int rows = t.rows;
        const int now = part_of(walk.step * kStepKeys, t.shorts(a));
        const int from = part_begin(now, t.shorts(a)) + kWarpKeys * warp;
        const int hi = t.part_end(a, now);
        const int steps = hi > from ? (hi - from + kStepKeys - 1) / kStepKeys : 0;
        KeyRange sees[2];  // rows 2 c and 2 c + 1
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            sees[e] = 2 * c + e < rows ? t.sees(a, 2 * c + e, now) : KeyRange{0, 0};
        }
        WarpSums<D> sums;
        sums.clear();
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            arrived();
            std::uint32_t k[2][D / 8];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
#pragma unroll
                for (int i = 0; i < D / 32; ++i) {
                    load16(k[h] + 4 * i,
                           keys_at[i % 2] + slot + h * 2 * Stream::kRowBytes + i / 2 * 128);
                }
            }
            taken();
            const Scores scores = score<T, D>(k, q);
            const Weights weights = sums.template weigh<T>(
                scores, from + step * kStepKeys + key_of_row(g), sees, a.scale);
            arrived();
            std::uint32_t v[4][D / 16];
#pragma unroll
            for (int h = 0; h < 4; ++h) {
#pragma unroll
                for (int i = 0; i < D / 64; ++i) {
                    load16(v[h] + 4 * i, values_at[h % 2] + slot + h * Stream::kRowBytes + i * 128);
                }
            }
            taken();
            sums.template add<T>(weights, v);
        }

        // Neither is kept while the steps are computed.
        const int part = part_of(computed_here(walk.step) * kStepKeys, t.shorts(a));
        const int head = computed_here(walk.head);
        walk.advance(list, share, a.kv_heads, list.is_long(walk.section) ? kLongSteps : 1);
        const bool more = walk.left > 0;
        const bool ends = !more || list.tile(walk.section) != tile || walk.head != head;
        // Loaded while the sums are added. After the sinks comes another q.
        if (more && (ends || (t.of_sinks(part) && !t.of_sinks(walk.step)))) load_q();

        team.sync();  // the sums of the previous part have been read
        if (team.thread() == 0) {
            shared.tile = t;
            shared.tile.slot += head;
        }
        sums.put(shared, warp, g, c, rows);
        team.sync();
        merge_warps<T>(a, head, part, rows, shared, team, MemoryLink{});
        ++mine;
        if (ends) {
            const int parts = t.parts();
            if (parts > 1) {
                bool last = mine == parts;
                if (last) {
                    team.sync();
                } else {
                    last = last_of_parts(a.counters + shared.tile.slot, mine, parts, &shared.last,
                                         team);
                }
                if (last && rows > 1) {
                    combine_rows<T, D, kViews>(a, shared.tile, head, warp, lane);
                } else if (last) {
                    combine<T>(
                        a, shared.tile, head, D, shared.sums, team, MemoryLink{},
                        [&](std::int64_t slot) { return MemoryParts<kPartsInFlight>(a, slot, D); });
                }
            }
            mine = 0;
        }
        if (!more) break;
    }
    wait_for_copies<0>();
}

template <typename T, int D, int kTeams, int kStages, bool kViews>
bool start(const Context& ctx, int blocks, int tiles, const Args& args) {
    using Shared = StreamShared<T, D, kTeams, kStages, kViews>;
    constexpr auto kKernel = stream_kernel<T, D, kTeams, kStages, kViews>;
    static_assert(kTeams * kDecodeThreads >= kMostSharedTiles);
    static const bool fits = [] {
        if (this_gpu().shared_per_block < sizeof(Shared) + 1024) return false;
        allow_shared(kKernel, sizeof(Shared));
        return true;
    }();
    if (!fits) return false;
    launch(ctx, dim3(static_cast<unsigned>(blocks)), kTeams * kDecodeThreads, sizeof(Shared),
           kKernel, args, tiles);
    return true;
}

template <typename T, bool kViews>
bool start_for(const Context& ctx, int blocks, int tiles, const Args& args) {
    if (args.head_dim == 128) return start<T, 128, 3, 2, kViews>(ctx, blocks, tiles, args);
    return args.head_dim == 64 && start<T, 64, 3, 4, kViews>(ctx, blocks, tiles, args);
}
template <typename T>
bool start_for(const Context& ctx, int blocks, int tiles, const Args& args) {
    return (args.has_views() ? start_for<T, true> : start_for<T, false>)(ctx, blocks, tiles, args);
}

}  // namespace

bool decode_stream_on_tensor_cores(const Context& ctx, DType dtype, int multiprocessors,
                                   std::int64_t tiles, const Args& args) {
    if (tiles > kMostSharedTiles) return false;
    const int count = static_cast<int>(tiles);
    if (dtype == DType::bf16) return start_for<bf16>(ctx, multiprocessors, count, args);
    return dtype == DType::f16 && start_for<__half>(ctx, multiprocessors, count, args);
}

}  // namespace mr::cuda::attn
