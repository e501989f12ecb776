// Shared by wide_half.cu and wide_quant.cu: a block's place in its group, the exchange of sums
// between ranks, and the finish of 16 tokens of a tile. wide_half.cu explains ranks and parts.
#pragma once

#include "core/cuda/bulk.cuh"
#include "ops/linear/mid_linear.cuh"
#include "ops/linear/record_finish.cuh"
#include "ops/linear/small_finish.cuh"

namespace mr::cuda::small {

constexpr int kMultipliers = 256;                     // threads that multiply: eight warps
constexpr int kWideThreads = kMultipliers + 128;      // and four more, one of them the producer
constexpr int kFinishStride = 20;                     // floats from token to token
constexpr int kFinishBytes = 16 * kFinishStride * 4;  // per warp: 16 tokens of a tile

constexpr int kRanks = 4;
constexpr int kStrip = 128;        // rows per block
constexpr int kMostStrips = 8192;  // per product; each half of the tokens counts

// kTokensMost: per block; kHalves: with 2, the blocks of a cluster have half of the tokens each and
// share the weights; kStages: of the ring; kStageBytes: two granules of the strip's weights and of
// the inputs; kColumns: per granule.
template <int kTokensMost_, int kHalves_, int kStages_, int kStageBytes_, int kColumns_>
struct WideShape {
    static constexpr int kTokensMost = kTokensMost_, kHalves = kHalves_, kStages = kStages_;
    static constexpr int kStageBytes = kStageBytes_, kColumns = kColumns_;
    static constexpr int kSums = kTokensMost / 2;  // registers per thread
    // Tokens that a rank finishes, and the number of ranks that finish any.
    static constexpr int kShare = (kTokensMost / kRanks + 15) / 16 * 16;
    static constexpr int kTakers = kTokensMost / kShare;
    static_assert(kShare * kTakers == kTokensMost);
    static constexpr int kChunks = kShare / 16;  // 16 tokens each, 8 registers, 2 vectors
    // Buffer of a block's partial sums, double-buffered, since others may still read the last:
    // float4 [takers][chunks][2][threads].
    static constexpr int kHanded = kTakers * kChunks * 2 * kMultipliers;
    static constexpr int kBytes =
        1024 + kStages * kStageBytes + 8 * kFinishBytes + kShare * 8 + 2 * kStages * 8;
    static_assert(kBytes <= 222 * 1024);  // leaves room for a block that prepares inputs
};

struct WidePlan {
    int strips;
    float4* handed;
    unsigned* arrived;     // number of ranks, per strip and half
    std::uint64_t policy;  // for the weights, so that inputs and sums stay in L2
};
// p: a pass that ctx.scratch has room for (mid_linear.cu).
WidePlan wide_plan(const Context& ctx, const Params& p);

template <typename S>
struct WideLayout {
    unsigned ring, full, empty;
    float* finish;
    int2* where;
    __device__ explicit WideLayout(std::byte* base) {
        const unsigned start = shared_address(base);
        ring = (start + 1023) / 1024 * 1024;
        const int rest = static_cast<int>(ring - start) + S::kStages * S::kStageBytes;
        finish = reinterpret_cast<float*>(base + rest);
        where = reinterpret_cast<int2*>(base + rest + 8 * kFinishBytes);
        full = start + rest + 8 * kFinishBytes + S::kShare * 8;
        empty = full + S::kStages * 8;
    }
};

// The role of a block.
template <typename S>
struct WideBlock {
    int half, group, rank, groups;  // four clusters are a group
    int stages;                     // per strip
    int first_token;                // of those it finishes
    __device__ explicit WideBlock(const Params& p) {
        const int block = static_cast<int>(blockIdx.x), cluster = block / S::kHalves;
        half = block % S::kHalves;
        group = cluster / kRanks, rank = cluster % kRanks;
        groups = static_cast<int>(gridDim.x) / (S::kHalves * kRanks);
        const int granules = static_cast<int>((p.k + S::kColumns - 1) / S::kColumns);
        stages = max(granules - 2 * rank + kWarps - 1, 0) / kWarps;
        first_token = half * S::kTokensMost + rank * S::kShare;
    }
};

// Called by the threads that multiply, after wait_for_previous(): records what the finish needs of
// this rank's tokens. Returns the product's number of tokens. A barrier comes before the finish.
template <typename S>
inline constexpr bool kPacks = S::kTokensMost* S::kHalves <= kPackedRows;
template <typename S, typename P>
__device__ __forceinline__ int note_tokens(const P& p, const WideLayout<S>& shared,
                                           const WideBlock<S>& me) {
    const int i = static_cast<int>(threadIdx.x), token = me.first_token + i;
    if constexpr (!kMakesRecords<P>) {
        if (p.finish == Finish::qkv && i < S::kShare && token < p.rows) {
            shared.where[i] = place_of(p, token);
        }
    } else if constexpr (kPacks<S>) {
        const std::uint64_t asked = asked_rows(p);
        if (i < p.rows && asked >> i & 1) {
            const int at = packed_place(asked, i) - me.first_token;
            if (at >= 0 && at < S::kShare) shared.where[at].x = i;
        }
        return __popcll(asked);
    } else {
        if (i < S::kShare) shared.where[i].x = token;
    }
    return p.rows;
}

// A slot of the ring, and the parity of its round.
template <int kStages>
struct Place {
    int slot = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void next() {
        if (++slot == kStages) slot = 0, parity ^= 1;
    }
};

// The stages in the order in which they are multiplied.
struct Walk {
    int strip, groups, strips, stages;
    int in = 0;
    __device__ bool valid() const { return strip < strips && stages > 0; }
    __device__ void next() {
        if (++in < stages) return;
        in = 0;
        strip += groups;
    }
};

// The producer warp: loads weights and inputs of all stages into the ring. The first weights are
// loaded before the previous kernel has ended: only inputs depend on it.
template <typename S, typename Bringer>
__device__ __forceinline__ void bring_all(const Bringer& bringer) {
    const WideBlock<S>& me = bringer.me;
    const Walk begin{me.group, me.groups, bringer.plan.strips, me.stages};
    Walk ahead = begin, at = begin;
#pragma unroll 1
    for (int i = 0; i < S::kStages && ahead.valid(); ++i, ahead.next()) {
        bringer.bring_weights(ahead, i);
    }
    wait_for_previous();
    int filled = 0;
#pragma unroll 1
    for (; filled < S::kStages && at.valid(); ++filled, at.next()) bringer.bring_inputs(at, filled);
    Place<S::kStages> place;
    place.parity = 1;  // all slots have been filled once
#pragma unroll 1
    for (; at.valid(); at.next(), place.next()) {
        barrier_wait(bringer.shared.empty + 8 * place.slot, place.parity ^ 1);
        bringer.bring_weights(at, place.slot);
        bringer.bring_inputs(at, place.slot);
        __syncwarp();  // no lane may still poll the barrier
    }
}

__device__ __forceinline__ void multipliers_meet() {
    asm volatile("bar.sync 1, %0;" ::"n"(kMultipliers) : "memory");
}

// The results of one tile and 16 tokens from `first` on, from stage [16 tokens][kStride], by a
// warp. where: entry of the first of them.
template <typename T, int kStride>
__device__ __forceinline__ void finish_stage(const Params& p, const int2* where, const float* stage,
                                             int tile, int first, int lane) {
    if (p.finish == Finish::qkv) {
        const int row = tile * kTileRows + 2 * (lane % 8);
        if (row >= p.n) return;
        float2 v[4], rotation[4];
        int2 place[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int token = lane / 8 + 4 * i;
            v[i] = *reinterpret_cast<const float2*>(stage + token * kStride + 2 * (lane % 8));
            place[i] = int2{};
            rotation[i] = float2{};
            if (first + token >= p.rows) continue;
            place[i] = where[token];
            if (is_rotated(p, row)) {
                rotation[i] = rotation_of(p, p.rope, row, rope_row(p, place[i].x, first + token));
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int token = first + lane / 8 + 4 * i;
            if (token >= p.rows) break;
            finish_pair<T>(p, place[i], row, token, v[i].x, v[i].y, rotation[i]);
        }
    } else if (p.finish == Finish::gate) {
        const int row = tile * (kTileRows / 2) + lane % 8;
        if (row >= p.out_cols) return;
        float gate[4], up[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* at = stage + (lane / 8 + 4 * i) * kStride + lane % 8;
            gate[i] = at[0];
            up[i] = at[8];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int token = first + lane / 8 + 4 * i;
            if (token < p.rows) finish_gate<T>(p, row, token, gate[i], up[i]);
        }
    } else {
        const int row = tile * kTileRows + lane % 16;
        if (row >= p.n) return;
        float v[8], before[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int token = first + lane / 16 + 2 * i;
            v[i] = stage[(lane / 16 + 2 * i) * kStride + lane % 16];
            before[i] = 0;
            if (p.finish == Finish::add && token < p.rows) {
                before[i] = static_cast<const float*>(
                    p.out)[static_cast<std::int64_t>(token) * p.out_cols + row];
            }
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int token = first + lane / 16 + 2 * i;
            if (token >= p.rows) break;
            finish_one<T>(p, row, token, v[i], [&](const float*) { return before[i]; });
        }
    }
}

// The same for Finish::records, for the first `tokens` of the 16.
template <int kStride>
__device__ __forceinline__ void finish_stage(const RecordParams& p, const int2* where,
                                             const float* stage, int tile, int tokens, int lane) {
    if (p.records) {
        if (lane < min(tokens, 16)) put_record(p, tile, where[lane].x, stage + lane * kStride);
        return;
    }
    const int row = tile * kTileRows + lane % 16;
    if (row >= p.n) return;
    const float bias = p.bias ? p.bias[row] : 0.0f;
    for (int token = lane / 16; token < min(tokens, 16); token += 2) {
        const float v = stage[token * kStride + lane % 16];
        static_cast<float*>(p.out)[static_cast<std::int64_t>(where[token].x) * p.n + row] =
            p.bias ? v + bias : v;
    }
}

// The exchange of sums between ranks. M says which warp has the sums of a tile and 16 tokens, two
// vectors per thread, which of its vectors they are, and where they go in [16 tokens][kStride].
template <typename S, typename M>
struct Meeting {
    const WidePlan& plan;
    const WideBlock<S>& me;
    int tokens = 0;  // of the product; used by ranks that finish

    // The buffer that rank r hands over in turn 0 or 1.
    __device__ __forceinline__ float4* handed(int r, int turn) const {
        const int block = static_cast<int>(blockIdx.x) + (r - me.rank) * S::kHalves;
        return plan.handed + (std::int64_t{block} * 2 + turn) * S::kHanded;
    }
    // Hands over the first kSums of S::kSums.
    template <int kSums>
    __device__ __forceinline__ void hand_over(const float (&sum)[kSums], int turn) const {
        float4* to = handed(me.rank, turn) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < kSums / 4; ++i) {
            const float* v = sum + 4 * i;
            __stcg(to + i * kMultipliers, float4{v[0], v[1], v[2], v[3]});
        }
        asm volatile("bar.arrive 2, %0;" ::"n"(kMultipliers + 32) : "memory");
    }
    // For a warp that does not multiply: signals other ranks after this one has handed over. The
    // writes take about a microsecond to complete.
    __device__ __forceinline__ void tell_all() const {
#pragma unroll 1
        for (int strip = me.group; strip < plan.strips; strip += me.groups) {
            asm volatile("bar.sync 2, %0;" ::"n"(kMultipliers + 32) : "memory");
            if (threadIdx.x % 32 == 0) tell(strip);
            __syncwarp();
        }
    }
    // Waits for the sums of a strip and finishes it; called when the next strip has been
    // multiplied, because all ranks have handed over by then. This also protects the buffers until
    // all have read them: a rank that hands over strip s has waited for all ranks' strip s - 1,
    // before which they read s - 2.
    template <typename T, typename P>
    __device__ __forceinline__ void meet(const P& p, const WideLayout<S>& shared, int strip,
                                         int turn) const {
        if (threadIdx.x == 0) wait(strip);
        multipliers_meet();
        if (me.rank >= S::kTakers) return;
        const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
        finish<T>(p, shared, strip, turn, warp, static_cast<int>(threadIdx.x) % 32);
    }
    // tell(): one thread signals for its block that a strip's sums have been handed over. wait():
    // another waits until all ranks have.
    __device__ __forceinline__ void tell(int strip) const {
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived(strip)) : "memory");
    }
    __device__ __forceinline__ void wait(int strip) const {
        unsigned seen = 0;
        while (seen < kRanks) {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                         : "=r"(seen)
                         : "l"(arrived(strip))
                         : "memory");
        }
    }
    __device__ __forceinline__ unsigned* arrived(int strip) const {
        return plan.arrived + strip * S::kHalves + me.half;
    }
    // Finishes a tile (of the strip's 8) for this rank's tokens, by a warp.
    template <typename T, typename P>
    __device__ __forceinline__ void finish(const P& p, const WideLayout<S>& shared, int strip,
                                           int turn, int tile, int lane) const {
        if (me.first_token >= tokens) return;
        float4 v[S::kChunks][kRanks][2];
#pragma unroll
        for (int r = 0; r < kRanks; ++r) {
#pragma unroll
            for (int c = 0; c < S::kChunks; ++c) {
                const int chunk = me.rank * S::kChunks + c;
                const float4* from = handed(r, turn) + M::vector(tile, chunk) * kMultipliers +
                                     M::warp(tile, chunk) * 32 + lane;
                v[c][r][0] = __ldcg(from);
                v[c][r][1] = __ldcg(from + kMultipliers);
            }
        }
        constexpr int kStride = kFinishStride;
        float* stage = shared.finish + tile * (kFinishBytes / 4);
#pragma unroll
        for (int c = 0; c < S::kChunks; ++c) {
            const int first = me.first_token + 16 * c;
            if (first >= tokens) break;
            __syncwarp();
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const float4 v0 = v[c][0][n], v1 = v[c][1][n], v2 = v[c][2][n], v3 = v[c][3][n];
                M::template put<kStride>(
                    stage, n, lane,
                    {(v0.x + v1.x) + (v2.x + v3.x), (v0.y + v1.y) + (v2.y + v3.y),
                     (v0.z + v1.z) + (v2.z + v3.z), (v0.w + v1.w) + (v2.w + v3.w)});
            }
            __syncwarp();
            const int number = strip * (kStrip / kTileRows) + tile;
            if constexpr (kMakesRecords<P>) {
                finish_stage<kStride>(p, shared.where + 16 * c, stage, number, tokens - first,
                                      lane);
            } else {
                finish_stage<T, kStride>(p, shared.where + 16 * c, stage, number, first, lane);
            }
        }
    }
};

}  // namespace mr::cuda::small
