// linear_small() for more than 192 tokens with f16 or bf16 weights: tiles of 128 rows of weights by
// 128 tokens at the tensor cores' rate. Every result has the bits of small_linear.cu.
//
// A result is a tree of 8 sums, one for each eighth of the granules of 64 columns ("part", see
// wide_half.cu). A block takes the granules of its tile in the order of the parts. Two parts are a
// quarter, which is summed in registers; meanwhile the previous quarter waits in registers, and the
// sum of the first two in shared memory.
//
// Two blocks are a cluster. They have neighbouring strips of weights and the same tokens: each
// loads half of the inputs for both. A granule of a tile reads 24 KB from L2 in the 512 clocks of
// its products; without the cluster it would be 32 KB, more than L2 delivers.
//
// Tiles that cannot be distributed evenly are cut into quarters, and each cluster gets an equal
// number of those. The cluster with the first quarter of a tile finishes it: the others hand over
// their quarters through memory. All clusters of the grid run at once, so they may wait for each
// other; two such products at the same time, of different streams, may not (DeviceTurn). The
// counters of handed-over quarters are 0 before and after every product. The kernel that prepares
// inputs zeroes them; a product with ordered_x has no such kernel, and uses the counters that the
// previous product left at 0.
//
// A block has a producer warp that loads by TMA, and two groups of four warps that multiply, 64
// rows each, with weights from registers and tokens from shared memory as in wide_half.cu. The
// groups run independently: one multiplies while the other finishes.
#include <algorithm>
#include <type_traits>

#include "core/cuda/cluster.cuh"
#include "core/cuda/tensor_map.h"
#include "ops/linear/tiled_half.cuh"

namespace mr::cuda::small {
namespace {

struct TileBringer {
    const Params& p;
    const TilePlan& plan;
    const TileLayout& shared;
    const CUtensorMap &weights, &inputs;
    int lane;

    __device__ __forceinline__ void bring_weights(const GranuleWalk& at, int slot) const {
        const unsigned full = shared.full + 8 * slot;
        if (lane == 0) barrier_expect(full, kStageBytes);
        __syncwarp();
        if (lane >= 2) return;
        const bool gate = p.finish == Finish::gate;
        const int strip = plan.strip(at.piece.unit);
        const int row = gate ? strip * (kStrip / 2) : strip * kStrip + lane * (kStrip / 2);
        copy_box(shared.ring + slot * kStageBytes + lane * (kPieceBytes / 2), weights,
                 at.granule * kGranule, row, gate ? lane : 0, full);
    }
    // Half of the tokens, for both blocks.
    __device__ __forceinline__ void bring_inputs(const GranuleWalk& at, int slot) const {
        if (lane != 2) return;
        const int half = static_cast<int>(blockIdx.x) % kPair;
        copy_box_to(3, shared.ring + slot * kStageBytes + kPieceBytes + half * (kTileTokens * 64),
                    inputs, at.granule * kGranule, 0,
                    plan.first_token(at.piece.unit) + half * (kTileTokens / kPair),
                    shared.full + 8 * slot, kEvictNormal);
    }
};

__device__ __forceinline__ void bring_tiles(const TileBringer& bringer, const GranuleWalk& begin) {
    GranuleWalk ahead = begin, at = begin;
#pragma unroll 1
    for (int i = 0; i < kTileStages && ahead.valid; ++i, ahead.next()) {
        bringer.bring_weights(ahead, i);
    }
    wait_for_previous();
#pragma unroll 1
    for (int i = 0; i < kTileStages && at.valid; ++i, at.next()) bringer.bring_inputs(at, i);
    Place<kTileStages> place;
    place.parity = 1;  // all slots have been filled once
#pragma unroll 1
    for (; at.valid; at.next(), place.next()) {
        barrier_wait(bringer.shared.empty + 8 * place.slot, place.parity ^ 1);
        bringer.bring_weights(at, place.slot);
        bringer.bring_inputs(at, place.slot);
        __syncwarp();  // no lane may still poll the barrier
    }
}

// The finish of the sums. Each kernel has only one of them: code that runs once per tile is fetched
// from memory, and fetching all of them took longer than the products of a tile.
enum class TileFinish { floats, gates, records, any };
template <TileFinish kHow>
using TileParams = std::conditional_t<kHow == TileFinish::records, RecordParams, Params>;

template <typename T, TileFinish kHow>
struct TileMultiplier {
    const TileParams<kHow>& p;
    const TilePlan& plan;
    const TileLayout& shared;
    int lane, warp;
    unsigned upper, lower;  // a lane's weights in a stage
    Place<kTileStages> place;
    int used = -1;  // slot of the previous granule, which may still be read

