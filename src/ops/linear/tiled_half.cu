// linear_small() for more than 256 tokens with f16 or bf16 weights: tiles of 128 rows of weights by
// 128 tokens at the tensor cores' rate. Every result has the bits that small_linear.cu gives it.
//
// A result is a tree of 8 sums, one for each eighth of the granules of 64 columns ("part", see
// wide_half.cu). A block has all parts of its tile and takes the granules in the order of the
// parts, so nothing is handed over between blocks: when a part ends, its sums join the tree. Of
// that at most three sums wait: two in registers and the sum of the first four parts in shared
// memory.
//
// Two blocks are a cluster. They have neighbouring strips of weights and the same tokens: each
// brings half of the inputs for both. A tile asks for 24 KB of L2 where its products take 512
// clocks; without the cluster it would be 32 KB, more than L2 gives to all multiprocessors.
//
// A block has a warp that brings things in by TMA, and two groups of four warps that multiply, 64
// rows each, with weights from registers and tokens from shared memory as in wide_half.cu.
#include <algorithm>
#include <type_traits>

#include "core/cuda/cluster.cuh"
#include "core/cuda/tensor_map.h"
#include "ops/linear/wide_half.cuh"

namespace mr::cuda::small {
namespace {

constexpr int kTileTokens = 128;
constexpr int kPair = 2;  // blocks of a cluster
constexpr int kTileStages = 4;
constexpr int kStageBytes = kPieceBytes + kTileTokens * 128;
constexpr int kSums = kTileTokens / 2;                   // registers of a thread
constexpr int kWaitingBytes = kSums * kMultipliers * 4;  // the sums of the first four parts
constexpr int kFinishTokens = 64;                        // whose results a warp stages at once
static_assert(kFinishTokens * kFinishStride * 4 <= kWaitingBytes / 8);
constexpr int kTileBytes =
    1024 + kTileStages * kStageBytes + kWaitingBytes + kTileTokens * 8 + 2 * kTileStages * 8;
static_assert(kTileBytes <= 222 * 1024);  // beside it a block that prepares inputs fits

struct TileLayout {
    unsigned ring, full, empty;
    float4* waiting;  // [8 warps][kSums / 4][32 lanes]; then a warp's results go through its part
    int2* where;
    __device__ explicit TileLayout(std::byte* base) {
        const unsigned start = shared_address(base);
        ring = (start + 1023) / 1024 * 1024;
        const int rest = static_cast<int>(ring - start) + kTileStages * kStageBytes;
        waiting = reinterpret_cast<float4*>(base + rest);
        where = reinterpret_cast<int2*>(base + rest + kWaitingBytes);
        full = start + rest + kWaitingBytes + kTileTokens * 8;
        empty = full + kTileStages * 8;
    }
};

// The tiles of a cluster, and of each the granules in the order of the parts. Tiles that run at the
// same time share weights: first all tokens of a pair of strips.
struct TileWalk {
    int token_tiles, units, clusters, granules;
    int unit, part = 0, granule = 0;
    __device__ TileWalk(const Params& p, int strips)
        : token_tiles((p.rows + kTileTokens - 1) / kTileTokens),
          units((strips + kPair - 1) / kPair * token_tiles),
          clusters(static_cast<int>(gridDim.x) / kPair),
          granules(static_cast<int>((p.k + kGranule - 1) / kGranule)),
          unit(static_cast<int>(blockIdx.x) / kPair) {}
    __device__ bool valid() const { return unit < units; }
    __device__ int strip() const {
        return unit / token_tiles * kPair + static_cast<int>(blockIdx.x) % kPair;
    }
    __device__ int first_token() const { return unit % token_tiles * kTileTokens; }
    __device__ int count(int of) const { return (granules - of + kWarps - 1) / kWarps; }
    __device__ void next() {
        granule += kWarps;
        if (granule < granules) return;
        granule = ++part;
        if (part < kWarps && part < granules) return;
        part = granule = 0;
        unit += clusters;
    }
};

struct TileBringer {
    const Params& p;
    const TileLayout& shared;
    const CUtensorMap &weights, &inputs;
    std::uint64_t policy;
    int lane;

