// linear_small() for 5 to 32 tokens with f16 or bf16 weights: one block per multiprocessor, each
// with its own rows.
//
//   fill the rings with weights | wait for the previous kernel | weights and inputs through the
//   tensor cores | add up the warps | finish
//
// As in small_linear.cu a warp has one eighth of the granules, loads its own
// weights and waits for no other warp; a block reads 1 KB of each of 16 rows,
// then of the next 16. Here a granule is multiplied with all tiles of the block,
// up to kTiles, before the next granule: so the inputs of a granule, which are
// as many bytes as the weights of 32 rows (at 32 tokens), are loaded once. The
// instructions of a result, and their order, are those of small_linear.cuh.
#include <algorithm>
#include <type_traits>

#include "core/cuda/tensor_map.h"
#include "core/cuda/tma.cuh"
#include "ops/linear/mid_linear.cuh"
#include "ops/linear/record_finish.cuh"

namespace mr::cuda::small {
namespace {

// NT: groups of 8 tokens; kTiles: most tiles of a pass over the inputs; kStages: of a warp's ring
// of weights.
template <int kNT_, int kTiles_, int kStages_>
struct HalfShape {
    static constexpr int kNT = kNT_, kTiles = kTiles_, kStages = kStages_;
    static constexpr int kTokensMost = 8 * kNT;
    static constexpr int kThreads = 32 * kWarps;
    static constexpr int kStageBytes = 2048;                            // a granule of a tile
    static constexpr int kInputBytes = kTokensMost * 128, kInputs = 2;  // ring of input granules
    // The sums reuse the rings' memory: f32 [8 parts][tokens][rows], rows padded so that neither
    // the stores in the tensor cores' layout nor the loads of rows have bank conflicts.
    static constexpr int kSumStride = kTileRows * kTiles + 8;
    static constexpr int kPartSums = kTokensMost * kSumStride;
    static constexpr int kRings = kWarps * (kInputs * kInputBytes + kStages * kStageBytes);
    static constexpr int kBytes = std::max(kRings, kWarps* kPartSums * 4);
    static_assert(kBytes <= 209 * 1024);  // mid_possible(); fixed arrays are 1 KB
};

// TMA swizzles: 16-byte chunk `c` of row r (128 bytes) lies at c ^ r % 8. Token g of the tensor
// cores' 8 is token place(g) of the group, so that the two tokens read at once lie in different
// banks. A lane's results are then of tokens t = lane % 4 and t + 4.
__device__ __forceinline__ int place(int g) { return g >> 1 | (g & 1) << 2; }

// Fetches a warp's weights: its granules of `tiles` tiles from `first` on, granule by granule.
template <typename T, typename S>
struct Fetcher {
    using W = HalfWeights<T>;
    unsigned ring;
    int warp, lane, count;  // count: granules
    int first, tiles;
    int tile = 0, granule = 0;
    unsigned to = 0;  // offset in the ring

    __device__ __forceinline__ void next(const Params& p) {
        if (granule < count) {
            const int upper =
                (first + tile) * (p.finish == Finish::gate ? kTileRows / 2 : kTileRows);
            RowPointers from = W::rows(p.w, p.k, p.n, upper, upper + p.lower, lane);
            const int at = warp + granule * kWarps;
            from.upper += at * W::kStep;
            from.lower += at * W::kStep;
            W::stage(ring + to, from, static_cast<int>(p.k) - at * W::kGranule, lane);
            to = to + S::kStageBytes == S::kStages * S::kStageBytes ? 0 : to + S::kStageBytes;
            if (++tile == tiles) {
                tile = 0;
                ++granule;
            }
        }
        commit_copies();
    }
};

// The inputs of a warp's granules, one after another through two slots, by TMA.
template <typename T, typename S>
struct Inputs {
    unsigned room, full;  // the slots, and their barriers
    int at = 0;           // next slot
    unsigned parity = 0;

