// The backward without tensor cores: any type, any head_dim, any device. Correct, not fast.
#include <algorithm>

#include "ops/attention/flash/backward/dispatch.cuh"
#include "ops/attention/flash/backward/two.cuh"

namespace mr::cuda::flash {
namespace {

constexpr int kOwn = 32, kOther = 16, kThreads = 256;
constexpr int kMaxDim = kFlashBackwardMaxDim;
constexpr float kLog2E = 1.4426950408889634f;

// One warp for each query and head.
template <typename T>
__global__ void __launch_bounds__(kThreads) delta_rows(TwoPassArgs args) {
    wait_for_previous();
    let_next_start();
    const StageClock clock(args.stamp);
    const Problem& p = args.p;
    const std::int64_t i =
        (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;  // token * heads + head
    if (i >= std::int64_t{p.tokens_q} * p.heads) return;
    const std::int64_t token = i / p.heads;
    const int head = static_cast<int>(i % p.heads);
    const T* out = p.out.row<T>(token, head, p.head_dim);
    const T* dout = args.views.dout.row<T>(token, head, p.head_dim);
    float sum = 0;
    for (int d = static_cast<int>(threadIdx.x) % 32; d < p.head_dim; d += 32) {
        sum = fmaf(to_f32(out[d]), to_f32(dout[d]), sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) args.delta[head * std::int64_t{p.tokens_q} + token] = sum;
}

// Shared memory: a1, a2 [kOwn, dim + 1], b1, b2 [kOther, dim + 1], P and dS [kOwn, kOther + 1].
constexpr std::size_t shared_bytes(int dim) {
    return static_cast<std::size_t>(2 * (kOwn + kOther) * (dim + 1) + 2 * kOwn * (kOther + 1)) * 4;
}

template <typename T, bool kKeys>
__global__ void __launch_bounds__(kThreads, 2) backward_rows(TwoPassArgs args) {
    wait_for_previous();
    let_next_start();
    const StageClock clock(args.stamp);
    const Problem& p = args.p;
    const TwoPassWalk<kKeys, kOwn, kOther> walk(p);
    if (walk.own >= walk.own_rows) return;
    const int dim = p.head_dim, stride = dim + 1, thread = static_cast<int>(threadIdx.x);
    extern __shared__ float shared[];
    float *a1 = shared, *a2 = a1 + kOwn * stride, *b1 = a2 + kOwn * stride;
    float *b2 = b1 + kOther * stride, *weights = b2 + kOther * stride;
    float* ds = weights + kOwn * (kOther + 1);

    // Rows beyond the sequence's end become zeros; their memory is not read.
    const auto load = [&](float* to, const View& from, std::int64_t token, int rows, int most,
                          int head) {
        for (int i = thread; i < most * dim; i += kThreads) {
            const int row = i / dim, d = i % dim;
            to[row * stride + d] = row < rows ? to_f32(from.row<T>(token + row, head, dim)[d]) : 0;
        }
    };
    load(a1, walk.a1(p), walk.own_token(walk.own), walk.own_rows - walk.own, kOwn,
         kKeys ? walk.kv_head : walk.head);
    load(a2, walk.a2(args), walk.own_token(walk.own), walk.own_rows - walk.own, kOwn,
         kKeys ? walk.kv_head : walk.head);

    // Sums: eight threads share an own row; each takes every eighth column.
    const int x = thread / 8;
    float sum1[kMaxDim / 8], sum2[kMaxDim / 8];
#pragma unroll
    for (int i = 0; i < kMaxDim / 8; ++i) sum1[i] = sum2[i] = 0;

    const auto visit = [&](int tile, int head) {
        const int other = tile * kOther;
        __syncthreads();
        load(b1, walk.b1(p), walk.other_token(other), walk.other_rows - other, kOther,
             kKeys ? head : walk.kv_head);
        load(b2, walk.b2(args), walk.other_token(other), walk.other_rows - other, kOther,
             kKeys ? head : walk.kv_head);
        __syncthreads();
        for (int i = thread; i < kOwn * kOther; i += kThreads) {
            const int own = i / kOther, y = i % kOther;
            float weight = 0, gradient = 0;
            if (walk.own + own < walk.own_rows && other + y < walk.other_rows &&
                walk.sees(p, walk.own + own, other + y)) {
                const std::int64_t at = head * std::int64_t{p.tokens_q} + walk.s.q +
                                        (kKeys ? other + y : walk.own + own);
                const float lse = p.lse[at];
                if (lse > -__int_as_float(0x7f800000)) {
                    float s = 0, dp = 0;
                    for (int d = 0; d < dim; ++d) {
                        s = fmaf(a1[own * stride + d], b1[y * stride + d], s);
                        dp = fmaf(a2[own * stride + d], b2[y * stride + d], dp);
                    }
                    weight = exp2f(fmaf(s, p.scale * kLog2E, -lse * kLog2E));
                    gradient = weight * (dp - args.delta[at]);
                }
            }
            weights[own * (kOther + 1) + y] = weight;
            ds[own * (kOther + 1) + y] = gradient;
        }
        __syncthreads();
        for (int y = 0; y < kOther; ++y) {
            const float gradient = ds[x * (kOther + 1) + y];
            const float weight = weights[x * (kOther + 1) + y];
#pragma unroll
            for (int i = 0; i < kMaxDim / 8; ++i) {
                const int d = 8 * i + thread % 8;
                if (d >= dim) break;
                sum1[i] = fmaf(gradient, b1[y * stride + d], sum1[i]);
                if (kKeys) sum2[i] = fmaf(weight, b2[y * stride + d], sum2[i]);
            }
        }
    };
    for (int head = walk.head; head < walk.head + (kKeys ? p.group : 1); ++head) {
        for (int tile = 0; tile < walk.sink_end; ++tile) visit(tile, head);
        for (int tile = walk.begin; tile < walk.end; ++tile) visit(tile, head);
    }
    if (walk.own + x >= walk.own_rows) return;
    const std::int64_t token = walk.own_token(walk.own + x);
    const int head = kKeys ? walk.kv_head : walk.head;
    T* to1 = (kKeys ? args.views.dk : args.views.dq).row<T>(token, head, dim);
    T* to2 = args.views.dv.row<T>(token, head, dim);
#pragma unroll
    for (int i = 0; i < kMaxDim / 8; ++i) {
        const int d = 8 * i + thread % 8;
        if (d >= dim) break;
        to1[d] = from_f32<T>(sum1[i] * p.scale);
        if (kKeys) to2[d] = from_f32<T>(sum2[i]);
    }
}

template <typename T, bool kKeys>
void start(const Context& ctx, TwoPassArgs args) {
    const Problem& p = args.p;
    args.tiles = ((kKeys ? p.max_keys : p.max_queries) + kOwn - 1) / kOwn;
    if (args.tiles == 0) return;
    const std::int64_t pairs = std::int64_t{p.sequences} * (kKeys ? p.kv_heads : p.heads);
    allow_shared(backward_rows<T, kKeys>, shared_bytes(p.head_dim));
    launch(ctx, dim3(static_cast<unsigned>(pairs), static_cast<unsigned>(args.tiles)),
           dim3(kThreads), shared_bytes(p.head_dim), backward_rows<T, kKeys>, args);
}

}  // namespace

TwoPassArgs two_pass_args(const Context& ctx, const Problem& p, const BackwardViews& views,
                          Stamp* stamp, int own) {
    MR_CHECK(std::max(p.max_queries, p.max_keys) <= 65535 * own,
             "the backward takes at most 4 million tokens per sequence before Hopper, 2 million "
             "without tensor cores");
    TwoPassArgs args;
    args.p = p;
    args.views = views;
    args.stamp = stamp;
    const auto at = reinterpret_cast<std::uintptr_t>(ctx.scratch.data());
    args.delta = reinterpret_cast<float*>((at + 255) / 256 * 256);
    const std::int64_t rows = std::int64_t{p.tokens_q} * p.heads;
    if (rows > 0) {
        const auto grid = static_cast<unsigned>((rows * 32 + kThreads - 1) / kThreads);
        with_float_type(p.dtype, [&](auto type) {
            launch(ctx, dim3(grid), dim3(kThreads), 0, delta_rows<decltype(type)>, args);
        });
    }
    return args;
}

void backward_plain(const Context& ctx, const Problem& p, const BackwardViews& views,
                    Stamp* stamp) {
    const TwoPassArgs args = two_pass_args(ctx, p, views, stamp, kOwn);
    with_float_type(p.dtype, [&](auto type) {
        start<decltype(type), true>(ctx, args);
        start<decltype(type), false>(ctx, args);
    });
}

}  // namespace mr::cuda::flash