    __device__ __forceinline__ void bring_weights(const TileWalk& at, int slot) const {
        const unsigned full = shared.full + 8 * slot;
        if (lane == 0) barrier_expect(full, kStageBytes);
        __syncwarp();
        if (lane >= 2) return;
        const bool gate = p.finish == Finish::gate;
        const int strip = at.strip();
        const int row = gate ? strip * (kStrip / 2) : strip * kStrip + lane * (kStrip / 2);
        copy_box(shared.ring + slot * kStageBytes + lane * (kPieceBytes / 2), weights,
                 at.granule * kGranule, row, gate ? lane : 0, full, policy);
    }
    // Half of the tokens, for both blocks.
    __device__ __forceinline__ void bring_inputs(const TileWalk& at, int slot) const {
        if (lane != 2) return;
        const int half = static_cast<int>(blockIdx.x) % kPair;
        copy_box_to(3, shared.ring + slot * kStageBytes + kPieceBytes + half * (kTileTokens * 64),
                    inputs, at.granule * kGranule, 0,
                    at.first_token() + half * (kTileTokens / kPair), shared.full + 8 * slot,
                    kEvictNormal);
    }
};

__device__ __forceinline__ void bring_tiles(const TileBringer& bringer, const TileWalk& begin) {
    TileWalk ahead = begin, at = begin;
#pragma unroll 1
    for (int i = 0; i < kTileStages && ahead.valid(); ++i, ahead.next()) {
        bringer.bring_weights(ahead, i);
    }
    wait_for_previous();
#pragma unroll 1
    for (int i = 0; i < kTileStages && at.valid(); ++i, at.next()) bringer.bring_inputs(at, i);
    Place<kTileStages> place;
    place.parity = 1;  // all have been filled once
#pragma unroll 1
    for (; at.valid(); at.next(), place.next()) {
        barrier_wait(bringer.shared.empty + 8 * place.slot, place.parity ^ 1);
        bringer.bring_weights(at, place.slot);
        bringer.bring_inputs(at, place.slot);
        __syncwarp();  // no lane still waits for what others have seen
    }
}

using HalfGranule = std::uint32_t[2][4];  // weights of a lane: 32 columns
__device__ __forceinline__ void load_half(HalfGranule& a, unsigned upper, unsigned lower) {
    const uint4 u = load16(upper), l = load16(upper + lower);
    a[0][0] = u.x, a[0][1] = l.x, a[0][2] = u.y, a[0][3] = l.y;
    a[1][0] = u.z, a[1][1] = l.z, a[1][2] = u.w, a[1][3] = l.w;
}
template <typename T>
__device__ __forceinline__ void multiply_half(float (&sum)[kSums], const HalfGranule& a,
                                              std::uint64_t tokens) {
    multiply_begin();
    multiply<T>(sum, a[0], tokens, 1);
    multiply<T>(sum, a[1], further(tokens, 32), 1);
    multiply_commit();
}

// What becomes of the sums. A kernel has one of them: code that runs once a tile comes from memory,
// and all of them together took longer to fetch than the products of a tile.
enum class TileFinish { floats, gates, any };

template <typename T, TileFinish kHow>
struct TileMultiplier {
    const Params& p;
    const TileLayout& shared;
    int lane, warp;
    unsigned upper, lower;  // where a lane's weights are in a stage
    Place<kTileStages> place;

