#include <algorithm>

#include "core/cuda/vec8.cuh"
#include "ops/add/parts_cuda.h"
#include "ops/norm/norm_row.cuh"
#include "ops/rope/rope_train_cuda.h"
#include "ops/rope/rotate.cuh"

namespace mr::cuda {
namespace {

using ops::HeadRows;
using ops::RopeStyle;

constexpr int kRopeTrainThreads = 128;
constexpr int kMaxDim = 256;
constexpr int kNormBlocks = 1056;  // the most, on any GPU: it sets the order of dweight's sum
constexpr int kRopeTrainWarps = kRopeTrainThreads / 32;

// One block per token; a thread takes kWidth pairs at a time: with kHalf elements i.. and i +
// pairs.., else 2i.. and their neighbours.
template <bool kHalf, int kWidth>
__global__ void __launch_bounds__(kRopeTrainThreads)
    rotate_heads(bf16* x, std::int64_t stride, const float2* rotations, int positions, int heads,
                 int dim, int pairs, float sign, Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    bf16* token = x + static_cast<std::int64_t>(blockIdx.x) * stride;
    rotations += static_cast<std::int64_t>(static_cast<int>(blockIdx.x) % positions) * pairs;
    const int units = pairs / kWidth;
    for (int unit = static_cast<int>(threadIdx.x); unit < heads * units;
         unit += kRopeTrainThreads) {
        const int first = unit % units * kWidth;  // pair
        bf16* head = token + unit / units * dim;
        bf16* low = head + (kHalf ? first : 2 * first);
        bf16* high = kHalf ? low + pairs : low + kWidth;
        float a[kWidth], b[kWidth];
        load_wide<kWidth>(low, a);
        load_wide<kWidth>(high, b);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
            float2 t = rotations[first + i];
            t.y *= sign;
            if constexpr (kHalf) {
                rotate_pair(a[i], b[i], t);
            } else if constexpr (kWidth == 1) {
                rotate_pair(a[0], b[0], t);
            } else if (2 * i < kWidth) {
                rotate_pair(a[2 * i % kWidth], a[(2 * i + 1) % kWidth], t);
            } else {
                rotate_pair(b[2 * i % kWidth], b[(2 * i + 1) % kWidth], t);
            }
        }
        store_wide<kWidth>(low, a);
        store_wide<kWidth>(high, b);
    }
}

struct NormArgs {
    bf16* out;       // or dx
    const bf16* dy;  // null: the forward
    const bf16* x;
    std::int64_t out_stride, dy_stride, x_stride;  // elements from one token to the next
    const float* weight;
    float* parts;      // [blocks, dim]
    std::int64_t all;  // heads of all tokens
    int heads, dim;
    float eps;
    Stamp* stamp;
};

// A warp has a head: a lane columns lane * 8 .. lane * 8 + 7, as two chunks of four.
__device__ __forceinline__ void load_head(const bf16* from, int lane, int dim, bool wide,
                                          float (&v)[8]) {
    const int col = lane * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = 0;
    if (wide) {
        if (col < dim) load_wide<8>(from + col, v);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (col + i < dim) v[i] = to_f32(from[col + i]);
        }
    }
}
__device__ __forceinline__ void store_head(bf16* to, int lane, int dim, bool wide,
                                           const float (&v)[8]) {
    const int col = lane * 8;
    if (wide) {
        if (col < dim) store_wide<8>(to + col, v);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (col + i < dim) to[col + i] = from_f32<bf16>(v[i]);
        }
    }
}

template <bool kBackward>
__global__ void __launch_bounds__(kRopeTrainThreads) norm_heads(const NormArgs a, bool wide) {
    __shared__ float shares[kBackward ? kRopeTrainWarps : 1][kMaxDim];
    wait_for_previous();
    const StageClock clock(a.stamp);
    let_next_start();
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const float inverse = __frcp_rn(static_cast<float>(a.dim));
    float weight[8] = {}, dweight[8] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        if (lane * 8 + i < a.dim) weight[i] = a.weight[lane * 8 + i];
    }
    const auto step = static_cast<std::int64_t>(gridDim.x) * kRopeTrainWarps;
    for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kRopeTrainWarps + warp;
         at < a.all; at += step) {
        const std::int64_t token = at / a.heads;
        const int column = static_cast<int>(at - token * a.heads) * a.dim;
        float v[8];
        load_head(a.x + token * a.x_stride + column, lane, a.dim, wide, v);
        float squares = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) squares = fmaf(v[i], v[i], squares);
        const float rstd = row_rstd(warp_sum(squares), inverse, a.eps);
        if constexpr (!kBackward) {
#pragma unroll
            for (int i = 0; i < 8; ++i) v[i] = v[i] * rstd * weight[i];
        } else {
            float d[8], sum = 0;
            load_head(a.dy + token * a.dy_stride + column, lane, a.dim, wide, d);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                v[i] *= rstd;
                dweight[i] = fmaf(d[i], v[i], dweight[i]);
                d[i] *= weight[i];
                sum = fmaf(d[i], v[i], sum);
            }
            const float mean = warp_sum(sum) * inverse;
#pragma unroll
            for (int i = 0; i < 8; ++i) v[i] = rstd * (d[i] - v[i] * mean);
        }
        store_head(a.out + token * a.out_stride + column, lane, a.dim, wide, v);
    }
    if constexpr (kBackward) {
#pragma unroll
        for (int i = 0; i < 8; ++i) shares[warp][lane * 8 + i] = dweight[i];
        __syncthreads();
        for (int col = static_cast<int>(threadIdx.x); col < a.dim; col += kRopeTrainThreads) {
            float sum = 0;
#pragma unroll
            for (int w = 0; w < kRopeTrainWarps; ++w) sum += shares[w][col];
            a.parts[static_cast<std::size_t>(blockIdx.x) * static_cast<std::size_t>(a.dim) + col] =
                sum;
        }
    }
}