    __device__ TileMultiplier(const TileParams<kHow>& params, const TilePlan& tiles,
                              const TileLayout& layout)
        : p(params),
          plan(tiles),
          shared(layout),
          lane(static_cast<int>(threadIdx.x) % 32),
          warp(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0)) {
        // Gate: 64 rows of gate, then the same 64 of up; a tile has 8 of each.
        const bool gate = p.finish == Finish::gate;
        const int g = row_of(lane / 4);
        upper = shared.ring + (warp * (gate ? 8 : 16) + g) * 128 + (lane % 4 ^ g) * 16;
        lower = gate ? kPieceBytes / 2 : 1024;
    }
    // Tells both blocks, because both copy inputs into this block's slot.
    __device__ __forceinline__ void release(int slot) const {
        if (lane < kPair) barrier_arrive_at(shared.empty + 8 * slot, lane);
    }
    // Starts the sums of one part. While the products of one half granule run, the weights of the
    // next are loaded.
    __device__ __forceinline__ void part(float (&sum)[kSums], int granules) {
        HalfGranule a, b;
#pragma unroll 1
        for (int i = 0; i < granules; ++i) {
            barrier_wait(shared.full + 8 * place.slot, place.parity);
            const unsigned at = place.slot * kStageBytes;
            const std::uint64_t tokens = rows_descriptor(shared.ring + at + kPieceBytes);
            multiply_wait<1>();
            load_half(a, upper + at, lower);
            multiply_half<T>(sum, a, tokens);
            multiply_wait<1>();
            if (used >= 0) release(used);
            load_half(b, (upper ^ 64) + at, lower);
            multiply_half<T>(sum, b, further(tokens, 64));
            used = place.slot;
            place.next();
        }
    }
    // The sums of two parts.
    __device__ __forceinline__ void quarter(float (&sum)[kSums], int number, int granules) {
        float odd[kSums];
#pragma unroll
        for (int i = 0; i < kSums; ++i) sum[i] = odd[i] = 0;
        keep_order(sum);
        keep_order(odd);
        multiply_begin();
        const int even_first = granules - 2 * number + kWarps - 1;  // granules from there on
        part(sum, even_first / kWarps);
        part(odd, (even_first - 1) / kWarps);
        multiply_wait<0>();
        keep_order(sum);
        keep_order(odd);
        if (used >= 0) release(used);
        used = -1;
#pragma unroll
        for (int i = 0; i < kSums; ++i) sum[i] += odd[i];
    }
    __device__ __forceinline__ int group() const { return warp / 4; }
    __device__ __forceinline__ void group_meets() const {
        asm volatile("bar.sync %0, %1;" ::"r"(3 + group()), "n"(kGroupThreads) : "memory");
    }
    // The place where quarter `number` (from 1 on) of a tail tile is handed over.
    __device__ __forceinline__ int handed(int unit, int number) const {
        return ((unit - (plan.deal.units - plan.deal.tail)) * (kQuarters - 1) + number - 1) *
                   kPair +
               static_cast<int>(blockIdx.x) % kPair;
    }
    __device__ __forceinline__ void hand_over(const float (&sum)[kSums], int at) const {
        auto* to =
            reinterpret_cast<float4*>(plan.handed + std::int64_t{at} * kHandedFloats) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < kSums / 4; ++i) {
            const float* v = sum + 4 * i;
            __stcg(to + i * kMultipliers, float4{v[0], v[1], v[2], v[3]});
        }
        group_meets();
        if (threadIdx.x % kGroupThreads == 0) {
            asm volatile(
                "red.release.gpu.global.add.u32 [%0], 1;" ::"l"(plan.arrived + 2 * at + group())
                : "memory");
        }
    }
    __device__ __forceinline__ void take_over(float (&sum)[kSums], int at) const {
        unsigned* const arrived = plan.arrived + 2 * at + group();
        unsigned seen = 0;
        while (!seen) {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(seen)
                         : "l"(arrived)
                         : "memory");
        }
        group_meets();  // all threads have seen it
        if (threadIdx.x % kGroupThreads == 0) *arrived = 0;
        const auto* from =
            reinterpret_cast<const float4*>(plan.handed + std::int64_t{at} * kHandedFloats) +
            threadIdx.x;
#pragma unroll
        for (int i = 0; i < kSums / 4; ++i) {
            const float4 v = __ldcg(from + i * kMultipliers);
            sum[4 * i] = v.x, sum[4 * i + 1] = v.y, sum[4 * i + 2] = v.z, sum[4 * i + 3] = v.w;
        }
    }
    // Finish::store and add in f32. The sums of a group go through shared memory, [tokens][64
    // rows], in units of 8 rows swizzled by token, so that a token's 256 bytes are stored together.
    __device__ __forceinline__ void finish_floats(const float (&sum)[kSums], int strip,
                                                  int token) const {
        constexpr int kRows = kStrip / 2;
        constexpr int kAtOnce = kGroupThreads / (kRows / 4), kBatch = 8;  // tokens
        float* const stage =
            reinterpret_cast<float*>(shared.waiting) + group() * (kWaitingBytes / 8);
        group_meets();  // all have read the waiting sums
        {
            const int c = lane % 4, row = warp % 4 * kTileRows + row_of(lane / 4);
            float* const upper = stage + 2 * c * kRows + (row ^ 8 * c);
            float* const lower = stage + 2 * c * kRows + (row + 8 ^ 8 * c);
#pragma unroll
            for (int i = 0; i < kSums; ++i) {
                (i % 4 < 2 ? upper : lower)[(i / 4 * 8 + i % 2) * kRows] = sum[i];
            }
        }
        group_meets();
        const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
        const int in = thread % (kRows / 4) * 4, first = thread / (kRows / 4);
        const int row = strip * kStrip + group() * kRows + in;
        const float* from = stage + first * kRows + (in ^ first / 2 % 4 * 8);
        float* out = static_cast<float*>(p.out) + std::int64_t{token + first} * p.out_cols + row;
        const std::int64_t step = std::int64_t{kAtOnce} * p.out_cols;
        const bool whole = p.out_cols % 4 == 0, add = p.finish == Finish::add;
        const auto bias_of = [&](int i) {
            return p.bias && row + i < p.n ? p.bias[row + i] : 0.0f;
        };
        const float4 bias{bias_of(0), bias_of(1), bias_of(2), bias_of(3)};
#pragma unroll 1
        for (int t = first; row < p.n && t < kTileTokens; t += kBatch * kAtOnce) {
            const auto mine = [&](int i) { return token + t + i * kAtOnce < p.rows; };
            float4 before[kBatch];
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                before[i] = float4{};
                if (add && whole && mine(i)) {
                    before[i] = *reinterpret_cast<const float4*>(out + i * step);
                }
            }
#pragma unroll
            for (int i = 0; i < kBatch; ++i) {
                if (!mine(i)) continue;
                float4 v = *reinterpret_cast<const float4*>(from + i * kAtOnce * kRows);
                if (p.bias) v.x += bias.x, v.y += bias.y, v.z += bias.z, v.w += bias.w;
                if (whole) {
                    if (add) {
                        v.x += before[i].x, v.y += before[i].y;
                        v.z += before[i].z, v.w += before[i].w;
                    }
                    *reinterpret_cast<float4*>(out + i * step) = v;
                } else {
                    const float four[4] = {v.x, v.y, v.z, v.w};
                    for (int j = 0; j < 4 && row + j < p.n; ++j) {
                        float* const at = out + i * step + j;
                        *at = add ? *at + four[j] : four[j];
                    }
                }
            }
            out += kBatch * step;
            from += kBatch * kAtOnce * kRows;
        }
        group_meets();  // before sums wait there again
    }
    // Finish::gate with silu in the compute type: a lane has gate and up of its results. The rows
    // of a group go through shared memory, [tokens][32 rows], to be stored in units of 16 bytes.
    // They are 32 columns of the next product: with ordered_out they are in WideRow's order.
    __device__ __forceinline__ void finish_gates(const float (&sum)[kSums], int strip,
                                                 int token) const {
        constexpr int kRows = kStrip / 4, kRow = kRows * 2 + 16;  // bytes: banks differ by token
        std::byte* const stage =
            reinterpret_cast<std::byte*>(shared.waiting) + group() * (kWaitingBytes / 2);
        const int in = warp % 4 * 8 + row_of(lane / 4);
        const int place = p.ordered_out ? ordered_column(in) : in;
        const int row = strip * (kStrip / 2) + group() * kRows;
        const float bias = p.bias && row + in < p.out_cols ? p.bias[row + in] : 0;
        group_meets();  // all have read the waiting sums
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
            if (i % 4 > 1) continue;
            const float up = p.bias ? sum[i + 2] + bias : sum[i + 2];
            const T v = from_f32<T>(__fmul_rn(activate<ops::Activation::silu>(sum[i]), up));
            const int t = i / 4 * 8 + lane % 4 * 2 + i % 2;
            *reinterpret_cast<T*>(stage + t * kRow + place * 2) = v;
        }
        group_meets();
        const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
        const int columns = thread % 4 * 8;
        T* const out = static_cast<T*>(p.out) + row + columns;
