// linear_small() for 5 to 32 tokens with quantised weights: as in mid_half.cu, one block per
// multiprocessor, each with its own rows.
//
//   fill the rings with weights | wait for the previous kernel | weights and inputs through the
//   tensor cores | add up the warps | finish
//
// A warp has one eighth of the granules and waits for no other warp. It multiplies a granule with
// all tiles of the block, up to kTiles, before the next granule, so that inputs are loaded once;
// the sums of all tiles stay in registers. Instructions are scarce: a result takes three per block
// of 32 columns, at 32 tokens half of what a warp can issue while its weights arrive. So the
// weights are addressed by running pointers, and inputs have the tensor cores' layout.
#include <algorithm>

#include "core/cuda/tma.cuh"
#include "ops/linear/mid_linear.cuh"
#include "ops/linear/record_finish.cuh"

namespace mr::cuda::small {
namespace {

// NT: groups of 8 tokens, 1, 2 or 4; kTiles: most tiles of a pass over the inputs; kRing: KB of a
// block's ring of weights; kEntry: the thread count that sets the register limit; with 256 a block
// of the kernel that prepares the next inputs fits beside it.
template <typename Layout, int kNT, int kTiles_, int kRing, int kEntry_ = 256>
struct QuantShape {
    using W = QuantWeights<Layout>;
    static constexpr bool kFew = kNT == 1;
    static constexpr int kTiles = kTiles_, kEntry = kEntry_;
    static constexpr int kThreads = 32 * kWarps, kTokensMost = 8 * kNT;
    static constexpr int kGroups = kFew ? 1 : kNT / 2;
    static constexpr int kSums = kFew ? 2 : 4;          // per lane: a group and 8 rows
    static constexpr int kStageBytes = W::kStageBytes;  // a granule of a tile
    static constexpr int kStages = kRing * 1024 / (kWarps * kStageBytes);
    static constexpr int kInputBytes = kGroups * Mid<W>::template kGroupBytes<kFew>, kInputs = 2;
    // The sums reuse the rings' memory: f32 [8 parts][tokens][rows], rows padded so that neither
    // the stores in the tensor cores' layout nor the loads of rows have bank conflicts.
    static constexpr int kSumStride = kTileRows * kTiles + 8;
    static constexpr int kPartSums = kTokensMost * kSumStride;
    static constexpr int kRings = kWarps * (kInputs * kInputBytes + kStages * kStageBytes);
    static constexpr int kBytes = std::max(kRings, kWarps* kPartSums * 4);
    static_assert(kBytes <= 209 * 1024);
};

// Fetches a warp's weights: its granules of `tiles` tiles from `first` on, granule by granule.
template <typename S>
struct QuantFetcher {
    using W = typename S::W;
    unsigned ring;
    int lane, tiles;
    int alone;  // tile whose lower half is past the last row: the upper is read instead
    const std::byte* from;
    std::int64_t lower, next_tile, next_granule;  // in bytes
    int left;                                     // columns left in the row, from this granule on
    int tile = 0;
    unsigned to = 0;        // offset in the ring
    int scales, scales_to;  // source and target of this lane's scales; < 0: it has none