void check_heads(const HeadRows& x) {
    MR_CHECK(x.tensor && x.tensor.dtype == DType::bf16 && x.tensor.shape.rank == 3 &&
                 x.token_stride >= x.heads() * x.head_dim(),
             "heads are bf16 [tokens, heads, head_dim]");
}
bool same_heads(const HeadRows& a, const HeadRows& b) { return a.tensor.shape == b.tensor.shape; }

bool heads_in_eights(const HeadRows& x) {
    return cuda::in_eights(x.tensor.data, x.token_stride) && x.head_dim() % 8 == 0;
}

void run_norm(const Context& ctx, const HeadRows& out, const HeadRows* dy, const HeadRows& x,
              Tensor weight, float eps, float* dweight) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    check_heads(out);
    check_heads(x);
    if (dy) check_heads(*dy);
    MR_CHECK(same_heads(out, x) && (!dy || same_heads(*dy, x)), "a norm keeps the shape");
    const std::int64_t dim = x.head_dim(), all = x.tokens() * x.heads();
    MR_CHECK(dim <= kMaxDim, "head_dim is at most 256");
    MR_CHECK(weight && weight.dtype == DType::f32 && weight.shape.count() == dim,
             "a head's norm is f32 [head_dim]");
    if (all == 0) return;
    const std::uint64_t bytes = x.tensor.bytes();
    Stamp* stamp = account(ctx, OpKind::norm, dy ? "norm heads backward" : "norm heads",
                           {1, (dy ? 2 : 1) * bytes + weight.bytes(),
                            bytes + (dweight ? weight.bytes() : 0), (dy ? 11 : 4) * bytes / 2, 0});
    const bool wide = heads_in_eights(out) && heads_in_eights(x) && (!dy || heads_in_eights(*dy));
    const auto blocks = static_cast<int>(
        std::min<std::int64_t>(kNormBlocks, (all + kRopeTrainWarps - 1) / kRopeTrainWarps));
    auto* parts = reinterpret_cast<float*>(ctx.scratch.data());
    const NormArgs args{static_cast<bf16*>(out.tensor.data),
                        dy ? static_cast<const bf16*>(dy->tensor.data) : nullptr,
                        static_cast<const bf16*>(x.tensor.data),
                        out.token_stride,
                        dy ? dy->token_stride : 0,
                        x.token_stride,
                        static_cast<const float*>(weight.data),
                        parts,
                        all,
                        static_cast<int>(x.heads()),
                        static_cast<int>(dim),
                        eps,
                        stamp};
    launch(ctx, dim3(static_cast<unsigned>(blocks)), dim3(kRopeTrainThreads), 0,
           dy ? norm_heads<true> : norm_heads<false>, args, wide);
    if (dy) add_parts(ctx, dweight, parts, blocks, dim, dim, stamp);
}

}  // namespace

void rope_heads(const Context& ctx, const HeadRows& x, Tensor cos_sin, RopeStyle style,
                bool backward) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    check_heads(x);
    MR_CHECK(cos_sin.dtype == DType::f32 && cos_sin.shape.rank == 3 && cos_sin.dim(2) == 2 &&
                 cos_sin.dim(0) > 0 && 2 * cos_sin.dim(1) <= x.head_dim(),
             "the table is f32 [positions, rotary/2, 2], rotary at most head_dim");
    const std::int64_t pairs = cos_sin.dim(1);
    const auto rotated = static_cast<std::uint64_t>(x.tokens() * x.heads() * pairs);
    if (rotated == 0) return;
    Stamp* stamp = account(ctx, OpKind::rope, backward ? "rope backward" : "rope",
                           {1, 4 * rotated + cos_sin.bytes(), 4 * rotated, 6 * rotated, 0});
    const bool wide = heads_in_eights(x) && pairs % 8 == 0;
    const bool half = style == RopeStyle::half;
    launch(ctx, dim3(static_cast<unsigned>(x.tokens())), dim3(kRopeTrainThreads), 0,
           half   ? wide ? rotate_heads<true, 8> : rotate_heads<true, 1>
             : wide ? rotate_heads<false, 8>
                  : rotate_heads<false, 1>,
           static_cast<bf16*>(x.tensor.data), x.token_stride,
           static_cast<const float2*>(cos_sin.data), static_cast<int>(cos_sin.dim(0)),
           static_cast<int>(x.heads()), static_cast<int>(x.head_dim()), static_cast<int>(pairs),
           backward ? -1.0f : 1.0f, stamp);
}

void rmsnorm_heads(const Context& ctx, const HeadRows& out, const HeadRows& x, Tensor weight,
                   float eps) {
    run_norm(ctx, out, nullptr, x, weight, eps, nullptr);
}

void rmsnorm_heads_backward(const Context& ctx, const HeadRows& dx, Tensor dweight,
                            const HeadRows& dy, const HeadRows& x, Tensor weight, float eps) {
    MR_CHECK(dweight && dweight.dtype == DType::f32 && dweight.shape.count() == x.head_dim(),
             "the weights' gradient is f32 [head_dim]");
    MR_CHECK(ctx.scratch.size() >= rmsnorm_heads_scratch_bytes(), "scratch was planned");
    run_norm(ctx, dx, &dy, x, weight, eps, dweight.f32());
}

std::size_t rmsnorm_heads_scratch_bytes() {
    return std::size_t{kNormBlocks} * kMaxDim * sizeof(float);
}

}  // namespace mr::cuda
