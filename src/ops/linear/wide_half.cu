// linear_small() for many tokens with f16 or bf16 weights: every weight is read from memory once
// for up to 192 tokens, and every result has the same bits as from small_linear.cu. tiled_half.cu
// is for more tokens.
//
//   inputs (norm, order: a kernel of its own) | fill the ring with weights | wait for the previous
//   kernel | weights and inputs through the tensor cores | four blocks add up | finish
//
// A result is a tree of 8 sums, one for each eighth of the granules of 64 columns ("part"). Four
// neighbouring blocks ("ranks") share 128 rows: rank r has parts 2r and 2r + 1, 256 bytes of every
// 1024 of a row, and its neighbours read the other 768 at the same time. It adds its two parts; the
// four sums of a result are then exchanged through memory (L2), and each rank finishes a quarter of
// the tokens. The four are not a cluster: too few clusters of four would fit. All blocks of the
// grid run at once, so they may wait for each other; two such products at the same time, of
// different streams, may not (DeviceTurn).
//
// A block has a producer warp that loads by TMA, and two groups of four warps
// that multiply, 64 rows each. The weights are the first operand of wgmma, from
// registers: a lane loads 16 bytes of its row, as in small_linear.cuh. The second
// operand is the tokens, in shared memory. There every 32 columns are reordered:
// 16 neighbours are those that one instruction of small_linear.cuh takes.
//
// More than 128 tokens: a cluster of two blocks, which have different tokens and share the weights.
#include <algorithm>
#include <type_traits>

#include "core/cuda/cluster.cuh"
#include "core/cuda/tensor_map.h"
#include "ops/linear/small_input.cuh"
#include "ops/linear/wide_half.cuh"

namespace mr::cuda::small {
namespace {

template <typename S>
struct Bringer {
    const Params& p;
    const WidePlan& plan;
    const WideLayout<S>& shared;
    const WideBlock<S>& me;
    const CUtensorMap &weights, &inputs;
    int lane;