#pragma unroll
        for (int t = thread / 4; t < kTileTokens; t += kGroupThreads / 4) {
            if (token + t >= p.rows || row + columns >= p.out_cols) continue;
            *reinterpret_cast<uint4*>(out + std::int64_t{token + t} * p.out_cols) =
                *reinterpret_cast<const uint4*>(stage + t * kRow + columns * 2);
        }
        group_meets();  // before sums wait there again
    }
    // Every other finish.
    __device__ __forceinline__ void finish_any(const float (&sum)[kSums], int strip,
                                               int token) const {
        if (p.finish == Finish::qkv) {
            multipliers_meet();  // all have read the previous tile's
            const int i = static_cast<int>(threadIdx.x);
            if (i < kTileTokens && token + i < p.rows) shared.where[i] = place_of(p, token + i);
            multipliers_meet();
        }
        staged(sum, [&](const float* stage, int first) {
#pragma unroll 1
            for (int t = 0; t < kFinishTokens && token + first + t < p.rows; t += 16) {
                finish_stage<T, kFinishStride>(
                    p, shared.where + first + t, stage + t * kFinishStride,
                    strip * (kStrip / kTileRows) + warp, token + first + t, lane);
            }
        });
    }
    // Finish::records: a lane takes every 32nd token.
    __device__ __forceinline__ void finish_records(const float (&sum)[kSums], int strip,
                                                   int token) const {
        staged(sum, [&](const float* stage, int first) {
#pragma unroll 1
            for (int t = lane; t < kFinishTokens && token + first + t < p.rows; t += 32) {
                put_record(p, strip * (kStrip / kTileRows) + warp, token + first + t,
                           stage + t * kFinishStride);
            }
        });
    }
    // Stages the results of the warp's rows, 64 tokens at a time, in its part of `waiting`, and
    // calls finish(stage, first) for those from `first` on, [tokens][kFinishStride].
    template <typename Finish>
    __device__ __forceinline__ void staged(const float (&sum)[kSums], Finish&& finish) const {
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
            finish(stage, first);
        }
        __syncwarp();  // before sums wait there again
    }

    // Sums a tile in the order of add_warps(), from quarters computed here or handed over.
    __device__ __forceinline__ void run(PieceWalk pieces) {
        float4* const waiting = shared.waiting + warp * (kSums / 4) * 32 + lane;
        const int granules = static_cast<int>((p.k + kGranule - 1) / kGranule);
        Piece piece;
#pragma unroll 1
        while (pieces.next(piece)) {
            float first[kSums];
            const bool whole = piece.from == 0;
#pragma unroll 1
            for (int i = piece.from; i < (whole ? kQuarters : piece.to); ++i) {
                float sum[kSums];
                if (i < piece.to) {
                    quarter(sum, i, granules);
                } else {
                    take_over(sum, handed(piece.unit, i));
                }
                if (!whole) {
                    hand_over(sum, handed(piece.unit, i));
                    continue;
                }
#pragma unroll
                for (int j = 0; j < kSums; ++j) first[j] = i % 2 ? first[j] + sum[j] : sum[j];
                if (i != 1) continue;
#pragma unroll
                for (int j = 0; j < kSums / 4; ++j) {
                    const float* const v = first + 4 * j;
                    waiting[j * 32] = float4{v[0], v[1], v[2], v[3]};
                }
            }
            if (!whole) continue;
#pragma unroll
            for (int j = 0; j < kSums / 4; ++j) {
                const float4 w = waiting[j * 32];
                float* const v = first + 4 * j;
                v[0] = w.x + v[0], v[1] = w.y + v[1], v[2] = w.z + v[2], v[3] = w.w + v[3];
            }
            const int strip = plan.strip(piece.unit), token = plan.first_token(piece.unit);
            if constexpr (kHow == TileFinish::floats) {
                finish_floats(first, strip, token);
            } else if constexpr (kHow == TileFinish::gates) {
                finish_gates(first, strip, token);
            } else if constexpr (kHow == TileFinish::records) {
                finish_records(first, strip, token);
            } else {
                finish_any(first, strip, token);
            }
        }
    }
};

