// linear_small() for 33 to 256 tokens with quantised weights: every weight is read from memory
// once, and every result has the same bits as from small_linear.cu.
//
// Ranks, parts and the exchange of the four sums are as in wide_half.cu, with granules of 128
// columns. The products are mma.sync: its sums may start at any number, here at the one that
// converts them to f32 (mid_linear.cuh), whereas those of wgmma would have to be set again for each
// block of 32 columns. Three instructions per result and block remain for the scales: for a layer
// of Llama-2-7B and 256 tokens they alone take 155 us.
//
// A block has a producer warp, and eight warps that multiply: 32 rows each and half of the block's
// tokens. Weights are copied as stored in memory, 8 rows by two granules at a time; so are prepared
// inputs.
//
// More than 128 tokens: a cluster of two blocks, which have different tokens and share the weights.
#include <algorithm>

#include "core/cuda/cluster.cuh"
#include "core/cuda/tma.cuh"
#include "ops/linear/wide_strip.cuh"

namespace mr::cuda::small {
namespace {

constexpr int kEights = kStrip / 8;  // groups of 8 rows

// kWarpGroups: groups of 16 tokens per warp; kEntry: the thread count that sets the register limit;
// kRegisters: per thread that multiplies.
template <typename Layout, int kWarpGroups_, int kHalves, int kStages, int kEntry_, int kRegisters_>
struct QuantShape
    : WideShape<32 * kWarpGroups_, kHalves, kStages,
                2 * (kEights * QuantWeights<Layout>::kHalf +
                     2 * kWarpGroups_ * Mid<QuantWeights<Layout>>::template kGroupBytes<false>),
                QuantWeights<Layout>::kGranule> {
    using W = QuantWeights<Layout>;
    static constexpr int kWarpGroups = kWarpGroups_, kEntry = kEntry_, kRegisters = kRegisters_;
    static constexpr int kEightBytes = 2 * W::kHalf;  // of 8 rows and two granules
    static constexpr int kWeightBytes = kEights * kEightBytes;
    static constexpr int kGroupBytes = Mid<W>::template kGroupBytes<false>;
    static constexpr int kGroups = 2 * kWarpGroups;
    static constexpr int kInputBytes = kGroups * kGroupBytes;  // per granule
};

// The sums of a warp: two tiles, four times 8 rows, and half of the tokens.
template <int kWarpGroups>
struct QuantSums {
    static __device__ __forceinline__ int warp(int tile, int chunk) {
        return tile / 2 + chunk / kWarpGroups * 4;
    }
    static __device__ __forceinline__ int vector(int tile, int chunk) {
        return chunk % kWarpGroups * 4 + tile % 2 * 2;
    }
    // Tokens g and g + 8, rows 2 t and 2 t + 1 of the n-th 8.
    template <int kStride>
    static __device__ __forceinline__ void put(float* stage, int n, int lane, float4 v) {
        float* at = stage + lane / 4 * kStride + n * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(at) = {v.x, v.y};
        *reinterpret_cast<float2*>(at + 8 * kStride) = {v.z, v.w};
    }
};

template <typename S>
struct QuantBringer {
    using W = typename S::W;
    const Params& p;
    const WidePlan& plan;
    const WideLayout<S>& shared;
    const WideBlock<S>& me;
    int lane;

    // The stage's first granule.
    __device__ __forceinline__ int granule(const Walk& at) const {
        return at.in * kWarps + 2 * me.rank;
    }
    __device__ __forceinline__ int weight_bytes(const Walk& at) const {
        const int records = static_cast<int>((p.k + W::kColumns - 1) / W::kColumns);
        return min(2 * W::kRecords, records - granule(at) * W::kRecords) * W::kRecord;
    }
    __device__ __forceinline__ int input_granules(const Walk& at) const {
        return min(2, static_cast<int>((p.k + W::kGranule - 1) / W::kGranule) - granule(at));
    }
    __device__ __forceinline__ int input_bytes() const {  // per granule
        const int groups = (p.rows + 15) / 16 - me.half * S::kGroups;
        return min(groups, S::kGroups) * S::kGroupBytes;
    }