    // Lanes 0 to 3: each 64 rows of one of the two granules.
    __device__ __forceinline__ void bring_weights(const Walk& at, int slot) const {
        const unsigned full = shared.full + 8 * slot;
        if (lane == 0) barrier_expect(full, S::kStageBytes);
        __syncwarp();
        if (lane >= 4) return;
        const int piece = lane / 2, part = lane % 2, strip = at.strip;
        const bool gate = p.finish == Finish::gate;
        const unsigned to =
            shared.ring + slot * S::kStageBytes + piece * kPieceBytes + part * (kPieceBytes / 2);
        const int column = (at.in * kWarps + 2 * me.rank + piece) * kGranule;
        const int row = gate ? strip * (kStrip / 2) : strip * kStrip + part * (kStrip / 2);
        if constexpr (S::kHalves == 2) {
            if (part == me.half)
                copy_box_to(3, to, weights, column, row, gate ? part : 0, full, plan.policy);
        } else {
            copy_box(to, weights, column, row, gate ? part : 0, full, plan.policy);
        }
    }
    // Lanes 4 and 5: one granule each.
    __device__ __forceinline__ void bring_inputs(const Walk& at, int slot) const {
        if (lane != 4 && lane != 5) return;
        const int piece = lane - 4;
        copy_box(shared.ring + slot * S::kStageBytes + 2 * kPieceBytes + piece * S::kInputPiece,
                 inputs, (at.in * kWarps + 2 * me.rank + piece) * kGranule, 0,
                 me.half * S::kTokensMost, shared.full + 8 * slot);
    }
};

// kMost: tokens per instruction; the product has at most as many `tokens`.
template <typename T, typename S, int kMost = S::kTokensMost, typename P>
__device__ __forceinline__ void multiply_all(const P& p, const WidePlan& plan,
                                             const WideLayout<S>& shared, const WideBlock<S>& me,
                                             int tokens) {
    constexpr int kSums = kMost / 2;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    // Gate: 64 rows of gate, then the same 64 of up; a tile has 8 of each.
    const bool gate = p.finish == Finish::gate;
    const int g = row_of(lane / 4);
    const unsigned upper = shared.ring + (warp * (gate ? 8 : 16) + g) * 128 + (lane % 4 ^ g) * 16;
    const unsigned lower = gate ? kPieceBytes / 2 : 1024;
    // Tells all blocks that copy into this one that a slot is free.
    const auto release = [&](int slot) {
        const unsigned empty = shared.empty + 8 * slot;
        if constexpr (S::kHalves == 1) {
            if (lane == 0) barrier_arrive(empty);
        } else {
            if (lane < S::kHalves) barrier_arrive_at(empty, lane);
        }
    };
    Place<S::kStages> place;
    const Meeting<S, HalfSums> meeting{plan, me, tokens};
    int turn = 0, last = -1;
#pragma unroll 1
    for (int strip = me.group; strip < plan.strips; strip += me.groups, turn ^= 1) {
        float even[kSums], odd[kSums];
#pragma unroll
        for (int i = 0; i < kSums; ++i) even[i] = odd[i] = 0;
        Weights a, b;
        int used = 0;
        // While the products of one granule run, the weights of the next are loaded.
#pragma unroll 1
        for (int i = 0; i < me.stages; ++i) {
            barrier_wait(shared.full + 8 * place.slot, place.parity);
            const unsigned at = place.slot * S::kStageBytes;
            const unsigned inputs = shared.ring + at + 2 * kPieceBytes;
            multiply_wait<1>();
            load_weights(a, upper + at, lower);
            multiply_granule<T>(even, a, inputs);
            multiply_wait<1>();
            if (i > 0) release(used);
            load_weights(b, upper + at + kPieceBytes, lower);
            multiply_granule<T>(odd, b, inputs + S::kInputPiece);
            used = place.slot;
            place.next();
        }
        multiply_wait<0>();
        keep_order(even);
        keep_order(odd);
        if (me.stages > 0) release(used);
#pragma unroll
        for (int i = 0; i < kSums; ++i) even[i] += odd[i];
        if (last >= 0) meeting.template meet<T>(p, shared, last, turn ^ 1);
        meeting.hand_over(even, turn);
        last = strip;
    }
    if (last >= 0) meeting.template meet<T>(p, shared, last, turn ^ 1);
}

template <typename T, typename S, typename P>
__global__ void __launch_bounds__(S::kEntry, 1)
    wide_kernel(const __grid_constant__ P p, const __grid_constant__ WidePlan plan,
                const __grid_constant__ CUtensorMap weights,
                const __grid_constant__ CUtensorMap inputs) {
    let_next_start();
    extern __shared__ __align__(1024) std::byte memory[];
    const WideLayout<S> shared(memory);
    const WideBlock<S> me(p);
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    constexpr int kBringer = kMultipliers / 32;  // producer warp
    if (warp == kBringer && lane == 0) {
        prefetch_map(weights);
        prefetch_map(inputs);
        for (int i = 0; i < S::kStages; ++i) {
            barrier_init(shared.full + 8 * i, 1);
            barrier_init(shared.empty + 8 * i, S::kHalves * kMultipliers / 32);
        }
        barriers_ready();
    }
    __syncthreads();
    if constexpr (S::kHalves > 1) cluster_barrier();
    if (warp >= kBringer) {
        give_registers<24>();
        if (warp == kBringer) bring_all<S>(Bringer<S>{p, plan, shared, me, weights, inputs, lane});
        if (warp == kBringer + 1) {
            wait_for_previous();
            Meeting<S, HalfSums>{plan, me}.tell_all();
        }
    } else {
        take_registers<S::kRegisters>();
        wait_for_previous();
        stamp_begin(p.stamp);
        const int tokens = note_tokens(p, shared, me);
        if constexpr (kMakesRecords<P> && kPacks<S>) {
            if (tokens <= 32) {
                multiply_all<T, S, 32>(p, plan, shared, me, tokens);
            } else {
                multiply_all<T, S>(p, plan, shared, me, tokens);
            }
        } else {
            multiply_all<T, S>(p, plan, shared, me, tokens);
        }
        stamp_end(p.stamp);
    }
    // Stay until the copies and arrivals of the other block have arrived.
    if constexpr (S::kHalves > 1) cluster_barrier();
}

// Stores a token's input as a row, with columns in the order above.
struct WideRow {
    std::byte* row;
    // Four columns from c on (c % 4 == 0).
    __device__ __forceinline__ void put(int c, uint2 four) const {
        std::byte* at = row + ordered_column(c) * 2;
        *reinterpret_cast<unsigned*>(at) = four.x;
        *reinterpret_cast<unsigned*>(at + 16) = four.y;
    }
};

// Prepares the inputs, normed or as they are: a block per token. Resets the arrival counters.
template <typename T, typename P>
__global__ void __launch_bounds__(kInputThreads)
    wide_input_kernel(const P p, std::byte* to, int stride, unsigned* arrived, int count) {
    using W = HalfWeights<T>;
    let_next_start();
    HeldNorm<W> held;
    if (HeldNorm<W>::possible(p)) held.load(p);
    wait_for_previous();
    const StageClock clock(p.stamp);
    __shared__ float shared[kRowShared<kInputThreads>];
    const int row = static_cast<int>(blockIdx.x);
    const int all = static_cast<int>(gridDim.x) * kInputThreads;
    for (int i = row * kInputThreads + static_cast<int>(threadIdx.x); i < count; i += all) {
        arrived[i] = 0;
    }
    int place = row;
    if constexpr (kMakesRecords<P>) {
        if (p.packed) {
            const std::uint64_t asked = asked_rows(p);
            if (!(asked >> row & 1)) return;
            place = packed_place(asked, row);
        }
    }
    load_row<W, T>(p, held, row, WideRow{to + static_cast<std::int64_t>(place) * stride},
                   stride / 2, shared);
}

// How many groups of blocks can run at once.
template <typename T, typename S, typename P>
int most_groups() {
    static const int most = [] {
        allow_shared(wide_kernel<T, S, P>, S::kBytes);
        return most_clusters(wide_kernel<T, S, P>, S::kHalves, kWideThreads, S::kBytes) / kRanks;
    }();
    return most;
}

template <typename T, typename S, typename P>
void start(const Context& ctx, const P& p, WidePlan plan) {
    const int groups = std::min(most_groups<T, S, P>(), plan.strips);
    const DType type = std::is_same_v<T, bf16> ? DType::bf16 : DType::f16;
    const bool gate = p.finish == Finish::gate;
    const CUtensorMap weights =
        plane_rows_map(p.w, type, gate ? 2 : 1, gate ? p.out_cols : p.n, p.k, 1, kStrip / 2);
    const CUtensorMap inputs =
        head_rows_map(p.x, type, p.rows, 1, p.x_stride / 2, p.x_stride / 2, S::kTokensMost);
    launch_clusters(ctx, static_cast<unsigned>(groups * kRanks), S::kHalves, dim3(kWideThreads),
                    S::kBytes, wide_kernel<T, S, P>, p, plan, weights, inputs);
}

// Up to kWideRows tokens.
template <typename T, typename P>
void start_any(const Context& ctx, const P& p, const WidePlan& plan) {
    if (p.rows <= 64) return start<T, HalfShape<64, 1, 4, 512, 176>>(ctx, p, plan);
    if constexpr (!kMakesRecords<P>) {  // records have fewer instances
        if (p.rows <= 96) return start<T, HalfShape<96, 1, 3, kWideThreads, 240>>(ctx, p, plan);
    }
    if (p.rows <= 128) return start<T, HalfShape<128, 1, 3, kWideThreads, 240>>(ctx, p, plan);
    start<T, HalfShape<96, 2, 3, kWideThreads, 240>>(ctx, p, plan);
}

}  // namespace

template <typename T, typename P>
void run_wide(const Context& ctx, const P& all) {
    MR_CHECK(ctx.scratch.size() >= mid_scratch_bytes(all.rows, all.k),
             "the scratch has linear_small_scratch_bytes()");
    for (int first = 0; first < all.rows; first += kTiledRows) {
        P p = pass_of(all, first, std::min(kTiledRows, all.rows - first));
        p.x_stride = static_cast<int>((p.k + kGranule - 1) / kGranule * kGranule * 2);
        const WidePlan plan = wide_plan(ctx, p);
        const bool tiled = p.rows > kWideRows;
        if (!p.ordered_x) {
            launch(ctx, dim3(static_cast<unsigned>(p.rows)), dim3(kInputThreads), 0,
                   wide_input_kernel<T, P>, p, ctx.scratch.data(), p.x_stride, plan.arrived,
                   tiled ? tiled_counters() : 2 * plan.strips);
            p.x = ctx.scratch.data();
        }
        if (tiled) {
            run_tiled<T, P>(ctx, p, plan);
        } else {
            start_any<T>(ctx, p, plan);
        }
    }
}
template void run_wide<bf16>(const Context&, const Params&);
template void run_wide<__half>(const Context&, const Params&);
template void run_wide<bf16>(const Context&, const RecordParams&);
template void run_wide<__half>(const Context&, const RecordParams&);

}  // namespace mr::cuda::small
