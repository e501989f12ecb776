// linear_small() for 5 tokens and more: the weights are read once for up to 64 of them, and every
// result has the bits that small_linear.cu gives it. f16 and bf16 weights go on to mid_half.cu and
// wide_half.cu, the quantised ones are here:
//
//   (norm, quantise: a kernel of its own) | fill the ring with weights | wait for the previous
//   kernel | inputs into the ring | weights and inputs through the tensor cores | the 8 parts of a
//   result meet in one block | finish
//
// A result is a tree of 8 sums, one for each eighth of the granules. A cluster of kCluster blocks
// works on kCluster strips of R tiles of 16 rows, and a block on kBlockParts of the eighths: its
// warps share the inputs of an eighth and differ in their strips, so inputs are read from L2 once
// for 128 R rows of weights. At the end, the block of rank s is sent all parts of strip s.
//
// Mostly two blocks fit on a multiprocessor: while one ends, the other streams, be it of this
// kernel or of the next one.
#include <algorithm>

#include "core/cuda/cluster.cuh"
#include "ops/linear/mid_linear.cuh"
#include "ops/linear/small_finish.cuh"
#include "ops/linear/small_input.cuh"

namespace mr::cuda::small {
namespace {

constexpr int kMidThreads = 32 * kWarps;
constexpr int kPreparedRows = 256;  // tokens whose inputs are prepared at once

// R: tiles of a strip; NT: groups of 8 tokens.
template <typename W, int kR, int kNT>
struct MidShape {
    static constexpr int kTokensMost = 8 * kNT;
    static constexpr int kWeightBytes = kWarps * kR * W::kStageBytes;
    static constexpr int kInputBytes = kNT * Mid<W>::kGroupBytes;  // of one part
    static constexpr int kStageBytes = kWeightBytes + kBlockParts * kInputBytes;
    // Blocks that a multiprocessor takes at once: two tiles of quantised weights and 64 tokens need
    // more than half of its registers. Shared memory for them, less fixed arrays and what a block
    // costs.
    static constexpr int kBlocks = kR * kNT >= 16 ? 1 : 2;
    static constexpr int kMost = (kBlocks == 1 ? 200 : 112) * 1024;
    static constexpr int kStages = std::clamp(kMost / kStageBytes, 2, 6);
    // The sums take the ring's place: f32 [8 parts][tokens][R * 16 rows, padded so that neither
    // writing them as the tensor cores have them nor reading rows meets one bank twice].
    static constexpr int kSumStride = kTileRows * kR + 4;
    static constexpr int kPartSums = kTokensMost * kSumStride;
    static constexpr int kBytes = std::max<int>(kStages * kStageBytes, kWarps* kPartSums * 4);
    static_assert(kBytes <= kMost);
};

// The inputs of all tokens, normed and rounded to T or quantised: a block a token.
template <typename W, typename T>
__global__ void __launch_bounds__(kMidThreads)
    input_kernel(const Params p, std::byte* to, int stride) {
    let_next_start();
    HeldNorm<W> held;
    if (HeldNorm<W>::possible(p)) held.load(p);
    wait_for_previous();
    const StageClock clock(p.stamp);
    __shared__ float shared[kRowShared<kInputThreads>];
    const int columns = static_cast<int>((p.k + W::kGranule - 1) / W::kGranule) * W::kGranule;
    const int row = static_cast<int>(blockIdx.x);
    load_row<W, T>(p, held, row, typename Mid<W>::Row(to, row, stride), columns, shared);
}

template <typename W, typename T, int kR, int kNT>
__global__ void __launch_bounds__(kMidThreads, MidShape<W, kR, kNT>::kBlocks)
    mid_kernel(const Params p) {
    using S = MidShape<W, kR, kNT>;
    constexpr int kStages = S::kStages;
    let_next_start();
    extern __shared__ __align__(128) std::byte shared[];
    __shared__ int2 where[S::kTokensMost];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int rank = static_cast<int>(blockIdx.x) % kCluster;
    const int first_tile = static_cast<int>(blockIdx.x) / kCluster * kCluster * kR;
    const int strip = warp / kBlockParts, local = warp % kBlockParts;
    const int part = rank * kBlockParts + local;
    const int granules = static_cast<int>((p.k + W::kGranule - 1) / W::kGranule);
    const int count = (granules - part + kWarps - 1) / kWarps;  // of this part's granules

    const unsigned ring = shared_address(shared);
    const unsigned my_weights = ring + warp * kR * W::kStageBytes;
    const unsigned my_input = ring + S::kWeightBytes + local * S::kInputBytes;

    RowPointers from[kR];
#pragma unroll
    for (int r = 0; r < kR; ++r) {
        const int tile = first_tile + strip * kR + r;
        const int upper = tile * (p.finish == Finish::gate ? kTileRows / 2 : kTileRows);
        from[r] = W::rows(p.w, p.k, p.n, upper, upper + p.lower, lane);
        from[r].upper += part * W::kStep;
        from[r].lower += part * W::kStep;
    }
    int columns = static_cast<int>(p.k) - part * W::kGranule;  // left of the rows
    const auto fetch_weights = [&](unsigned slot) {
#pragma unroll
        for (int r = 0; r < kR; ++r) {
            W::stage(my_weights + slot + r * W::kStageBytes, from[r], columns, lane);
            from[r].upper += kWarps * W::kStep;
            from[r].lower += kWarps * W::kStep;
        }
        columns -= kWarps * W::kGranule;
    };
    const auto fetch_input = [&](unsigned slot, int i) {
        Mid<W>::template fetch<kNT>(p, my_input + slot, part + kWarps * i, strip, lane);
    };
    // The first stages: their weights, each a group of copies, and later their inputs likewise, so
    // that at most kStages - 2 groups are younger than the one a stage waits for, here and below.
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) {
        if (i < count) fetch_weights(i * S::kStageBytes);
        commit_copies();
    }

