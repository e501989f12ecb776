// linear_small() for 5 tokens and more: the weights are read from memory once for many tokens, and
// every result has the same bits as from small_linear.cu. This file has the kernel that prepares
// inputs (norm, quantise) and chooses the kernel that multiplies: mid_half.cu and mid_quant.cu for
// few tokens, wide_half.cu, wide_quant.cu and tiled_half.cu for many.
#include <algorithm>

#include "ops/linear/mid_linear.cuh"
#include "ops/linear/record_finish.cuh"
#include "ops/linear/small_input.cuh"
#include "ops/linear/wide_strip.cuh"

namespace mr::cuda::small {
namespace {

// The inputs of all tokens, normed and rounded to T or quantised: one block per token. Also resets
// the `count` arrival counters of wide products to 0. It uses few enough registers to fit beside
// one or two blocks that multiply.
template <typename W, typename T, typename Row, typename P>
__global__ void __launch_bounds__(kInputThreads, 4)
    input_kernel(const P p, std::byte* to, int stride, unsigned* arrived, int count) {
    let_next_start();
    HeldNorm<W> held;
    if (HeldNorm<W>::possible(p)) held.load(p);
    wait_for_previous();
    const StageClock clock(p.stamp);
    __shared__ float shared[kRowShared<kInputThreads>];
    const int columns = static_cast<int>((p.k + W::kGranule - 1) / W::kGranule) * W::kGranule;
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
    load_row<W, T>(p, held, row, Row(to, place, stride), columns, shared);
}

// Returns where they are. Row: the layout of a row there.
template <typename W, typename T, typename Row, typename P>
const std::byte* prepare(const Context& ctx, const P& p, int stride, unsigned* arrived = nullptr,
                         int count = 0) {
    launch(ctx, dim3(static_cast<unsigned>(p.rows)), dim3(kInputThreads), 0,
           input_kernel<W, T, Row, P>, p, ctx.scratch.data(), stride, arrived, count);
    return ctx.scratch.data();
}

template <typename T, typename P>
void run_half(const Context& ctx, const P& all) {
    using W = HalfWeights<T>;
    MR_CHECK(!all.norm_weight || ctx.scratch.size() >= mid_scratch_bytes(all.rows, all.k),
             "the scratch has linear_small_scratch_bytes()");
    for (int first = 0; first < all.rows; first += kPreparedRows) {
        const P some = pass_of(all, first, std::min(kPreparedRows, all.rows - first));
        const auto* x = static_cast<const std::byte*>(some.x);
        int stride = static_cast<int>(some.k) * 2;
        if (some.norm_weight) {
            stride = Mid<W>::stride(some.k);
            x = prepare<W, T, typename Mid<W>::Row>(ctx, some, stride);
        }
        for (int token = 0; token < some.rows; token += kMidHalfRows) {
            P p = pass_of(some, token, std::min(kMidHalfRows, some.rows - token));
            p.x = x + std::int64_t{token} * stride;
            p.x_stride = stride;
            run_mid_half<T, P>(ctx, p);
        }
    }
}

template <typename Layout, typename P>
void run_quant(const Context& ctx, const P& all) {
    using W = QuantWeights<Layout>;
    MR_CHECK(ctx.scratch.size() >= mid_scratch_bytes(all.rows, all.k),
             "the scratch has linear_small_scratch_bytes()");
    const int most = ctx.whole_device ? kPreparedRows : kMidQuantRows;
    for (int first = 0; first < all.rows; first += most) {
        P p = pass_of(all, first, std::min(most, all.rows - first));
        if (p.rows <= 8) {
            p.x_stride = Mid<W>::template stride<true>(p.rows);
            p.x = prepare<W, bf16, typename Mid<W>::template Row<true>>(ctx, p, p.x_stride);
            run_mid_quant<Layout, P>(ctx, p);
            continue;
        }
        using Row = typename Mid<W>::template Row<false>;
        p.x_stride = Mid<W>::template stride<false>(p.rows);
        if (p.rows <= kMidQuantRows) {
            p.x = prepare<W, bf16, Row>(ctx, p, p.x_stride);
            run_mid_quant<Layout, P>(ctx, p);
        } else {
            const WidePlan plan = wide_plan(ctx, p);
            p.x = prepare<W, bf16, Row>(ctx, p, p.x_stride, plan.arrived, 2 * plan.strips);
            run_wide_quant<Layout, P>(ctx, p, plan);
        }
    }
}

template <typename P>
void run_any(const Context& ctx, DType weights, const P& p) {
    const bool wide = p.rows > kMidHalfRows && ctx.whole_device;
    switch (weights) {
        case DType::bf16:
            return wide ? run_wide<bf16, P>(ctx, p) : run_half<bf16>(ctx, p);
        case DType::f16:
            return wide ? run_wide<__half, P>(ctx, p) : run_half<__half>(ctx, p);
        case DType::q8_0x8:
            return run_quant<Q8Layout>(ctx, p);
        case DType::q4_0x8:
            return run_quant<Q4Layout>(ctx, p);
        default:
            MR_CHECK(false, "the weights are f16, bf16, q8_0x8 or q4_0x8");
    }
}

// At the end of the scratch, after any product's inputs: partial sums that blocks exchange, for at
// most 128 tokens each, and arrival counters.
std::size_t wide_scratch_bytes() {
    const auto blocks = static_cast<std::size_t>(this_gpu().multiprocessors);
    return std::max(blocks * 2 * kStrip * 128 * 4, tiled_scratch_bytes()) + kMostStrips * 4;
}

}  // namespace

bool mid_possible() {
    static const bool possible = [] {
        const std::optional<DeviceInfo> info = device();
        // Code for 90a alone has wgmma, and copies to several blocks.
        return info && info->sm == 90 && info->shared_per_block >= 223 * 1024;
    }();
    return possible;
}

// Inputs [rows, k] in f16 or bf16 (8-bit ones take less), then the exchange buffers of wide
// products.
std::size_t mid_scratch_bytes(std::int64_t rows, std::int64_t k) {
    const auto inputs = static_cast<std::size_t>((std::min<std::int64_t>(rows, kTiledRows) + 7) /
                                                 8 * 8 * ((k + 127) / 128 * 128) * 2);
    return inputs + (rows > kMidHalfRows ? wide_scratch_bytes() : 0);
}

WidePlan wide_plan(const Context& ctx, const Params& p) {
    const std::size_t behind = (ctx.scratch.size() - wide_scratch_bytes()) / 128 * 128;
    const int tiles = kStrip / kTileRows;
    const WidePlan plan{(p.tiles + tiles - 1) / tiles,
                        reinterpret_cast<float4*>(ctx.scratch.data() + behind + kMostStrips * 4),
                        reinterpret_cast<unsigned*>(ctx.scratch.data() + behind), kEvictFirst};
    MR_CHECK(2 * plan.strips <= kMostStrips && tiled_counters() <= kMostStrips,
             "a product has at most half a million rows");
    return plan;
}

int packed_rows(const Context& ctx) { return ctx.whole_device ? kPackedRows : kMidHalfRows; }

bool tiles_all(const Context& ctx, DType weights, std::int64_t rows) {
    return ctx.whole_device && this_gpu().sm == 90 &&
           (weights == DType::bf16 || weights == DType::f16) && rows > kWideRows &&
           rows <= kTiledRows;
}

void run_mid(const Context& ctx, DType weights, const Params& p) { run_any(ctx, weights, p); }
void run_mid(const Context& ctx, DType weights, const RecordParams& p) { run_any(ctx, weights, p); }

}  // namespace mr::cuda::small
