// What is done once per query before and after the one-pass backward.
#include "core/cuda/copy.cuh"
#include "core/cuda/mma.cuh"
#include "ops/attention/flash_backward.cuh"

namespace mr::cuda::flash {
namespace {

constexpr int kThreads = 256;
constexpr float kLog2E = 1.4426950408889634f;

struct RowTile {
    int first = 0;  // query of the sequence
    Sequence s;
};
// Which queries a tile of scratch has: those of the last sequence that begins at or before it.
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

// Sixteen lanes a row, eight numbers each. Grid: tiles, heads.
template <typename T>
__global__ void __launch_bounds__(kThreads) prepare_rows(BackwardArgs args, int rows) {
    wait_for_previous();
    let_next_start();
    const StageClock clock(args.stamp);
    const Problem& p = args.p;
    const int head = static_cast<int>(blockIdx.y);
    const std::int64_t tile = args.tile(head, static_cast<int>(blockIdx.x));
    if (threadIdx.x == 0) {
        args.turns[tile] = 0;
        if (tile == 0) *args.started = 0;
    }
    const RowTile t = row_tile_of(p, static_cast<int>(blockIdx.x), rows);
    const int lane = static_cast<int>(threadIdx.x) % 16;
    for (int r = static_cast<int>(threadIdx.x) / 16; r < rows; r += kThreads / 16) {
        const int query = t.first + r;
        float sum = 0, lse2 = __int_as_float(0x7f800000);
        if (query < t.s.queries) {
            const std::int64_t token = t.s.q + query;
            if (8 * lane < p.head_dim) {
                std::uint32_t out[4], dout[4];
                load_words<4>(out, p.out.row<T>(token, head, p.head_dim) + 8 * lane, true);
                load_words<4>(dout, args.views.dout.row<T>(token, head, p.head_dim) + 8 * lane,
                              true);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float2 x = unpack<T>(out[i]), y = unpack<T>(dout[i]);
                    sum = fmaf(x.x, y.x, sum);
                    sum = fmaf(x.y, y.y, sum);
                }
            }
            const float lse = p.lse[head * static_cast<std::int64_t>(p.tokens_q) + token];
            if (lse > -__int_as_float(0x7f800000)) lse2 = lse * kLog2E;
        }
#pragma unroll
        for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
        if (lane == 0) {
            args.lse2[tile * rows + r] = lse2;
            args.delta[tile * rows + r] = sum;
        }
    }
}

// Grid: tiles, heads. A thread takes eight columns of two rows, g and g + 8 of a warp's sixteen.
template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads) finish_rows(BackwardArgs args) {
    wait_for_previous();
    let_next_start();
    const StageClock clock(args.stamp);
    constexpr int kRows = backward_rows(kDim);
    using Tile = DqTile<kDim, kRows>;
    const Problem& p = args.p;
    const int head = static_cast<int>(blockIdx.y);
    const std::int64_t tile = args.tile(head, static_cast<int>(blockIdx.x));
    const RowTile t = row_tile_of(p, static_cast<int>(blockIdx.x), kRows);
    if (t.first >= t.s.queries) return;
    const bool any = args.turns[tile] > 0;  // or nobody has written
    const float* sums = args.dq + tile * Tile::kFloats;
    for (int group = 0; group < 2; ++group) {
        const int blocks = Tile::width(group) / 8;
        for (int i = static_cast<int>(threadIdx.x); i < blocks * 32; i += kThreads) {
            const int n = i % blocks, warp = i / blocks / 8, g = i / blocks % 8;
            const auto* from = reinterpret_cast<const float4*>(sums + Tile::begin(group)) +
                               n * 128 + warp * 32 + g * 4;
            float4 v[4];
#pragma unroll
            for (int c = 0; c < 4; ++c) v[c] = any ? from[c] : make_float4(0, 0, 0, 0);
            std::uint32_t low[4], high[4];
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                low[c] = pack<T>(v[c].x * p.scale, v[c].y * p.scale);
                high[c] = pack<T>(v[c].z * p.scale, v[c].w * p.scale);
            }
            const int query = t.first + Tile::row(group) + 16 * warp + g;
            const int column = Tile::column(group) + 8 * n;
            const auto store = [&](int at, const std::uint32_t(&x)[4]) {
                if (at >= t.s.queries || column >= p.head_dim) return;
                *reinterpret_cast<uint4*>(args.views.dq.row<T>(t.s.q + at, head, p.head_dim) +
                                          column) = make_uint4(x[0], x[1], x[2], x[3]);
            };
            store(query, low);
            store(query + 8, high);
        }
    }
}

dim3 grid_of(const BackwardArgs& args) {
    return {static_cast<unsigned>(args.tiles), static_cast<unsigned>(args.p.heads)};
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
    auto* kernel = args.p.dtype == DType::bf16 ? prepare_rows<bf16> : prepare_rows<__half>;
    launch(ctx, grid_of(args), dim3(kThreads), 0, kernel, args, backward_rows(args.p.head_dim));
}

void finish_backward(const Context& ctx, const BackwardArgs& args) {
    args.p.dtype == DType::bf16 ? finish<bf16>(ctx, args) : finish<__half>(ctx, args);
}

}  // namespace mr::cuda::flash
