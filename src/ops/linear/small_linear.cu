// linear_small(): one kernel for every product of a decode step.
//
//   fill the ring with weights | wait for the previous kernel | input (norm, quantise) to shared
//   memory | stream the weights through the tensor cores | add up the warps | finish
//
// A block works on every gridDim-th tile of 16 rows; its 8 warps share a tile's columns, an eighth
// each. The share depends on k alone and the 8 sums are added in one fixed tree, so the bits of a
// result do not depend on the number of tokens or blocks.
#include <algorithm>
#include <type_traits>

#include "ops/linear/small_finish.cuh"
#include "ops/linear/small_input.cuh"
#include "ops/linear/small_linear.cuh"
#include "ops/linear/small_params.cuh"

namespace mr::cuda::small {
namespace {

// A warp's position in its stream of weights: granule after granule of its tiles.
template <typename W>
struct Cursor {
    RowPointers from{};
    int tile, tile_step, part, share;
    int stages;       // stages left in all
    int left = 0;     // ... in this tile
    int columns = 0;  // columns left in the tile's rows

    __device__ Cursor(int tile_, int tile_step_, int part_, int share_, int stages_)
        : tile(tile_), tile_step(tile_step_), part(part_), share(share_), stages(stages_) {}
    // At the end of a tile, moves to the next one.
    __device__ __forceinline__ void settle(const Params& p, int lane) {
        if (left > 0) return;
        const int upper = tile * (p.finish == Finish::gate ? kTileRows / 2 : kTileRows);
        from = W::rows(p.w, p.k, p.n, upper, upper + p.lower, lane);
        from.upper += part * W::kStep;
        from.lower += part * W::kStep;
        left = share;
        columns = static_cast<int>(p.k) - part * W::kGranule;
        tile += tile_step;
    }
    __device__ __forceinline__ void step() {
        --stages;
        --left;
        columns -= kWarps * W::kGranule;
        from.upper += kWarps * W::kStep;
        from.lower += kWarps * W::kStep;
    }
};

// W: layout of the weights; T: compute type; kStages: depth of a warp's ring; kOne: one token.
template <typename W, typename T, int kStages, bool kOne>
__global__ void __launch_bounds__(kInputThreads, 2) kernel(const Params p) {
    // At once: the next kernel's blocks wait for room. They take the places of the previous
    // kernel's blocks, one per multiprocessor, and fill their rings while this kernel is busy.
    let_next_start();
    extern __shared__ __align__(128) std::byte shared[];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int part = warp;
    const int granules = static_cast<int>((p.k + W::kGranule - 1) / W::kGranule);
    std::byte* input = shared + kWarps * kStages * W::kStageBytes;
    float* scales = reinterpret_cast<float*>(input + p.rows * p.x_stride);
    float* sums = scales + (W::kQuantised ? p.rows * granules * (W::kGranule / 32) : 0);

    // This warp's granules: part, part + 8, ..., so that the block reads rows front to back.
    const int share = (granules - part + kWarps - 1) / kWarps;
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    const int tiles = (p.tiles - block + blocks - 1) / blocks;  // of this block
    const unsigned ring = shared_address(shared) + warp * kStages * W::kStageBytes;
    constexpr unsigned kRing = kStages * W::kStageBytes;

    // Fetching runs ahead of multiplying, across tiles.
    Cursor<W> fetch(block, blocks, part, share, tiles * share);
    unsigned fetch_to = 0;  // offset in the ring
    const auto fetch_one = [&] {
        if (fetch.stages > 0) {
            fetch.settle(p, lane);
            W::stage(ring + fetch_to, fetch.from, fetch.columns, lane);
            fetch.step();
            fetch_to = fetch_to + W::kStageBytes == kRing ? 0 : fetch_to + W::kStageBytes;
        }
        commit_copies();
    };
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) fetch_one();
    HeldNorm<W> held;
    if (HeldNorm<W>::possible(p)) held.load(p);