    __device__ QuantFetcher(const Params& p, unsigned ring_, int warp, int lane_, int first,
                            int tiles_)
        : ring(ring_), lane(lane_), tiles(tiles_) {
        const std::int64_t records = (p.k + W::kColumns - 1) / W::kColumns;
        const std::int64_t eight = records * W::kRecord;  // bytes of 8 rows
        const bool gate = p.finish == Finish::gate;
        lower = p.lower / 8 * eight;
        next_tile = gate ? eight : 2 * eight;
        next_granule = kWarps * W::kStep - tiles * next_tile;
        alone = (p.n + 7) / 8 % 2 ? p.tiles - 1 - first : -1;
        from = p.w + first * next_tile + warp * W::kStep + lane * 16;
        left = static_cast<int>(p.k) - warp * W::kGranule;
        // The first lanes fetch one half's scales, the next lanes the other's.
        constexpr int kPieces = W::kScaleBytes / 16, kAll = W::kRecords * kPieces;
        const int piece = lane % kAll;
        scales = lane < 2 * kAll ? piece / kPieces * W::kRecord + 512 + piece % kPieces * 16 : -1;
        scales_to = scales + (lane < kAll ? 0 : W::kHalf);
    }
    __device__ __forceinline__ void next() {
        if (left > 0) {
            const std::byte* below = from + (tile == alone ? 0 : lower);
            const unsigned at = ring + to + lane * 16;
#pragma unroll
            for (int i = 0; i < W::kRecords; ++i) {
                const bool on = i == 0 || left > i * W::kColumns;  // the last may be cut short
                copy16(at + i * W::kRecord, from + (on ? i * W::kRecord : 0), on);
                copy16(at + W::kHalf + i * W::kRecord, below + (on ? i * W::kRecord : 0), on);
            }
            if (scales >= 0) {
                const bool on = W::kRecords == 1 || scales < W::kRecord || left > W::kColumns;
                const std::byte* half = scales_to == scales ? from : below;
                copy16(ring + to + scales_to, half - lane * 16 + (on ? scales : 0), on);
            }
            to = to + S::kStageBytes == S::kStages * S::kStageBytes ? 0 : to + S::kStageBytes;
            from += next_tile;
            if (++tile == tiles) {
                tile = 0;
                from += next_granule;
                left -= kWarps * W::kGranule;
            }
        }
        commit_copies();
    }
};

// The inputs of a warp's granules, one after another through two slots, by TMA.
template <typename S>
struct QuantInputs {
    unsigned room, full;  // the slots, and their barriers
    int at = 0;           // next slot
    unsigned parity = 0;