    __device__ TileMultiplier(const Params& params, const TileLayout& layout)
        : p(params),
          shared(layout),
          lane(static_cast<int>(threadIdx.x) % 32),
          warp(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0)) {
        // Gate: 64 rows of gate, then the same 64 of up; a tile has 8 of each.
        const bool gate = p.finish == Finish::gate;
        const int g = row_of(lane / 4);
        upper = shared.ring + (warp * (gate ? 8 : 16) + g) * 128 + (lane % 4 ^ g) * 16;
        lower = gate ? kPieceBytes / 2 : 1024;
    }
    // Both blocks copy to this one's place of the inputs.
    __device__ __forceinline__ void release(int slot) const {
        if (lane < kPair) barrier_arrive_at(shared.empty + 8 * slot, lane);
    }
#ifdef MR_WHOLE
    __device__ __forceinline__ void part(float (&sum)[kSums], int granules) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) sum[i] = 0;
        Weights a, b;
        int used = -1, before = -1;
        const auto one = [&](Weights& w) {
            barrier_wait(shared.full + 8 * place.slot, place.parity);
            const unsigned at = place.slot * kStageBytes;
            multiply_wait<1>();
            if (before >= 0) release(before);
            load_weights(w, upper + at, lower);
            multiply_granule<T>(sum, w, shared.ring + at + kPieceBytes);
            before = used;
            used = place.slot;
            place.next();
        };
#pragma unroll 1
        for (int i = 0; i < granules / 2; ++i) {
            one(a);
            one(b);
        }
        if (granules % 2) one(a);
        multiply_wait<0>();
        keep_order(sum);
        if (before >= 0) release(before);
        if (granules > 0) release(used);
    }
#else
    // The sums of one part. While the products of one half granule run, the weights of the next are
    // loaded.
    __device__ __forceinline__ void part(float (&sum)[kSums], int granules) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) sum[i] = 0;
        HalfGranule a, b;
        int used = 0;
#pragma unroll 1
        for (int i = 0; i < granules; ++i) {
            barrier_wait(shared.full + 8 * place.slot, place.parity);
            const unsigned at = place.slot * kStageBytes;
            const std::uint64_t tokens = rows_descriptor(shared.ring + at + kPieceBytes);
            multiply_wait<1>();
            load_half(a, upper + at, lower);
            multiply_half<T>(sum, a, tokens);
            multiply_wait<1>();
            if (i > 0) release(used);
            load_half(b, (upper ^ 64) + at, lower);
            multiply_half<T>(sum, b, further(tokens, 64));
            used = place.slot;
            place.next();
        }
        multiply_wait<0>();
        keep_order(sum);
        if (granules > 0) release(used);
    }
#endif
    // Finish::store and add in f32, from registers: a row of eight lanes' results is 32 bytes.
    __device__ __forceinline__ void finish_floats(float (&sum)[kSums], int strip, int token) const {
        const int row = (strip * (kStrip / kTileRows) + warp) * kTileRows + row_of(lane / 4);
        token += lane % 4 * 2;
        float* const out = static_cast<float*>(p.out) + std::int64_t{token} * p.out_cols + row;
        const bool rows[2] = {row < p.n, row + 8 < p.n};
        const auto at = [&](int i) {
            return out + ((i / 4) * 8 + i % 2) * p.out_cols + i % 4 / 2 * 8;
        };
        const auto mine = [&](int i) {
            return rows[i % 4 / 2] && token + i / 4 * 8 + i % 2 < p.rows;
        };
        if (p.bias) {
            const float bias[2] = {rows[0] ? p.bias[row] : 0, rows[1] ? p.bias[row + 8] : 0};
#pragma unroll
            for (int i = 0; i < kSums; ++i) sum[i] += bias[i % 4 / 2];
        }
        if (p.finish == Finish::add) {
            float before[kSums];
#pragma unroll
            for (int i = 0; i < kSums; ++i) before[i] = mine(i) ? *at(i) : 0;
#pragma unroll
            for (int i = 0; i < kSums; ++i) sum[i] += before[i];
        }
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
            if (mine(i)) *at(i) = sum[i];
        }
    }
    // Finish::gate with silu in the compute type: a lane has gate and up of its results. The rows
    // of all warps go through shared memory, [tokens][64 rows], to be stored in 16 bytes.
    __device__ __forceinline__ void finish_gates(const float (&sum)[kSums], int strip,
                                                 int token) const {
        constexpr int kRow = kStrip / 2 * 2 + 16;  // bytes: another bank for every token
        std::byte* const stage = reinterpret_cast<std::byte*>(shared.waiting);
        const int in = warp * 8 + row_of(lane / 4), row = strip * (kStrip / 2);
        const float bias = p.bias && row + in < p.out_cols ? p.bias[row + in] : 0;
        multipliers_meet();  // all have read what waited
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
            if (i % 4 > 1) continue;
            const float up = p.bias ? sum[i + 2] + bias : sum[i + 2];
            const T v = from_f32<T>(__fmul_rn(activate<ops::Activation::silu>(sum[i]), up));
            const int t = i / 4 * 8 + lane % 4 * 2 + i % 2;
            *reinterpret_cast<T*>(stage + t * kRow + in * 2) = v;
        }
        multipliers_meet();
        const int thread = static_cast<int>(threadIdx.x), columns = thread % 8 * 8;
        T* const out = static_cast<T*>(p.out) + row + columns;
