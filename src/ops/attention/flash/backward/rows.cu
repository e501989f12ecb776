// The work per query before and after the one-pass backward. Both kernels are bound by memory: a
// block has one tile of rows of one head and issues all of its loads before it uses any.
#include "core/cuda/copy.cuh"
#include "core/cuda/mma.cuh"
#include "ops/attention/flash/backward/backward.cuh"

namespace mr::cuda::flash {
namespace {

constexpr int kThreads = 256;
constexpr float kLog2E = 1.4426950408889634f;

struct RowTile {
    int first = 0;  // first query of the tile, within the sequence
    Sequence s;
};
// The queries of a tile of scratch: those of the last sequence that begins at or before it.
__device__ RowTile row_tile_of(const Problem& p, int tile, int rows) {
    int lo = 0, hi = p.sequences - 1;
    while (lo < hi) {
        const int mid = (lo + hi + 1) / 2;
        if (first_row_tile(p.sequence(mid).q, mid, rows) <= tile) {
            lo = mid;
        } else {
            hi = mid - 1;
        }
    }
    RowTile out;
    out.s = p.sequence(lo);
    out.first = (tile - first_row_tile(out.s.q, lo, rows)) * rows;
    return out;
}

// Sixteen lanes per row, eight numbers each. Grid: tiles, heads.
template <typename T, int kRows>
__global__ void __launch_bounds__(kThreads) prepare_rows(BackwardArgs args) {
    wait_for_previous();
    let_next_start();
    const StageClock clock(args.stamp);
    const Problem& p = args.p;
    const int head = static_cast<int>(blockIdx.y);
    const std::int64_t tile = args.tile(head, static_cast<int>(blockIdx.x));
    if (threadIdx.x == 0) {
        args.turns[tile] = 0;
        if (tile == 0) *args.tickets = 0;
    }
    const RowTile t = row_tile_of(p, static_cast<int>(blockIdx.x), kRows);
    const int lane = static_cast<int>(threadIdx.x) % 16;
    constexpr int kEach = kRows * 16 / kThreads;
    std::uint32_t out[kEach][4], dout[kEach][4];
    float lse[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int query = t.first + static_cast<int>(threadIdx.x) / 16 + i * kThreads / 16;
        const bool row = query < t.s.queries, on = row && 8 * lane < p.head_dim;
        const std::int64_t token = t.s.q + (row ? query : 0);
        const int column = on ? 8 * lane : 0;
        load_words<4>(out[i], p.out.row<T>(token, head, p.head_dim) + column, on);
        load_words<4>(dout[i], args.views.dout.row<T>(token, head, p.head_dim) + column, on);
        lse[i] = row ? p.lse[head * static_cast<std::int64_t>(p.tokens_q) + token]
                     : -__int_as_float(0x7f800000);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const float2 x = unpack<T>(out[i][w]), y = unpack<T>(dout[i][w]);
            sum = fmaf(x.x, y.x, sum);
            sum = fmaf(x.y, y.y, sum);
        }
#pragma unroll
        for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
        if (lane == 0) {
            const std::int64_t at =
                tile * kRows + static_cast<int>(threadIdx.x) / 16 + i * kThreads / 16;
            // A row without weight: exp2(anything - infinity) is 0.
            args.lse2[at] =
                lse[i] > -__int_as_float(0x7f800000) ? lse[i] * kLog2E : __int_as_float(0x7f800000);
            args.delta[at] = sum;
        }
    }
}

// Grid: tiles, heads. Converts DqTile's order to rows through shared memory.
template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) finish_rows(BackwardArgs args) {
    constexpr int kRows = backward_rows(kDim);
    using Tile = DqTile<kDim, kRows>;
    constexpr int kStride = kDim / 2 + 4;  // words; rows 8 apart in banks of their own
    __shared__ __align__(16) std::uint32_t rows[kRows * kStride];
    wait_for_previous();
    let_next_start();
    const StageClock clock(args.stamp);
    const Problem& p = args.p;
    const int head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
    const std::int64_t tile = args.tile(head, static_cast<int>(blockIdx.x));
    constexpr int kEach = Tile::kFloats / 4 / kThreads;
    const auto* sums = reinterpret_cast<const float4*>(args.dq + tile * Tile::kFloats);
    if (args.fold && args.turns[tile] > 0) return;
    float4 v[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) v[i] = __ldcs(sums + i * kThreads + thread);
    const bool any = args.turns[tile] > 0;  // else no block has added: the gradient is zero
    const RowTile t = row_tile_of(p, static_cast<int>(blockIdx.x), kRows);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
        const int at = i * kThreads + thread, first = Tile::begin(1) / 4;
        const int group = at >= first, n = (at - group * first) / 128, of = at % 128;
        const int row = Tile::row(group) + of / 32 * 16 + of % 32 / 4;
        const int word = Tile::column(group) / 2 + 4 * n + of % 4;
        rows[row * kStride + word] = any ? pack<T>(v[i].x * p.scale, v[i].y * p.scale) : 0;
        rows[(row + 8) * kStride + word] = any ? pack<T>(v[i].z * p.scale, v[i].w * p.scale) : 0;
    }
    __syncthreads();
    for (int i = thread; i < kRows * (kDim / 8); i += kThreads) {
        const int row = i / (kDim / 8), chunk = i % (kDim / 8);
        if (t.first + row >= t.s.queries || 8 * chunk >= p.head_dim) continue;
        *reinterpret_cast<uint4*>(args.views.dq.row<T>(t.s.q + t.first + row, head, p.head_dim) +
                                  8 * chunk) =
            *reinterpret_cast<const uint4*>(&rows[row * kStride + 4 * chunk]);
    }
}

dim3 grid_of(const BackwardArgs& args) {
    return {static_cast<unsigned>(args.tiles), static_cast<unsigned>(args.p.heads)};
}

template <typename T>
void prepare(const Context& ctx, const BackwardArgs& args) {
    auto* kernel =
        backward_rows(args.p.head_dim) == 64 ? prepare_rows<T, 64> : prepare_rows<T, 128>;
    launch(ctx, grid_of(args), dim3(kThreads), 0, kernel, args);
}

template <typename T>
void finish(const Context& ctx, const BackwardArgs& args) {
    const auto start = [&](auto* kernel) {
        launch(ctx, grid_of(args), dim3(kThreads), 0, kernel, args);
    };
    switch (backward_dim(args.p.head_dim)) {
        case 64:
            return start(finish_rows<T, 64>);
        case 80:
            return start(finish_rows<T, 80>);
        case 96:
            return start(finish_rows<T, 96>);
        default:
            return start(finish_rows<T, 128>);
    }
}

}  // namespace

void prepare_backward(const Context& ctx, const BackwardArgs& args) {
    args.p.dtype == DType::bf16 ? prepare<bf16>(ctx, args) : prepare<__half>(ctx, args);
}

void finish_backward(const Context& ctx, const BackwardArgs& args) {
    args.p.dtype == DType::bf16 ? finish<bf16>(ctx, args) : finish<__half>(ctx, args);
}

}  // namespace mr::cuda::flash