    __device__ __forceinline__ void fetch(const CUtensorMap& map, int granule, int to) const {
        barrier_expect(full + to * 8, S::kInputBytes);
        copy_box(room + to * S::kInputBytes, map, granule * HalfWeights<T>::kGranule, 0, 0,
                 full + to * 8);
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

// acc += a granule of a tile; from, x: this lane's weights and inputs. kSome: skips groups that
// have none of the `tokens` tokens.
template <typename T, bool kSome, int kNT>
__device__ __forceinline__ void multiply_tile(float (&acc)[kNT][4], unsigned from, unsigned x,
                                              int tokens) {
    const auto has = [&](int nt) { return !kSome || nt * 8 < tokens; };
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const uint4 u = load16(from + j * 512);
        const uint4 l = load16(from + 1024 + j * 512);
        uint4 b[kNT];
#pragma unroll
        for (int nt = 0; nt < kNT; ++nt) {
            if (has(nt)) b[nt] = load16((x ^ j * 64) + nt * 1024);
        }
#pragma unroll
        for (int nt = 0; nt < kNT; ++nt) {
            if (has(nt)) mma<T>(acc[nt], u.x, l.x, u.y, l.y, b[nt].x, b[nt].y);
        }
#pragma unroll
        for (int nt = 0; nt < kNT; ++nt) {
            if (has(nt)) mma<T>(acc[nt], u.z, l.z, u.w, l.w, b[nt].z, b[nt].w);
        }
    }
}

template <typename T, typename S, typename P>
__global__ void __launch_bounds__(S::kThreads, 1)
    half_kernel(const P p, const __grid_constant__ CUtensorMap inputs) {
    using W = HalfWeights<T>;
    constexpr int kNT = S::kNT, kTiles = S::kTiles, kStages = S::kStages;
    constexpr bool kSome = kMakesRecords<P> && kNT > 1;
    static_assert(S::kStageBytes == W::kStageBytes);
    let_next_start();
    extern __shared__ __align__(1024) std::byte shared[];
    __shared__ std::uint64_t barriers[kWarps][S::kInputs];
    __shared__ int2 where[S::kTokensMost];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    const int begin = static_cast<int>(std::int64_t{p.tiles} * block / blocks);
    const int end = static_cast<int>(std::int64_t{p.tiles} * (block + 1) / blocks);
    const int granules = static_cast<int>((p.k + W::kGranule - 1) / W::kGranule);
    const int count = (granules - warp + kWarps - 1) / kWarps;  // granules of this warp

    const unsigned room = shared_address(shared);
    Inputs<T, S> x{room + warp * S::kInputs * S::kInputBytes, shared_address(barriers[warp])};
    const unsigned ring =
        room + kWarps * S::kInputs * S::kInputBytes + warp * kStages * S::kStageBytes;
    if (lane == 0) {  // the barriers belong to this warp
        for (int i = 0; i < S::kInputs; ++i) barrier_init(x.full + i * 8, 1);
        barriers_ready();
        prefetch_map(inputs);
    }
    __syncwarp();

    int tokens = p.rows;  // to multiply
#pragma unroll 1
    for (int first = begin; first < end; first += kTiles) {
        const int tiles = min(kTiles, end - first);
        Fetcher<T, S> weights{ring, warp, lane, count, first, tiles};
#pragma unroll 1
        for (int i = 0; i < kStages - 1; ++i) weights.next(p);
        if (first == begin) {
            wait_for_previous();
            stamp_begin(p.stamp);
            const std::uint64_t asked = asked_rows(p);
            note_places(p, asked, where);
            if constexpr (kMakesRecords<P>) tokens = __popcll(asked);
        }
        // Fetches this warp's i-th granule into slot `at`.
        const auto fetch_input = [&](int i, int at) {
            if (i < count && lane == 0) x.fetch(inputs, warp + i * kWarps, at);
        };
        for (int i = 0; i < S::kInputs; ++i) fetch_input(i, (x.at + i) % S::kInputs);

        const int g = place(lane / 4);
        const unsigned mine = g * 128 + ((lane % 4 ^ (g & 3)) | (g >> 2) << 2) * 16;
        float acc[kTiles][kNT][4] = {};
        unsigned slot = 0;
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            const unsigned from_x = x.wait() + mine;
#pragma unroll
            for (int t = 0; t < kTiles; ++t) {
                if (t >= tiles) break;
                wait_for_copies<kStages - 2>();
                weights.next(p);  // into the previous stage, which this lane has used
                multiply_tile<T, kSome>(acc[t], ring + slot + lane * 16, from_x, tokens);
                slot =
                    slot + S::kStageBytes == kStages * S::kStageBytes ? 0 : slot + S::kStageBytes;
            }
            // Not earlier: the products above have been issued, so all lanes have the inputs in
            // registers. With only the loads issued, TMA was seen to overwrite the inputs first.
            // The asm makes the compiler finish the sums here.
#pragma unroll
            for (int t = 0; t < kTiles; ++t) {
#pragma unroll
                for (int nt = 0; nt < kNT; ++nt) asm volatile("" : "+f"(acc[t][nt][0]));
            }
            __syncwarp();
            fetch_input(i + S::kInputs, x.at);
            x.next();
        }
        wait_for_copies<0>();
        __syncthreads();  // all warps are done with their rings
        auto* sums = reinterpret_cast<float*>(shared);
        float* to = sums + warp * S::kPartSums + lane % 4 * S::kSumStride + lane / 4;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
            if (t >= tiles) break;
#pragma unroll
            for (int nt = 0; nt < kNT; ++nt) {
                float* at = to + nt * 8 * S::kSumStride + t * kTileRows;
                at[0] = acc[t][nt][0];
                at[4 * S::kSumStride] = acc[t][nt][1];
                at[8] = acc[t][nt][2];
                at[4 * S::kSumStride + 8] = acc[t][nt][3];
            }
        }
        __syncthreads();
        finish_sums<S, T>(p, where, tokens, first, tiles, sums);
        if (first + kTiles < end) {
            stores_before_products();  // TMA will write there again
            __syncthreads();
        }
    }
    stamp_end(p.stamp);
}

template <typename T, typename S, typename P>
void start(const Context& ctx, const P& p) {
    allow_shared(half_kernel<T, S, P>, S::kBytes);
    const DType type = std::is_same_v<T, bf16> ? DType::bf16 : DType::f16;
    const CUtensorMap inputs =
        head_rows_map(p.x, type, p.rows, 1, p.k, p.x_stride / 2, S::kTokensMost);
    launch(ctx, dim3(static_cast<unsigned>(std::min(this_gpu().multiprocessors, p.tiles))),
           dim3(S::kThreads), S::kBytes, half_kernel<T, S, P>, p, inputs);
}

}  // namespace

template <typename T, typename P>
void run_mid_half(const Context& ctx, const P& p) {
    if (p.rows <= 8) return start<T, HalfShape<1, 11, 7>>(ctx, p);
    if (p.rows <= 16) return start<T, HalfShape<2, 11, 6>>(ctx, p);
    // All of a block's tiles in one pass if the registers suffice. Records are made for
    // vocabularies, which are large.
    if (kMakesRecords<P> || p.tiles > 6 * this_gpu().multiprocessors) {
        return start<T, HalfShape<4, 11, 8>>(ctx, p);
    }
    if constexpr (!kMakesRecords<P>) start<T, HalfShape<4, 6, 6>>(ctx, p);
}
template void run_mid_half<bf16>(const Context&, const Params&);
template void run_mid_half<__half>(const Context&, const Params&);
template void run_mid_half<bf16>(const Context&, const RecordParams&);
template void run_mid_half<__half>(const Context&, const RecordParams&);

}  // namespace mr::cuda::small
