// A block has a row. The row comes from memory once and waits in shared memory for its greatest
// element and then for its sum, while the other blocks of the multiprocessor load and store; a row
// that does not fit there is read again.
#include "core/cuda/vec8.cuh"
#include "ops/loss/loss_backward_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kBatch = 4;                // loads in flight
constexpr float kMost = 3.38953139e38f;  // of bf16

struct Args {
    float* loss;
    bf16* logits;
    const std::int32_t* targets;
    int vocab, cols;  // cols: from one row to the next
    float scale;
    bool gradient;
    Stamp* stamp;
};

// 8 elements as 4 words, or one.
template <int kWidth>
using Raw = std::conditional_t<kWidth == 8, uint4, unsigned short>;

template <int kWidth>
__device__ __forceinline__ void unpack(const Raw<kWidth>& raw, float (&v)[kWidth]) {
    if constexpr (kWidth == 8) {
        unpack8(raw, v);
    } else {
        v[0] = __uint_as_float(static_cast<unsigned>(raw) << 16);
    }
}
template <int kWidth>
__device__ __forceinline__ Raw<kWidth> pack(const float (&v)[kWidth]) {
    if constexpr (kWidth == 8) {
        return pack8(v);
    } else {
        return __bfloat16_as_ushort(from_f32<bf16>(v[0]));
    }
}

// kKept: the row lies in shared memory after the first pass.
template <int kWidth, bool kKept>
__global__ void __launch_bounds__(kThreads) row_gradient(const Args a) {
    extern __shared__ __align__(16) unsigned char kept[];
    __shared__ float tops[kWarps], sums[kWarps];
    wait_for_previous();
    const StageClock clock(a.stamp);
    let_next_start();
    using Piece = Raw<kWidth>;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const std::size_t row = blockIdx.x;
    bf16* logits = a.logits + row * static_cast<std::size_t>(a.cols);
    auto* memory = reinterpret_cast<Piece*>(logits);
    auto* mine = kKept ? reinterpret_cast<Piece*>(kept) : memory;
    // Pieces that have columns of the vocabulary, those that have no others, and the row's.
    const int pieces = (a.vocab + kWidth - 1) / kWidth, whole = a.vocab / kWidth;
    const int all = a.cols / kWidth;
    const int target = a.targets[row];
    if (target < 0) {
        if (thread == 0) a.loss[row] = 0;
        if (a.gradient) {
            const float zeros[kWidth] = {};
            for (int i = thread; i < all; i += kThreads) memory[i] = pack<kWidth>(zeros);
        }
        return;
    }
    const float target_logit = target < a.vocab ? to_f32(logits[target]) : 0.0f;

    // The least and the greatest, of whole pieces two columns at a time; an infinity is either, and
    // a NaN is both. They begin at the finite ends.
    float top = -kMost;
    bool bad = target >= a.vocab;
    __nv_bfloat162 low = __float2bfloat162_rn(kMost), high = __float2bfloat162_rn(-kMost);
    const auto see = [&](const Piece& piece, int i) {
        if (kWidth == 8 && i < whole) {
            __nv_bfloat162 pairs[4];
            memcpy(pairs, &piece, sizeof piece);
#pragma unroll
            for (int j = 0; j < kWidth / 2; ++j) {
                low = __hmin2_nan(low, pairs[j]);
                high = __hmax2_nan(high, pairs[j]);
            }
            return;
        }
        float v[kWidth];
        unpack<kWidth>(piece, v);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
            if (i * kWidth + j >= a.vocab) continue;
            bad |= !(fabsf(v[j]) <= kMost);
            top = fmaxf(top, v[j]);
        }
    };
    int i = thread;
    for (; i + (kBatch - 1) * kThreads < pieces; i += kBatch * kThreads) {
        Piece piece[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) piece[j] = memory[i + j * kThreads];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
            if constexpr (kKept) mine[i + j * kThreads] = piece[j];
            see(piece[j], i + j * kThreads);
        }
    }
    for (; i < pieces; i += kThreads) {
        const Piece piece = memory[i];
        if constexpr (kKept) mine[i] = piece;
        see(piece, i);
    }
    const float2 least = __bfloat1622float2(low), greatest = __bfloat1622float2(high);
    for (const float end : {least.x, least.y, greatest.x, greatest.y}) {
        bad |= !(fabsf(end) <= kMost);
    }
    top = warp_max(fmaxf(top, fmaxf(greatest.x, greatest.y)));
    if (lane == 0) tops[warp] = top;
    bad = __syncthreads_or(bad) != 0;  // every logit was read: the row may be written from here on
    top = warp_max(tops[lane % kWarps]);

    // A thread's own pieces, so nobody waits for what another one kept.
    float sum = 0;
    for (int p = thread; p < pieces; p += kThreads) {
        float v[kWidth];
        unpack<kWidth>(mine[p], v);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
            const float e = __expf(v[j] - top);
            if (p < whole || p * kWidth + j < a.vocab) sum += e;
        }
    }
    sum = warp_sum(sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w];
    const float nan = __int_as_float(0x7fffffff);
    if (thread == 0) a.loss[row] = bad ? nan : logf(sum) + (top - target_logit);
    if (!a.gradient) return;

    const float factor = bad ? nan : a.scale / sum;
    for (int p = thread; p < all; p += kThreads) {
        float v[kWidth] = {};
        if (p < pieces) {
            unpack<kWidth>(mine[p], v);
#pragma unroll
            for (int j = 0; j < kWidth; ++j) v[j] = factor * __expf(v[j] - top);
            if (p == target / kWidth || p >= whole) {
#pragma unroll
                for (int j = 0; j < kWidth; ++j) {
                    if (p * kWidth + j == target) v[j] -= a.scale;
                    if (p * kWidth + j >= a.vocab) v[j] = 0.0f;
                }
            }
        }
        memory[p] = pack<kWidth>(v);
    }
}

}  // namespace