    // Groups past the last keep old data: their results are not used.
    __device__ __forceinline__ void fetch(const Params& p, int granule, int to) const {
        barrier_expect(full + to * 8, p.x_stride);
        copy_bulk(room + to * S::kInputBytes,
                  static_cast<const std::byte*>(p.x) + std::int64_t{granule} * p.x_stride,
                  p.x_stride, full + to * 8);
    }
    __device__ __forceinline__ unsigned wait() const {
        barrier_wait(full + at * 8, parity);
        return room + at * S::kInputBytes;
    }
    __device__ __forceinline__ void next() {
        if (++at == S::kInputs) {
            at = 0;
            parity ^= 1;
        }
    }
};

// acc += a granule of a tile. from: its weights; x: the granule's inputs. kSome: skips groups that
// have none of the `tokens` tokens.
template <typename S, bool kSome>
__device__ __forceinline__ void multiply_tile(float (&acc)[S::kGroups][2][S::kSums], unsigned from,
                                              unsigned x, int lane, int tokens) {
    using M = Mid<typename S::W>;
#pragma unroll
    for (int piece = 0; piece < 2; ++piece) {
        typename M::Rows w[2];
        w[0].load(from, piece, lane);
        w[1].load(from + S::W::kHalf, piece, lane);
#pragma unroll
        for (int g = 0; g < S::kGroups; ++g) {
            if (kSome && g * 16 >= tokens) break;
            typename M::template Tokens<S::kFew> tokens;
            tokens.load(x + g * M::template kGroupBytes<S::kFew>, piece, lane);
#pragma unroll
            for (int half = 0; half < 2; ++half) M::multiply(acc[g][half], tokens, w[half]);
        }
    }
}

template <typename S, typename P>
__global__ void __launch_bounds__(S::kEntry, 1) quant_kernel(const P p) {
    using W = typename S::W;
    constexpr int kTiles = S::kTiles, kStages = S::kStages, kGroups = S::kGroups;
    constexpr bool kSome = kMakesRecords<P> && kGroups > 1;
    let_next_start();
    extern __shared__ __align__(128) std::byte shared[];
    __shared__ std::uint64_t barriers[kWarps][S::kInputs];
    __shared__ int2 where[S::kTokensMost];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    const int begin = static_cast<int>(std::int64_t{p.tiles} * block / blocks);
    const int end = static_cast<int>(std::int64_t{p.tiles} * (block + 1) / blocks);
    const int granules = static_cast<int>((p.k + W::kGranule - 1) / W::kGranule);
    const int count = (granules - warp + kWarps - 1) / kWarps;  // granules of this warp

    const unsigned room = shared_address(shared);
    QuantInputs<S> input{room + warp * S::kInputs * S::kInputBytes, shared_address(barriers[warp])};
    const unsigned ring =
        room + kWarps * S::kInputs * S::kInputBytes + warp * kStages * S::kStageBytes;
    if (lane == 0) {  // the barriers belong to this warp
        for (int i = 0; i < S::kInputs; ++i) barrier_init(input.full + i * 8, 1);
        barriers_ready();
    }
    __syncwarp();

    int tokens = p.rows;  // to multiply
#pragma unroll 1
    for (int first = begin; first < end; first += kTiles) {
        const int tiles = min(kTiles, end - first);
        QuantFetcher<S> weights(p, ring, warp, lane, first, tiles);
#pragma unroll 1
        for (int i = 0; i < kStages - 1; ++i) weights.next();
        if (first == begin) {
            wait_for_previous();
            stamp_begin(p.stamp);
            const std::uint64_t asked = asked_rows(p);
            note_places(p, asked, where);
            if constexpr (kMakesRecords<P>) tokens = __popcll(asked);
        }
        // Fetches this warp's i-th granule into slot `at`.
        const auto fetch_input = [&](int i, int at) {
            if (i < count && lane == 0) input.fetch(p, warp + i * kWarps, at);
        };
        for (int i = 0; i < S::kInputs; ++i) fetch_input(i, (input.at + i) % S::kInputs);

        float acc[kTiles][kGroups][2][S::kSums] = {};
        unsigned slot = 0;
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            const unsigned x = input.wait();
#pragma unroll
            for (int t = 0; t < kTiles; ++t) {
                if (t >= tiles) break;
                wait_for_copies<kStages - 2>();
                __syncwarp();    // the scales come from other lanes
                weights.next();  // into the previous stage, which this warp has used
                multiply_tile<S, kSome>(acc[t], ring + slot, x, lane, tokens);
                slot =
                    slot + S::kStageBytes == kStages * S::kStageBytes ? 0 : slot + S::kStageBytes;
            }
            // Not earlier: the products above have been issued, so all lanes have the inputs in
            // registers. With only the loads issued, TMA was seen to overwrite the inputs first.
            // The asm makes the compiler finish the sums here.
#pragma unroll
            for (int t = 0; t < kTiles; ++t) {
#pragma unroll
                for (int g = 0; g < kGroups; ++g) asm volatile("" : "+f"(acc[t][g][1][0]));
            }
            __syncwarp();
            fetch_input(i + S::kInputs, input.at);
            input.next();
        }
        wait_for_copies<0>();
        __syncthreads();  // all warps are done with their rings
        auto* sums = reinterpret_cast<float*>(shared);
        float* to = sums + warp * S::kPartSums + lane / 4 * S::kSumStride + lane % 4 * 2;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
            if (t >= tiles) break;
#pragma unroll
            for (int i = 0; i < 2 * kGroups; ++i) {
                const float* v = acc[t][i / 2][i % 2];
                float* at = to + i / 2 * 16 * S::kSumStride + t * kTileRows + i % 2 * 8;
                *reinterpret_cast<float2*>(at) = {v[0], v[1]};
                if constexpr (!S::kFew) {
                    *reinterpret_cast<float2*>(at + 8 * S::kSumStride) = {v[2], v[3]};
                }
            }
        }
        __syncthreads();
        finish_sums<S, bf16>(p, where, tokens, first, tiles, sums);
        if (first + kTiles < end) {
            stores_before_products();  // TMA will write there again
            __syncthreads();
        }
    }
    stamp_end(p.stamp);
}

template <typename S, typename P>
void start(const Context& ctx, const P& p) {
    allow_shared(quant_kernel<S, P>, S::kBytes);
    launch(ctx, dim3(static_cast<unsigned>(std::min(this_gpu().multiprocessors, p.tiles))),
           dim3(S::kThreads), S::kBytes, quant_kernel<S, P>, p);
}

}  // namespace

template <typename Layout, typename P>
void run_mid_quant(const Context& ctx, const P& p) {
    // One shape for all products of a number of tokens: fewer tiles for products with fewer rows of
    // weights win alone and lose in a layer (docs/cuda-engine.md).
    if (p.rows <= 8) return start<QuantShape<Layout, 1, 11, 105>>(ctx, p);
    if (p.rows <= 16) return start<QuantShape<Layout, 2, 6, 105>>(ctx, p);
    start<QuantShape<Layout, 4, 6, 105, 336>>(ctx, p);
}
template void run_mid_quant<Q8Layout>(const Context&, const Params&);
template void run_mid_quant<Q4Layout>(const Context&, const Params&);
template void run_mid_quant<Q8Layout>(const Context&, const RecordParams&);
template void run_mid_quant<Q4Layout>(const Context&, const RecordParams&);

}  // namespace mr::cuda::small
