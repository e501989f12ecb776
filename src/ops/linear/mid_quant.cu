// linear_small() for 5 to 32 tokens with quantised weights: mid_half.cu's way, a block to a
// multiprocessor, which has its rows for itself.
//
//   fill the rings with weights | wait for the previous kernel | weights and inputs through the
//   tensor cores | add up the warps | finish
//
// A warp has one eighth of the granules and waits for no other warp. All tiles of the block, up to
// kTiles, take their turn before it goes on to the next granule, so that the inputs pass once; the
// sums of all tiles stay in registers. Instructions are dear here: a result has three for each
// block of 32 columns, at 32 tokens half of what a warp can issue while its weights come. So the
// weights are walked through with running pointers, and inputs lie as the tensor cores want them.
#include <algorithm>

#include "core/cuda/tma.cuh"
#include "ops/linear/mid_linear.cuh"
#include "ops/linear/record_finish.cuh"

namespace mr::cuda::small {
namespace {

// NT: groups of 8 tokens, 1, 2 or 4; kTiles: of a pass over the inputs, at most; kRing: KB of a
// block's ring of weights; kEntry: threads as many as which would have all registers: beside 256 of
// them a block of the kernel that prepares the next inputs finds room.
template <typename Layout, int kNT, int kTiles_, int kRing, int kEntry_ = 256>
struct QuantShape {
    using W = QuantWeights<Layout>;
    static constexpr bool kFew = kNT == 1;
    static constexpr int kTiles = kTiles_, kEntry = kEntry_;
    static constexpr int kThreads = 32 * kWarps, kTokensMost = 8 * kNT;
    static constexpr int kGroups = kFew ? 1 : kNT / 2;
    static constexpr int kSums = kFew ? 2 : 4;          // of a lane: a group and 8 rows
    static constexpr int kStageBytes = W::kStageBytes;  // a granule of a tile
    static constexpr int kStages = kRing * 1024 / (kWarps * kStageBytes);
    static constexpr int kInputBytes = kGroups * Mid<W>::template kGroupBytes<kFew>, kInputs = 2;
    // The sums take the rings' place: f32 [8 parts][tokens][rows, padded so that neither writing
    // them as the tensor cores have them nor reading rows meets one bank twice].
    static constexpr int kSumStride = kTileRows * kTiles + 8;
    static constexpr int kPartSums = kTokensMost * kSumStride;
    static constexpr int kRings = kWarps * (kInputs * kInputBytes + kStages * kStageBytes);
    static constexpr int kBytes = std::max(kRings, kWarps* kPartSums * 4);
    static_assert(kBytes <= 209 * 1024);
};

// The weights of a warp: its granules of `tiles` tiles from `first` on, granule by granule.
template <typename S>
struct Fetcher {
    using W = typename S::W;
    unsigned ring;
    int lane, tiles;
    int alone;  // the tile whose lower half is past the last row: the upper one comes instead
    const std::byte* from;
    std::int64_t lower, next_tile, next_granule;  // bytes
    int left;                                     // columns from the granule's first one on
    int tile = 0;
    unsigned to = 0;        // in the ring
    int scales, scales_to;  // where this lane's part of the scales is and goes; < 0: it has none

    __device__ Fetcher(const Params& p, unsigned ring_, int warp, int lane_, int first, int tiles_)
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
        // The first lanes bring one half's, the next ones the other's.
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
                const bool on = i == 0 || left > i * W::kColumns;  // a last one may be cut short
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

// The inputs of a warp's granules, one after another through two places, by the copy engine.
template <typename S>
struct Inputs {
    unsigned room, full;  // where they come to, and the barriers that say so
    int at = 0;           // which place is next
    unsigned parity = 0;

    // Groups past the last stay as they are: their results go nowhere.
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

// acc += a granule of a tile. from: its weights; x: the granule's inputs. kSome: groups without one
// of `tokens` tokens are left out.
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
    const int count = (granules - warp + kWarps - 1) / kWarps;  // of this warp

    const unsigned room = shared_address(shared);
    Inputs<S> input{room + warp * S::kInputs * S::kInputBytes, shared_address(barriers[warp])};
    const unsigned ring =
        room + kWarps * S::kInputs * S::kInputBytes + warp * kStages * S::kStageBytes;
    if (lane == 0) {  // only this warp uses them
        for (int i = 0; i < S::kInputs; ++i) barrier_init(input.full + i * 8, 1);
        barriers_ready();
    }
    __syncwarp();

    int tokens = p.rows;  // that are multiplied
#pragma unroll 1
    for (int first = begin; first < end; first += kTiles) {
        const int tiles = min(kTiles, end - first);
        Fetcher<S> weights(p, ring, warp, lane, first, tiles);
#pragma unroll 1
        for (int i = 0; i < kStages - 1; ++i) weights.next();
        if (first == begin) {
            wait_for_previous();
            stamp_begin(p.stamp);
            const std::uint64_t asked = asked_rows(p);
            note_places(p, asked, where);
            if constexpr (kMakesRecords<P>) tokens = __popcll(asked);
        }
        // Granule i of this warp's, into the place `at`.
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
                weights.next();  // into the stage before this one, which this warp has done with
                multiply_tile<S, kSome>(acc[t], ring + slot, x, lane, tokens);
                slot =
                    slot + S::kStageBytes == kStages * S::kStageBytes ? 0 : slot + S::kStageBytes;
            }
            // Not earlier: the products above have been issued, so all lanes have the inputs in
            // registers. Where only their loads had been issued, the copy engine was seen to be
            // faster than they. So the compiler is told that the sums are looked at here.
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
        __syncthreads();  // all warps have done with their rings
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
            stores_before_products();  // the copy engine will write there again
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
    // One shape for all products of a number of rows: fewer tiles for products with fewer rows of
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