void cross_entropy_backward(const Context& ctx, float* loss, Tensor logits, std::int64_t vocab,
                            const std::int32_t* targets, float scale, bool gradient) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(logits && logits.dtype == DType::bf16 && logits.shape.rank == 2 && vocab > 0 &&
                 vocab <= logits.dim(1),
             "logits are bf16 [rows, at least vocab]");
    MR_CHECK(loss && targets, "losses and targets lie on the device");
    const auto rows = static_cast<std::uint64_t>(logits.dim(0));
    if (rows == 0) return;
    // Compare, subtract, exponential, add; again for the gradient: 3 and the subtraction.
    Stamp* stamp =
        account(ctx, OpKind::loss, "cross entropy backward",
                {1, logits.bytes() + rows * 4, rows * 4 + (gradient ? logits.bytes() : 0),
                 (gradient ? 8 : 4) * rows * static_cast<std::uint64_t>(vocab), 0});
    const Args args{loss,
                    static_cast<bf16*>(logits.data),
                    targets,
                    static_cast<int>(vocab),
                    static_cast<int>(logits.dim(1)),
                    scale,
                    gradient,
                    stamp};
    const std::size_t row_bytes = (logits.row_bytes() + 15) / 16 * 16;
    const bool wide = in_eights(logits.data, logits.dim(1));
    const bool fits = row_bytes + 1024 <= this_gpu().shared_per_block;  // beside what is static
    const auto start = [&](auto kernel, std::size_t shared) {
        allow_shared(kernel, shared);
        launch(ctx, dim3(static_cast<unsigned>(rows)), dim3(kThreads), shared, kernel, args);
    };
    if (fits) {
        start(wide ? row_gradient<8, true> : row_gradient<1, true>, row_bytes);
    } else {
        start(wide ? row_gradient<8, false> : row_gradient<1, false>, 0);
    }
}

}  // namespace mr::cuda