    wait_for_previous();
    const StageClock clock(p.stamp);
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) {
        if (i < count) fetch_input(i * S::kStageBytes, i);
        commit_copies();
    }
    if (p.finish == Finish::qkv && static_cast<int>(threadIdx.x) < p.rows) {
        where[threadIdx.x] = place_of(p, static_cast<int>(threadIdx.x));
    }

    float acc[kR][kNT][4] = {};
    constexpr unsigned kRing = kStages * S::kStageBytes;
    unsigned slot = 0, next = (kStages - 1) * S::kStageBytes;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
        wait_for_copies<kStages - 2>();
        // The warps of this part: all their copies of the stage have come, and all have done with
        // the stage before, whose place is filled anew.
        asm volatile("bar.sync %0, %1;" ::"r"(local + 1), "n"(32 * kCluster) : "memory");
        if (i + kStages - 1 < count) {
            fetch_weights(next);
            fetch_input(next, i + kStages - 1);
        }
        commit_copies();
        Mid<W>::template multiply<kR, kNT>(acc, my_weights + slot, my_input + slot, lane);
        slot = slot + S::kStageBytes == kRing ? 0 : slot + S::kStageBytes;
        next = next + S::kStageBytes == kRing ? 0 : next + S::kStageBytes;
    }
    wait_for_copies<0>();

    cluster_barrier();  // nobody reads a ring any more
    const unsigned to = cluster_address(ring, strip) +
                        (part * S::kPartSums + lane % 4 * 2 * S::kSumStride + lane / 4) * 4;
#pragma unroll
    for (int r = 0; r < kR; ++r) {
#pragma unroll
        for (int nt = 0; nt < kNT; ++nt) {
            const unsigned at = to + (nt * 8 * S::kSumStride + r * kTileRows) * 4;
            cluster_store(at, acc[r][nt][0]);
            cluster_store(at + S::kSumStride * 4, acc[r][nt][1]);
            cluster_store(at + 8 * 4, acc[r][nt][2]);
            cluster_store(at + (S::kSumStride + 8) * 4, acc[r][nt][3]);
        }
    }
    cluster_barrier();
    const auto* sums = reinterpret_cast<const float*>(shared);
    finish_strip<kMidThreads, T>(p, where, first_tile + rank * kR, kR, [&](int token, int row) {
        return add_warps(sums + token * S::kSumStride + row, S::kPartSums);
    });
}

