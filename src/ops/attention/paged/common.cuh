// Shared by the attention kernels over pages: how the partial results of parts of the keys
// (parts.h) are combined, and how kernels are started.
#pragma once

#include <algorithm>

#include "core/cuda/kernel.cuh"
#include "core/cuda/mma.cuh"
#include "ops/attention/paged/tile.cuh"

namespace mr::cuda::attn {

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// The number to subtract before the exponential: 0 for a row without a finite score, so that its
// weights become zero.
__device__ __forceinline__ float base_of(float top) { return top == -INFINITY ? 0.0f : top; }

// Arrives at a counter. True in every thread of the last of `teams` teams, which resets the counter
// and can read the others' earlier writes from L2. `flag` is in shared memory.
template <typename Team>
__device__ __forceinline__ bool last_to_arrive(unsigned* counter, unsigned teams, bool* flag,
                                               Team team) {
    team.sync();
    if (team.thread() == 0) {
        unsigned before;
        asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(counter)
                     : "memory");
        *flag = before + 1 == teams;
        if (*flag) *counter = 0;
    }
    team.sync();
    return *flag;
}

__device__ __forceinline__ float normalised(float sum, float weight) {
    return weight == 0 ? 0.0f : sum / weight;
}
template <typename T>
__device__ __forceinline__ void store_normalised(const Args& a, std::int64_t at, float sum,
                                                 float weight) {
    static_cast<T*>(a.out)[at] = from_f32<T>(normalised(sum, weight));
}
// Tile `tile` of `tiles` in a kernel in which every block lists all tiles; past the last, an empty
// tile. Rows that see nothing have no part, so this function writes their zeros.
template <typename T, int D, bool kViews>
__device__ __forceinline__ TileOf<kViews> listed_tile(const Args& a, int tiles, int tile) {
    TileOf<kViews> t{};
    if (tile < tiles) {
        t = rows_at<TileOf<kViews>>(a, tile / a.row_tiles, tile % a.row_tiles, 0);
        if (t.rows > 0) t.see(a, last_position(a, t), tile / a.row_tiles);
    }
    if (t.rows > 0 && t.parts() == 0 &&
        tile % static_cast<int>(gridDim.x) == static_cast<int>(blockIdx.x)) {
        for (int head = 0; head < a.kv_heads; ++head) {
            for (int i = 0; i < t.rows * D; ++i) {
                store_normalised<T>(a, t.at(a, i / D, head, D) + i % D, 0, 0);
            }
        }
    }
    return t;
}

// Where a decode team reads its inputs and writes its results: here, global memory between kernels.
// step_link.cuh has another link.
struct MemoryLink {
    static constexpr bool kTagged = false;
    // Elements `at` and `at` + 1 of out; `at` is even.
    template <typename T>
    __device__ __forceinline__ void store(const Args& a, std::int64_t at, const float2& sums,
                                          float weight) const {
        const float2 pair{normalised(sums.x, weight), normalised(sums.y, weight)};
        T* to = static_cast<T*>(a.out) + at;
        if constexpr (sizeof(T) == 2) {
            *reinterpret_cast<std::uint32_t*>(to) = pack<T>(pair.x, pair.y);
        } else {
            *reinterpret_cast<float2*>(to) = pair;
        }
    }
    // Writes columns d and d + 1 of a row's partial result to slot `place`, and with the first
    // columns also its largest score and sum of weights.
    template <int D>
    __device__ __forceinline__ void store_part(const Args& a, std::int64_t slot, int place, int d,
                                               const float2& sums, const float2& top) const {
        const std::int64_t at = slot * a.max_parts + place;
        *reinterpret_cast<float2*>(a.sums + at * D + d) = sums;
        if (d == 0) a.tops[at] = top;
    }
};
// The parts of one row in memory; every warp has the loads of kCount of them in flight.
template <int kCount>
struct MemoryParts {
    const float2* tops;
    const float* sums;
    int dim;
    __device__ MemoryParts(const Args& a, std::int64_t slot, int dim_)
        : tops(a.tops + slot * a.max_parts), sums(a.sums + slot * a.max_parts * dim_), dim(dim_) {}
    static constexpr int kInFlight = kCount;
    // A part's largest score and sum of weights.
    __device__ __forceinline__ float2 top(int p) const { return __ldcg(tops + p); }
    // The same, and four columns of the sums, of every fourth part from p on.
    __device__ __forceinline__ void load(int p, const Places& places, int column,
                                         float2 (&of)[kInFlight], float4 (&x)[kInFlight]) const {
#pragma unroll
        for (int i = 0; i < kInFlight; ++i, p += 4) {
            of[i] = float2{-INFINITY, 0};
            x[i] = float4{0, 0, 0, 0};
            if (!places.hold(p)) continue;
            of[i] = top(p);
            x[i] = __ldcg(reinterpret_cast<const float4*>(
                sums + static_cast<std::int64_t>(p) * dim + column));
        }
    }
};