template <typename T, TileFinish kHow>
__global__ void __launch_bounds__(kWideThreads, 1)
    tiled_kernel(const __grid_constant__ TileParams<kHow> p, const __grid_constant__ TilePlan plan,
                 const __grid_constant__ CUtensorMap weights,
                 const __grid_constant__ CUtensorMap inputs) {
    let_next_start();
    extern __shared__ __align__(1024) std::byte memory[];
    const TileLayout shared(memory);
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    constexpr int kBringer = kMultipliers / 32;  // producer warp
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
            bring_tiles(
                TileBringer{p, plan, shared, weights, inputs, lane},
                GranuleWalk(plan.pieces(), static_cast<int>((p.k + kGranule - 1) / kGranule)));
        }
    } else {
        take_registers<240>();
        wait_for_previous();
        stamp_begin(p.stamp);
        TileMultiplier<T, kHow>(p, plan, shared).run(plan.pieces());
        stamp_end(p.stamp);
    }
    // Stay until the copies and arrivals of the other block have arrived.
    cluster_barrier();
}

template <typename T, TileFinish kHow>
void start_tiled(const Context& ctx, const TileParams<kHow>& p, const WidePlan& wide) {
    static const int most = [] {
        allow_shared(tiled_kernel<T, kHow>, kTileBytes);
        return most_clusters(tiled_kernel<T, kHow>, kPair, kWideThreads, kTileBytes);
    }();
    TilePlan plan{};
    plan.token_tiles = (p.rows + kTileTokens - 1) / kTileTokens;
    plan.deal = deal_tiles((wide.strips + kPair - 1) / kPair * plan.token_tiles, most);
    plan.handed = reinterpret_cast<float*>(wide.handed);
    plan.arrived = wide.arrived;
    const DType type = std::is_same_v<T, bf16> ? DType::bf16 : DType::f16;
    const bool gate = p.finish == Finish::gate;
    const CUtensorMap weights =
        plane_rows_map(p.w, type, gate ? 2 : 1, gate ? p.out_cols : p.n, p.k, 1, kStrip / 2);
    const CUtensorMap inputs =
        head_rows_map(p.x, type, p.rows, 1, p.x_stride / 2, p.x_stride / 2, kTileTokens / kPair);
    launch_clusters(ctx, static_cast<unsigned>(most), kPair, dim3(kWideThreads), kTileBytes,
                    tiled_kernel<T, kHow>, p, plan, weights, inputs);
}