template <typename W, typename T, int kR, int kNT>
void start(const Context& ctx, const Params& p) {
    static const bool allowed = [] {
        allow_shared(mid_kernel<W, T, kR, kNT>, MidShape<W, kR, kNT>::kBytes);
        return true;
    }();
    (void)allowed;
    const int tiles = kCluster * kR;  // of a cluster
    launch_clusters(ctx, static_cast<unsigned>((p.tiles + tiles - 1) / tiles), kCluster,
                    dim3(kMidThreads), MidShape<W, kR, kNT>::kBytes, mid_kernel<W, T, kR, kNT>, p);
}

template <typename W, typename T>
void start_quantised(const Context& ctx, const Params& p) {
    // Strips of two tiles where they are enough to give nearly every multiprocessor a block.
    const bool two = (p.tiles + 1) / 2 * 4 >= 3 * this_gpu().multiprocessors;
    if (p.rows <= 8) {
        two ? start<W, T, 2, 1>(ctx, p) : start<W, T, 1, 1>(ctx, p);
    } else if (p.rows <= 16) {
        two ? start<W, T, 2, 2>(ctx, p) : start<W, T, 1, 2>(ctx, p);
    } else if (p.rows <= 32) {
        two ? start<W, T, 2, 4>(ctx, p) : start<W, T, 1, 4>(ctx, p);
    } else {
        two ? start<W, T, 2, 8>(ctx, p) : start<W, T, 1, 8>(ctx, p);
    }
}

template <typename W, typename T>
void run(const Context& ctx, const Params& all) {
    const bool prepare = W::kQuantised || all.norm_weight;
    MR_CHECK(!prepare || ctx.scratch.size() >= mid_scratch_bytes(all.rows, all.k),
             "the scratch has linear_small_scratch_bytes()");
    for (int first = 0; first < all.rows; first += kPreparedRows) {
        const Params some = pass_of(all, first, std::min(kPreparedRows, all.rows - first));
        const auto* x = static_cast<const std::byte*>(some.x);
        int stride = static_cast<int>(some.k) * 2;
        if (prepare) {
            stride = Mid<W>::stride(some.k, some.rows);
            launch(ctx, dim3(static_cast<unsigned>(some.rows)), dim3(kMidThreads), 0,
                   input_kernel<W, T>, some, ctx.scratch.data(), stride);
            x = ctx.scratch.data();
        }
        constexpr int kPass = W::kQuantised ? 64 : kMidHalfRows;
        for (int token = 0; token < some.rows; token += kPass) {
            Params p = pass_of(some, token, std::min(kPass, some.rows - token));
            p.x = x + Mid<W>::group(token / 8, stride);
            p.x_stride = stride;
            if constexpr (W::kQuantised) {
                start_quantised<W, T>(ctx, p);
            } else {
                run_mid_half<T>(ctx, p);
            }
        }
    }
}

}  // namespace

bool mid_possible() {
    static const bool possible = [] {
        const std::optional<DeviceInfo> info = device();
        return info && info->sm >= 90 && info->shared_per_block >= 210 * 1024;
    }();
    return possible;
}

// f16 and bf16: [rows, k]; 8 bits: less. Behind it what the blocks of wide_half.cu hand each other.
std::size_t mid_scratch_bytes(std::int64_t rows, std::int64_t k) {
    const auto inputs = static_cast<std::size_t>((std::min<std::int64_t>(rows, kPreparedRows) + 7) /
                                                 8 * 8 * ((k + 127) / 128 * 128) * 2);
    return inputs + (rows > kMidHalfRows ? wide_scratch_bytes() : 0);
}

void run_mid(const Context& ctx, DType weights, const Params& p) {
    // wgmma is there on sm_90 alone.
    const bool wide = p.rows > kMidHalfRows && this_gpu().sm == 90;
    switch (weights) {
        case DType::bf16:
            return wide ? run_wide<bf16>(ctx, p) : run<HalfWeights<bf16>, bf16>(ctx, p);
        case DType::f16:
            return wide ? run_wide<__half>(ctx, p) : run<HalfWeights<__half>, __half>(ctx, p);
        case DType::q8_0x8:
            return run<QuantWeights<Q8Layout>, bf16>(ctx, p);
        case DType::q4_0x8:
            return run<QuantWeights<Q4Layout>, bf16>(ctx, p);
        default:
            MR_CHECK(false, "the weights are f16, bf16, q8_0x8 or q4_0x8");
    }
}

}  // namespace mr::cuda::small