#pragma unroll
        for (int t = thread / 8; t < kTileTokens; t += kMultipliers / 8) {
            if (token + t >= p.rows || row + columns >= p.out_cols) continue;
            *reinterpret_cast<uint4*>(out + std::int64_t{token + t} * p.out_cols) =
                *reinterpret_cast<const uint4*>(stage + t * kRow + columns * 2);
        }
        multipliers_meet();  // before sums wait there again
    }
    // Every other finish: 64 tokens of the warp's rows at a time through its part of `waiting`.
    __device__ __forceinline__ void finish_any(const float (&sum)[kSums], int strip,
                                               int token) const {
        if (p.finish == Finish::qkv) {
            multipliers_meet();  // all have read those of the tile before
            const int i = static_cast<int>(threadIdx.x);
            if (i < kTileTokens && token + i < p.rows) shared.where[i] = place_of(p, token + i);
            multipliers_meet();
        }
        float* const stage = reinterpret_cast<float*>(shared.waiting + warp * (kSums / 4) * 32);
#pragma unroll 1
        for (int first = 0; first < kTileTokens; first += kFinishTokens) {
            __syncwarp();
#pragma unroll
            for (int n = 0; n < kFinishTokens / 8; ++n) {
                const float *v = sum + 4 * n, *w = v + kFinishTokens / 2;
                HalfSums::put<kFinishStride>(
                    stage, n, lane,
                    first == 0 ? float4{v[0], v[1], v[2], v[3]} : float4{w[0], w[1], w[2], w[3]});
            }
            __syncwarp();
#pragma unroll 1
            for (int t = 0; t < kFinishTokens && token + first + t < p.rows; t += 16) {
                finish_stage<T, kFinishStride>(
                    p, shared.where + first + t, stage + t * kFinishStride,
                    strip * (kStrip / kTileRows) + warp, token + first + t, lane);
            }
        }
        __syncwarp();  // before sums wait there again
    }

    __device__ __forceinline__ void run(TileWalk at) {
        float4* const waiting = shared.waiting + warp * (kSums / 4) * 32 + lane;
#pragma unroll 1
        for (; at.valid(); at.unit += at.clusters) {
            const int token = at.first_token(), strip = at.strip();
            float first[kSums];  // of the parts: see add_warps()
#pragma unroll 1
            for (int half = 0; half < 2; ++half) {
                const int begin = half * (kWarps / 2);
                float second[kSums], sum[kSums];
                part(sum, at.count(begin));
#pragma unroll
                for (int i = 0; i < kSums; ++i) first[i] = sum[i];
                part(sum, at.count(begin + 1));
#pragma unroll
                for (int i = 0; i < kSums; ++i) first[i] += sum[i];
                part(sum, at.count(begin + 2));
#pragma unroll
                for (int i = 0; i < kSums; ++i) second[i] = sum[i];
                part(sum, at.count(begin + 3));
#pragma unroll
                for (int i = 0; i < kSums; ++i) first[i] += second[i] + sum[i];
#pragma unroll
                for (int i = 0; i < kSums / 4; ++i) {
                    float* const v = first + 4 * i;
                    if (half == 0) {
                        waiting[i * 32] = float4{v[0], v[1], v[2], v[3]};
                    } else {
                        const float4 w = waiting[i * 32];
                        v[0] = w.x + v[0], v[1] = w.y + v[1];
                        v[2] = w.z + v[2], v[3] = w.w + v[3];
                    }
                }
            }
            if constexpr (kHow == TileFinish::floats) {
                finish_floats(first, strip, token);
            } else if constexpr (kHow == TileFinish::gates) {
                finish_gates(first, strip, token);
            } else {
                finish_any(first, strip, token);
            }
        }
    }
};