// Chooses the instance for the finish.
template <typename T>
void start_tiled(const Context& ctx, const Params& p, const WidePlan& plan) {
    const bool add_or_store = p.finish == Finish::store || p.finish == Finish::add;
    if (add_or_store && p.out_f32) return start_tiled<T, TileFinish::floats>(ctx, p, plan);
    if (p.finish == Finish::gate && p.activation == ops::Activation::silu && !p.out_f32) {
        return start_tiled<T, TileFinish::gates>(ctx, p, plan);
    }
    start_tiled<T, TileFinish::any>(ctx, p, plan);
}

}  // namespace

// The most quarters that blocks hand over.
static int most_handed() {
    const int clusters = this_gpu().multiprocessors / kPair;
    return clusters * (kQuarters - 1) / kQuarters * (kQuarters - 1) * kPair;
}
std::size_t tiled_scratch_bytes() { return std::size_t(most_handed()) * kHandedFloats * 4; }
int tiled_counters() { return most_handed() * 2; }

template <typename T, typename P>
void run_tiled(const Context& ctx, const P& p, const WidePlan& plan) {
    if constexpr (kMakesRecords<P>) {
        return start_tiled<T, TileFinish::records>(ctx, p, plan);
    } else {
        start_tiled<T>(ctx, p, plan);
    }
}
template void run_tiled<bf16>(const Context&, const Params&, const WidePlan&);
template void run_tiled<__half>(const Context&, const Params&, const WidePlan&);
template void run_tiled<bf16>(const Context&, const RecordParams&, const WidePlan&);
template void run_tiled<__half>(const Context&, const RecordParams&, const WidePlan&);

}  // namespace mr::cuda::small