    // Lanes 0 to 15: 8 rows each.
    __device__ __forceinline__ void bring_weights(const Walk& at, int slot) const {
        const unsigned full = shared.full + 8 * slot;
        const int bytes = weight_bytes(at);
        if (lane == 0) barrier_expect(full, kEights * bytes + input_granules(at) * input_bytes());
        __syncwarp();
        if (lane >= kEights) return;
        const int tile = at.strip * (kStrip / kTileRows) + lane / 2;
        const int upper = tile * (p.finish == Finish::gate ? kTileRows / 2 : kTileRows);
        const RowPointers rows = W::rows(p.w, p.k, p.n, upper, upper + p.lower, lane);
        const std::byte* from =
            (lane % 2 ? rows.lower : rows.upper) + std::int64_t{granule(at)} * W::kStep;
        const unsigned to = shared.ring + slot * S::kStageBytes + lane * S::kEightBytes;
        if constexpr (S::kHalves == 2) {
            if (lane / (kEights / 2) == me.half)
                copy_bulk_to(3, to, from, bytes, full, plan.policy);
        } else {
            copy_bulk(to, from, bytes, full, plan.policy);
        }
    }
    // Lanes 16 and 17: one granule each.
    __device__ __forceinline__ void bring_inputs(const Walk& at, int slot) const {
        const int which = lane - kEights;
        if (which < 0 || which >= input_granules(at)) return;
        const std::byte* from = static_cast<const std::byte*>(p.x) +
                                std::int64_t{granule(at) + which} * p.x_stride +
                                me.half * S::kInputBytes;
        copy_bulk(shared.ring + slot * S::kStageBytes + S::kWeightBytes + which * S::kInputBytes,
                  from, input_bytes(), shared.full + 8 * slot);
    }
};

template <typename S, typename P>
__device__ __forceinline__ void multiply_quants(const P& p, const WidePlan& plan,
                                                const WideLayout<S>& shared, const WideBlock<S>& me,
                                                int most) {
    constexpr bool kSome = kMakesRecords<P> && kPacks<S>;  // skips groups without a token
    using W = typename S::W;
    using M = Mid<W>;
    constexpr int kGroups = S::kWarpGroups;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    const unsigned weights = shared.ring + warp % 4 * 4 * S::kEightBytes;
    const unsigned tokens = shared.ring + S::kWeightBytes + warp / 4 * kGroups * S::kGroupBytes;
    Place<S::kStages> place;
    const Meeting<S, QuantSums<kGroups>> meeting{plan, me, most};
    int turn = 0, last = -1;
#pragma unroll 1
    for (int strip = me.group; strip < plan.strips; strip += me.groups, turn ^= 1) {
        float even[kGroups][4][4] = {}, odd[kGroups][4][4] = {};
        int left = static_cast<int>(p.k) - 2 * me.rank * W::kGranule;  // columns left
#pragma unroll 1
        for (int i = 0; i < me.stages; ++i, left -= kWarps * W::kGranule) {
            barrier_wait(shared.full + 8 * place.slot, place.parity);
            const unsigned at = place.slot * S::kStageBytes;
            // Pieces of 64 columns; those past the last were not copied.
            const auto multiply = [&](float(&acc)[kGroups][4][4], int granule, int piece) {
                if (left <= granule * W::kGranule + piece * 64) return;
                typename M::Rows rows[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    rows[i].load(weights + at + i * S::kEightBytes + granule * W::kHalf, piece,
                                 lane);
                }
#pragma unroll
                for (int g = 0; g < kGroups; ++g) {
                    if (kSome && (warp / 4 * kGroups + g) * 16 >= most) break;
                    typename M::template Tokens<false> x;
                    x.load(tokens + at + granule * S::kInputBytes + g * S::kGroupBytes, piece,
                           lane);
#pragma unroll
                    for (int i = 0; i < 4; ++i) M::multiply(acc[g][i], x, rows[i]);
                }
            };
#pragma unroll 1
            for (int piece = 0; piece < 2; ++piece) multiply(even, 0, piece);
#pragma unroll 1
            for (int piece = 0; piece < 2; ++piece) multiply(odd, 1, piece);
            __syncwarp();
            const unsigned empty = shared.empty + 8 * place.slot;
            if constexpr (S::kHalves == 1) {
                if (lane == 0) barrier_arrive(empty);
            } else {
                if (lane < S::kHalves) barrier_arrive_at(empty, lane);
            }
            place.next();
        }
        float sum[S::kSums];
#pragma unroll
        for (int i = 0; i < S::kSums; ++i) {
            sum[i] = even[i / 16][i / 4 % 4][i % 4] + odd[i / 16][i / 4 % 4][i % 4];
        }
        if (last >= 0) meeting.template meet<bf16>(p, shared, last, turn ^ 1);
        meeting.hand_over(sum, turn);
        last = strip;
    }
    if (last >= 0) meeting.template meet<bf16>(p, shared, last, turn ^ 1);
}

template <typename S, typename P>
__global__ void __launch_bounds__(S::kEntry, 1)
    wide_quant_kernel(const __grid_constant__ P p, const __grid_constant__ WidePlan plan) {
    let_next_start();
    extern __shared__ __align__(1024) std::byte memory[];
    const WideLayout<S> shared(memory);
    const WideBlock<S> me(p);
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    constexpr int kBringer = kMultipliers / 32;  // producer warp
    if (warp == kBringer && lane == 0) {
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
        if (warp == kBringer) bring_all<S>(QuantBringer<S>{p, plan, shared, me, lane});
        if (warp == kBringer + 1) {
            wait_for_previous();
            Meeting<S, QuantSums<S::kWarpGroups>>{plan, me}.tell_all();
        }
    } else {
        take_registers<S::kRegisters>();
        wait_for_previous();
        stamp_begin(p.stamp);
        multiply_quants<S>(p, plan, shared, me, note_tokens(p, shared, me));
        stamp_end(p.stamp);
    }
    // Stay until the copies and arrivals of the other block have arrived.
    if constexpr (S::kHalves > 1) cluster_barrier();
}

template <typename S, typename P>
void start(const Context& ctx, const P& p, const WidePlan& plan) {
    static const int most = [] {  // groups of blocks that can run at once
        allow_shared(wide_quant_kernel<S, P>, S::kBytes);
        return most_clusters(wide_quant_kernel<S, P>, S::kHalves, kWideThreads, S::kBytes) / kRanks;
    }();
    const int groups = std::min(most, plan.strips);
    launch_clusters(ctx, static_cast<unsigned>(groups * kRanks), S::kHalves, dim3(kWideThreads),
                    S::kBytes, wide_quant_kernel<S, P>, p, plan);
}

}  // namespace

template <typename Layout, typename P>
void run_wide_quant(const Context& ctx, const P& p, const WidePlan& plan) {
    if (p.rows <= 64) return start<QuantShape<Layout, 2, 1, 4, 512, 176>>(ctx, p, plan);
    constexpr bool kFewer = kMakesRecords<P>;  // fewer instances
    if constexpr (!kFewer) {
        if (p.rows <= 96) {
            return start<QuantShape<Layout, 3, 1, 3, kWideThreads, 240>>(ctx, p, plan);
        }
    }
    if (p.rows <= 128) return start<QuantShape<Layout, 4, 1, 3, kWideThreads, 240>>(ctx, p, plan);
    if constexpr (!kFewer) {
        if (p.rows <= 192) {
            return start<QuantShape<Layout, 3, 2, 3, kWideThreads, 240>>(ctx, p, plan);
        }
    }
    start<QuantShape<Layout, 4, 2, 3, kWideThreads, 240>>(ctx, p, plan);
}
template void run_wide_quant<Q8Layout>(const Context&, const Params&, const WidePlan&);
template void run_wide_quant<Q4Layout>(const Context&, const Params&, const WidePlan&);
template void run_wide_quant<Q8Layout>(const Context&, const RecordParams&, const WidePlan&);
template void run_wide_quant<Q4Layout>(const Context&, const RecordParams&, const WidePlan&);

}  // namespace mr::cuda::small