    wait_for_previous();
    const StageClock clock(p.stamp);
    // For keys and values: position and page of each token.
    __shared__ int2 where[kTokens];
    if (p.finish == Finish::qkv && static_cast<int>(threadIdx.x) < p.rows) {
        where[threadIdx.x] = place_of(p, static_cast<int>(threadIdx.x));
    }
    // The value to which this thread's first result is added.
    float residual = 0;
    if (p.finish == Finish::add) {
        const int i = static_cast<int>(threadIdx.x), per_tile = kTileRows * p.rows;
        const int row = (block + i / per_tile * blocks) * kTileRows + i % per_tile / p.rows;
        if (row < p.n && i / per_tile < min(tiles, p.pass_tiles)) {
            residual = static_cast<const float*>(
                p.out)[static_cast<std::int64_t>(i % p.rows) * p.out_cols + row];
        }
    }
    const int columns = granules * W::kGranule;
    for (int row = 0; row < p.rows; ++row) {
        if (p.norm_weight && row > 0) __syncthreads();  // the statistics reuse their memory
        const SharedRow<W> to{input + row * p.x_stride, scales + row * (columns / 32)};
        load_row<W, T>(p, held, row, to, columns, sums);
    }
    __syncthreads();

    const int token = kOne ? 0 : min(lane / 4, p.rows - 1);
    const unsigned x0 =
        W::input(shared_address(input) + token * p.x_stride + part * W::kInputStep, lane);
    constexpr int kBlocks = W::kGranule / 32;
    const int token_a = kOne ? 0 : min(lane % 4 * 2, p.rows - 1);
    const int token_b = kOne ? 0 : min(lane % 4 * 2 + 1, p.rows - 1);
    const float* a0 = scales + (token_a * granules + part) * kBlocks;
    const float* b0 = scales + (token_b * granules + part) * kBlocks;