// Combines the parts of a tile's rows in an order that depends on the parts' numbers alone: warp p
// % 4 adds part p, and one tree adds the warps' sums. `shared` holds 4 * (dim + 2) floats. A part
// in which a row sees nothing adds exact zeros. parts_of_slot(slot): the parts of a row.
template <typename T, typename TheTile, typename Team, typename Link, typename PartsOf>
__device__ __forceinline__ void combine(const Args& a, const TheTile& t, int kv_head, int dim,
                                        float* shared, Team team, const Link& link,
                                        PartsOf&& parts_of_slot) {
    const int warp = team.thread() / 32, lane = team.thread() % 32;
    const Places places = t.places();
    const int first = places.first + warp;
    float* sums = shared;             // [4, dim]
    float* weights = sums + 4 * dim;  // [4]
    float* tops = weights + 4;        // [4]
    for (int r = 0; r < t.rows; ++r) {
        const auto parts = parts_of_slot(t.slot + static_cast<std::int64_t>(r) * a.kv_heads);
        constexpr int kInFlight = decltype(parts)::kInFlight;
        float2 of[kInFlight];
        float4 x[kInFlight];
        // The loads of the first parts' sums are in flight together with those of all tops.
        parts.load(first, places, min(4 * lane, dim - 4), of, x);
        float top = -INFINITY;
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) top = fmaxf(top, of[i].x);
        for (int p = first + 4 * (kInFlight + lane); p < places.end; p += 128) {
            if (places.hold(p)) top = fmaxf(top, parts.top(p).x);
        }
        top = warp_max(top);
        if (lane == 0) tops[warp] = top;
        team.sync();
        const float base = base_of(fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3])));
        for (int column = 4 * lane; column < dim; column += 128) {
            float4 sum{0, 0, 0, 0};
            float weight = 0;
            for (int p0 = first; p0 < places.end; p0 += 4 * kInFlight) {
                if (p0 != first || column >= 128) {
                    parts.load(p0, places, column, of, x);
                }
#pragma unroll
                for (int i = 0; i < kInFlight; ++i) {
                    const float w = exp2_fast(of[i].x - base);
                    weight = fmaf(w, of[i].y, weight);
                    sum.x = fmaf(w, x[i].x, sum.x);
                    sum.y = fmaf(w, x[i].y, sum.y);
                    sum.z = fmaf(w, x[i].z, sum.z);
                    sum.w = fmaf(w, x[i].w, sum.w);
                }
            }
            *reinterpret_cast<float4*>(sums + warp * dim + column) = sum;
            if (column == 0) weights[warp] = weight;
        }
        team.sync();
        const float weight = (weights[0] + weights[1]) + (weights[2] + weights[3]);
        const std::int64_t at = t.at(a, r, kv_head, dim);
        for (int d = 2 * team.thread(); d < dim; d += 2 * kDecodeThreads) {
            const auto sum = [&](int i) {
                return (sums[i] + sums[dim + i]) + (sums[2 * dim + i] + sums[3 * dim + i]);
            };
            link.template store<T>(a, at + d, {sum(d), sum(d + 1)}, weight);
        }
        team.sync();  // the next row overwrites the shared sums
    }
}

// The end of a decode team that has written its parts, one of at most `most` teams on the same
// rows: the last team combines. `flag` and `shared` are free shared memory.
template <typename T, typename Team>
__device__ __forceinline__ void finish(const Args& a, const Tile& t, int kv_head, int dim, int most,
                                       float* shared, bool* flag, Team team) {
    const int teams = min(most, t.parts());
    if (teams > 1) {
        if (!last_to_arrive(a.counters + t.slot, static_cast<unsigned>(teams), flag, team)) return;
    } else {
        team.sync();
    }
    combine<T>(a, t, kv_head, dim, shared, team, MemoryLink{},
               [&](std::int64_t slot) { return MemoryParts<8>(a, slot, dim); });
}

// The arguments of attention_decode() for any kernel that runs it: args without a stamp; tiles = 0
// if there is nothing to do.
struct Decode {
    Args args{};
    std::int64_t tiles = 0;  // tiles of rows, in all sequences
    OpRecord work{};
    DecodeKernel kernel(int multiprocessors) const {
        return decode_kernel({tiles, args.kv_heads, args.group, args.max_keys, args.head_dim,
                              args.row_tiles, args.has_views()},
                             multiprocessors);
    }
    // The number of parts of a tile to process in parallel, if about `teams` teams fit.
    int parts_at_once(std::int64_t teams) const {
        const std::int64_t enough = teams / (tiles * args.kv_heads);
        return static_cast<int>(
            std::clamp<std::int64_t>(enough, 1, std::min(args.max_parts, 65535)));
    }
};
Decode decode_of(const Context& ctx, Tensor out, Tensor q, const ops::PagedKv& kv,
                 const ops::DeviceBatch& batch, const ops::AttentionMask& mask, float scale,
                 Tensor q_sinks = {});

// Host functions: attention_cuda.cu, decode.cu, many.cu, stream.cu, several.cu, plain.cu. Each
// returns whether it ran the work.
bool decode_several_on_tensor_cores(const Context& ctx, DType dtype, int multiprocessors,
                                    std::int64_t tiles, const Args& args);
bool decode_many_on_tensor_cores(const Context& ctx, DType dtype, int multiprocessors,
                                 std::int64_t tiles, const Args& args);
bool decode_stream_on_tensor_cores(const Context& ctx, DType dtype, int multiprocessors,
                                   std::int64_t tiles, const Args& args);
bool decode_on_tensor_cores(const Context& ctx, DType dtype, dim3 grid, const Args& args);
// out, so far over what rows see from their window on, gets the sinks before it added (sinks.cu).
// lse [heads, rows]: log of the sums of exp(score) so far.
void add_sinks(const Context& ctx, DType dtype, const ops::DeviceBatch& batch, const Args& args,
               const float* lse, int rows);
void decode_plain(const Context& ctx, DType q, DType cache, dim3 grid, const Args& args);
void prefill_plain(const Context& ctx, DType q, DType cache, dim3 grid, const Args& args);

}  // namespace mr::cuda::attn