template <typename T, TileFinish kHow>
__global__ void __launch_bounds__(kWideThreads, 1)
    tiled_kernel(const __grid_constant__ Params p, int strips, std::uint64_t policy,
                 const __grid_constant__ CUtensorMap weights,
                 const __grid_constant__ CUtensorMap inputs) {
    let_next_start();
    extern __shared__ __align__(1024) std::byte memory[];
    const TileLayout shared(memory);
    const TileWalk walk(p, strips);
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    constexpr int kBringer = kMultipliers / 32;  // the warp
    if (warp == kBringer && lane == 0) {
        prefetch_map(weights);
        prefetch_map(inputs);
        for (int i = 0; i < kTileStages; ++i) {
            barrier_init(shared.full + 8 * i, 1);
            barrier_init(shared.empty + 8 * i, kPair * kMultipliers / 32);
        }
        barriers_ready();
    }
    __syncthreads();
    cluster_barrier();
    if (warp >= kBringer) {
        give_registers<24>();
        if (warp == kBringer) {
            bring_tiles(TileBringer{p, shared, weights, inputs, policy, lane}, walk);
        }
    } else {
        take_registers<240>();
        wait_for_previous();
        stamp_begin(p.stamp);
        TileMultiplier<T, kHow>(p, shared).run(walk);
        stamp_end(p.stamp);
    }
    // This block stays until the copies and arrivals of the other one are here.
    cluster_barrier();
}

template <typename T, TileFinish kHow>
void start_tiled(const Context& ctx, const Params& p, int strips) {
    static const int most = [] {
        allow_shared(tiled_kernel<T, kHow>, kTileBytes);
        return most_clusters(tiled_kernel<T, kHow>, kPair, kWideThreads, kTileBytes);
    }();
    const int units = (strips + kPair - 1) / kPair * ((p.rows + kTileTokens - 1) / kTileTokens);
    const DType type = std::is_same_v<T, bf16> ? DType::bf16 : DType::f16;
    const bool gate = p.finish == Finish::gate;
    const CUtensorMap weights =
        plane_rows_map(p.w, type, gate ? 2 : 1, gate ? p.out_cols : p.n, p.k, 1, kStrip / 2);
    const CUtensorMap inputs =
        head_rows_map(p.x, type, p.rows, 1, p.x_stride / 2, p.x_stride / 2, kTileTokens / kPair);
    launch_clusters(ctx, static_cast<unsigned>(std::min(most, units)), kPair, dim3(kWideThreads),
                    kTileBytes, tiled_kernel<T, kHow>, p, strips, kEvictNormal, weights, inputs);
}

}  // namespace

template <typename T>
void run_tiled(const Context& ctx, const Params& p, int strips) {
    const bool add_or_store = p.finish == Finish::store || p.finish == Finish::add;
    if (add_or_store && p.out_f32) return start_tiled<T, TileFinish::floats>(ctx, p, strips);
    if (p.finish == Finish::gate && p.activation == ops::Activation::silu && !p.out_f32 &&
        p.out_cols % 8 == 0) {
        return start_tiled<T, TileFinish::gates>(ctx, p, strips);
    }
    start_tiled<T, TileFinish::any>(ctx, p, strips);
}
template void run_tiled<bf16>(const Context&, const Params&, int);
template void run_tiled<__half>(const Context&, const Params&, int);

}  // namespace mr::cuda::small