    unsigned slot = 0;
    for (int first = 0; first < tiles; first += p.pass_tiles) {
        const int count = min(p.pass_tiles, tiles - first);
        for (int local = 0; local < count; ++local) {
            float acc[4] = {};
            unsigned x = x0;
            const float *a = a0, *b = b0;
            for (int i = 0; i < share; ++i) {
                wait_for_copies<kStages - 2>();
                if constexpr (W::kQuantised) __syncwarp();  // the scales come from other lanes
                // Into the previous stage, which every lane has used.
                fetch_one();
                W::template multiply<kOne>(acc, ring + slot, x, a, b, lane);
                x += kWarps * W::kInputStep;
                a += kWarps * kBlocks, b += kWarps * kBlocks;
                slot = slot + W::kStageBytes == kRing ? 0 : slot + W::kStageBytes;
            }
            float* to = sums + (local * kWarps + part) * kTileRows * p.rows;
            const int g = lane / 4, even = lane % 4 * 2;
            if (even < p.rows) {
                to[g * p.rows + even] = acc[0];
                to[(g + 8) * p.rows + even] = acc[2];
            }
            if (even + 1 < p.rows) {
                to[g * p.rows + even + 1] = acc[1];
                to[(g + 8) * p.rows + even + 1] = acc[3];
            }
        }
        __syncthreads();
        finish_tiles<kInputThreads, kOne, T>(p, where, sums, block + first * blocks, blocks, count,
                                             residual, first == 0);
        if (first + p.pass_tiles < tiles) __syncthreads();
    }
    wait_for_copies<0>();
}

template <typename W>
RoomLayout shared_layout(int stages, std::int64_t k, int rows, int tiles_a_block) {
    RoomLayout s = room_layout<W>(k, rows, tiles_a_block, 16 * 1024);
    s.bytes += static_cast<std::size_t>(kWarps * stages) * W::kStageBytes;
    return s;
}

struct Limits {
    int multiprocessors;
    std::size_t shared;  // per block
};
const Limits& limits() {
    static const Limits l = [] {
        const DeviceInfo info = require_device();
        return Limits{info.multiprocessors, info.shared_per_block - 256};  // fixed arrays
    }();
    return l;
}

template <typename W, typename T, int kStages, bool kOne>
void start(const Context& ctx, Params& p, int blocks, const RoomLayout& s) {
    p.x_stride = s.x_stride;
    p.pass_tiles = s.pass_tiles;
    static const bool allowed = [] {
        allow_shared(kernel<W, T, kStages, kOne>, limits().shared);
        return true;
    }();
    (void)allowed;
    launch(ctx, dim3(static_cast<unsigned>(blocks)), dim3(kInputThreads), s.bytes,
           kernel<W, T, kStages, kOne>, p);
}

// The deepest ring that leaves room for the next kernel's block beside this one; if none does, the
// deepest that fits at all. Depths go from deep to shallow.
template <typename W, typename T, int... kDepths>
void start_any(const Context& ctx, Params p) {
    const int blocks = std::min(p.tiles, limits().multiprocessors);
    const int tiles_a_block = (p.tiles + blocks - 1) / blocks;
    // A block takes 1 KB more shared memory than it asks for.
    const std::size_t half = (limits().shared + 1024) / 2 - 1024;
    for (const std::size_t most : {half, limits().shared}) {
        bool started = false;
        const auto consider = [&](auto depth) {
            constexpr int kDepth = decltype(depth)::value;
            if (started || (most == half && kDepth < 4)) return;
            const RoomLayout s = shared_layout<W>(kDepth, p.k, p.rows, tiles_a_block);
            if (s.bytes > most) return;
            started = true;
            if (p.rows == 1) {
                start<W, T, kDepth, true>(ctx, p, blocks, s);
            } else {
                start<W, T, kDepth, false>(ctx, p, blocks, s);
            }
        };
        (consider(std::integral_constant<int, kDepths>{}), ...);
        if (started) return;
    }
    MR_CHECK(false, "a token's input fits into shared memory");
}

// Tokens a pass can take: their inputs must fit beside a shallow ring.
template <typename W, int kShallow>
int tokens_a_pass(std::int64_t k, int tiles) {
    const int blocks = std::min(tiles, limits().multiprocessors);
    for (int rows = kTokens; rows > 1; --rows) {
        if (shared_layout<W>(kShallow, k, rows, (tiles + blocks - 1) / blocks).bytes <=
            limits().shared) {
            return rows;
        }
    }
    return 1;
}

}  // namespace

void run_small(const Context& ctx, DType weights, const Params& all) {
    const auto by_passes = [&](int most, auto&& run) {
        for (int first = 0; first < all.rows; first += most) {
            run(pass_of(all, first, std::min(most, all.rows - first)));
        }
    };
    switch (weights) {
        case DType::bf16:
            return by_passes(tokens_a_pass<HalfWeights<bf16>, 2>(all.k, all.tiles), [&](Params p) {
                start_any<HalfWeights<bf16>, bf16, 6, 5, 4, 2>(ctx, p);
            });
        case DType::f16:
            return by_passes(
                tokens_a_pass<HalfWeights<__half>, 2>(all.k, all.tiles),
                [&](Params p) { start_any<HalfWeights<__half>, __half, 6, 5, 4, 2>(ctx, p); });
        case DType::q8_0x8:
            return by_passes(
                tokens_a_pass<QuantWeights<Q8Layout>, 2>(all.k, all.tiles),
                [&](Params p) { start_any<QuantWeights<Q8Layout>, bf16, 5, 4, 2>(ctx, p); });
        case DType::q4_0x8:
            return by_passes(
                tokens_a_pass<QuantWeights<Q4Layout>, 2>(all.k, all.tiles),
                [&](Params p) { start_any<QuantWeights<Q4Layout>, bf16, 10, 8, 5, 2>(ctx, p); });
        default:
            MR_CHECK(false, "the weights are f16, bf16, q8_0x8 or q4_0x8");
    }
}

}  // namespace mr::cuda::small
