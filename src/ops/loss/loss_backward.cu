// One block per row. The row is read from memory once, summed as it arrives, and kept in shared
// memory until the sum is known, while the other blocks of the multiprocessor load and store; a row
// that does not fit is read again.
#include "core/cuda/bulk.cuh"
#include "core/cuda/fast_math.cuh"
#include "core/cuda/vec8.cuh"
#include "ops/loss/loss_backward_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kLossBackwardThreads = 512;
constexpr int kLossBackwardWarps = kLossBackwardThreads / 32;
constexpr float kMost = 3.38953139e38f;  // largest bf16

struct LossBackwardArgs {
    float* loss;
    bf16* logits;
    const std::int32_t* targets;
    const float* weights;  // of rows, if a column is hidden
    int hidden;            // the hidden column
    int vocab, cols;       // cols: elements from one row to the next
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

// exp(x - top) as one multiply-add and one more instruction: at(x) * fix. The product top * log2(e)
// is rounded, which shifts all exponents by the same amount, and `fix` corrects that. If top is so
// large that the rounding error exceeds an exponent's range (from some 2^31 on), the result is NaN,
// except in two cases: a power of two, whose product is exact, and -kMost, whose shift is infinite
// and fix 0, with nothing but 0 to be multiplied by it: threads without any column.
struct Exponentials {
    float shift, fix;
    __device__ __forceinline__ float at(float x) const {
        return fast_exp2(__fmaf_rn(x, kLog2E, -shift));
    }
};
__device__ __forceinline__ Exponentials exponentials_from(float top) {
    const float shift = __fmul_rn(top, kLog2E);
    return {shift, fast_exp2(-__fmaf_rn(top, kLog2E, -shift))};
}

// Where a row is kept for its second pass: in global memory, or in shared memory, where either the
// threads store what they read, or (sm_90) bulk copies load the whole row at once.
enum class Wait { memory, kept, brought };

constexpr int kLossBackwardChunk = 2 * kLossBackwardThreads;  // pieces under one barrier
constexpr int kMostChunks = 16;  // of 16 KB: more than fit into shared memory

// Sets one column of a piece, if present, to -2^126: its exp() is 0. If a thread has no other
// column, it is the largest and its exp() is 1: a power of two times log2(e) is exact, so no fix is
// needed. That 1 is multiplied by exp(-2^126 - top) = 0 when threads' sums are combined.
template <int kWidth>
__device__ __forceinline__ void hide(Raw<kWidth>& piece, int column) {
    constexpr unsigned short kLeast = 0xfe80;
    if constexpr (kWidth == 1) {
        if (column == 0) piece = kLeast;
    } else {
        unsigned words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (i != column) continue;
            words[i / 2] = i % 2 ? (words[i / 2] & 0xffffu) | unsigned{kLeast} << 16
                                 : (words[i / 2] & 0xffff0000u) | kLeast;
        }
        piece = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// kMasked: rows have weights, and one column is hidden.
template <int kWidth, Wait kWait, bool kMasked>
__global__ void __launch_bounds__(kLossBackwardThreads) row_gradient(const LossBackwardArgs a) {
    constexpr bool kBrought = kWait == Wait::brought;
    constexpr int kBatch =
        kBrought ? kLossBackwardChunk / kLossBackwardThreads : 4;  // loads in flight
    extern __shared__ __align__(16) unsigned char kept[];
    __shared__ float tops[kLossBackwardWarps], sums[kLossBackwardWarps];
    __shared__ std::uint64_t barriers[kBrought ? kMostChunks : 1];
    using Piece = Raw<kWidth>;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const std::size_t row = blockIdx.x;
    bf16* logits = a.logits + row * static_cast<std::size_t>(a.cols);
    auto* memory = reinterpret_cast<Piece*>(logits);
    auto* mine = kWait == Wait::memory ? memory : reinterpret_cast<Piece*>(kept);
    // Pieces with columns of the vocabulary, pieces with no others, and all pieces of the row.
    const int pieces = (a.vocab + kWidth - 1) / kWidth, whole = a.vocab / kWidth;
    const int all = a.cols / kWidth;
    const auto barrier = [&](int chunk) {
        return shared_address(barriers) + 8 * static_cast<unsigned>(chunk);
    };
    if (kBrought && thread == 0) {
        for (int i = 0; i * kLossBackwardChunk < pieces; ++i) barrier_init(barrier(i), 1);
        barriers_ready();
    }
    wait_for_previous();
    const StageClock clock(a.stamp);
    let_next_start();
    const int target = a.targets[row];
    if (target < 0) {
        if (thread == 0) a.loss[row] = 0;
        if (a.gradient) {
            const float zeros[kWidth] = {};
            for (int i = thread; i < all; i += kLossBackwardThreads)
                memory[i] = pack<kWidth>(zeros);
        }
        return;
    }
    if constexpr (kBrought) {
        if (thread == 0) {
            for (int i = 0; i * kLossBackwardChunk < pieces; ++i) {
                const int bytes = min(kLossBackwardChunk, pieces - i * kLossBackwardChunk) *
                                  static_cast<int>(sizeof(Piece));
                barrier_expect(barrier(i), bytes);
                copy_bulk(shared_address(mine + i * kLossBackwardChunk),
                          memory + i * kLossBackwardChunk, bytes, barrier(i));
            }
        }
        __syncthreads();  // the barriers are initialised
    }
    const float target_logit = target < a.vocab ? to_f32(logits[target]) : 0.0f;

    // The smallest and the largest logit, two columns at a time for whole pieces; an infinity is
    // one of them, and a NaN both. They start at the finite extremes. The sum of exponentials is
    // relative to the largest so far: `top` of this thread.
    float top = -kMost, sum = 0;
    bool bad = target >= a.vocab;
    __nv_bfloat162 low = __float2bfloat162_rn(kMost), high = __float2bfloat162_rn(-kMost);
    for (int first = 0; first < pieces; first += kBatch * kLossBackwardThreads) {
        if constexpr (kBrought) barrier_wait(barrier(first / kLossBackwardChunk), 0);
        Piece piece[kBatch];
        const auto at = [&](int j) { return first + j * kLossBackwardThreads + thread; };
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
            if (at(j) < pieces) piece[j] = kBrought ? mine[at(j)] : memory[at(j)];
            if (kMasked && at(j) == a.hidden / kWidth) hide<kWidth>(piece[j], a.hidden % kWidth);
        }
        float greatest = top;
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
            if (at(j) >= pieces) continue;
            if constexpr (kWait == Wait::kept) mine[at(j)] = piece[j];
            if (kWidth == 8 && at(j) < whole) {
                __nv_bfloat162 pairs[4];
                memcpy(pairs, &piece[j], sizeof(Piece));
                __nv_bfloat162 most = pairs[0];
#pragma unroll
                for (int i = 0; i < kWidth / 2; ++i) {
                    low = __hmin2_nan(low, pairs[i]);
                    most = __hmax2_nan(most, pairs[i]);
                }
                high = __hmax2_nan(high, most);
                const float2 ends = __bfloat1622float2(most);
                greatest = fmaxf(greatest, fmaxf(ends.x, ends.y));
                continue;
            }
            float v[kWidth];
            unpack<kWidth>(piece[j], v);
#pragma unroll
            for (int i = 0; i < kWidth; ++i) {
                if (at(j) * kWidth + i >= a.vocab) continue;
                bad |= !(fabsf(v[i]) <= kMost);
                greatest = fmaxf(greatest, v[i]);
            }
        }
        const Exponentials exponentials = exponentials_from(greatest);
        float more = 0;
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
            if (at(j) >= pieces) continue;
            float v[kWidth];
            unpack<kWidth>(piece[j], v);
            if (at(j) < whole) {
#pragma unroll
                for (int i = 0; i < kWidth; ++i) more += exponentials.at(v[i]);
            } else {
#pragma unroll
                for (int i = 0; i < kWidth; ++i) {
                    if (at(j) * kWidth + i < a.vocab) more += exponentials.at(v[i]);
                }
            }
        }
        sum = fmaf(sum, fast_exp(top - greatest), more * exponentials.fix);
        top = greatest;
    }
    const float2 least = __bfloat1622float2(low), greatest = __bfloat1622float2(high);
    for (const float end : {least.x, least.y, greatest.x, greatest.y}) {
        bad |= !(fabsf(end) <= kMost);
    }
    const float top_of_warp = warp_max(top);
    sum = warp_sum(sum * fast_exp(top - top_of_warp));
    if (lane == 0) {
        tops[warp] = top_of_warp;
        sums[warp] = sum;
    }
    bad = __syncthreads_or(bad) != 0;  // all logits are read: the row may be written now
    top = warp_max(tops[lane % kLossBackwardWarps]);
    sum = 0;
#pragma unroll
    for (int w = 0; w < kLossBackwardWarps; ++w) sum += sums[w] * fast_exp(tops[w] - top);
    const float nan = __int_as_float(0x7fffffff);
    const float weight = kMasked ? a.weights[row] : 1.0f;
    const float scale = kMasked ? a.scale * weight : a.scale;
    if (thread == 0) {
        const float loss = bad ? nan : logf(sum) + (top - target_logit);
        a.loss[row] = kMasked ? weight * loss : loss;
    }
    if (!a.gradient) return;

    const Exponentials exponentials = exponentials_from(top);
    const float factor = bad ? nan : scale / sum * exponentials.fix;
    for (int p = thread; p < all; p += kLossBackwardThreads) {
        float v[kWidth] = {};
        if (p < pieces) {
            unpack<kWidth>(mine[p], v);
#pragma unroll
            for (int j = 0; j < kWidth; ++j) v[j] = factor * exponentials.at(v[j]);
            if (p == target / kWidth || p >= whole) {
#pragma unroll
                for (int j = 0; j < kWidth; ++j) {
                    if (p * kWidth + j == target) v[j] -= scale;
                    if (p * kWidth + j >= a.vocab) v[j] = 0.0f;
                }
            }
        }
        if (kMasked && p == a.hidden / kWidth) {
#pragma unroll
            for (int j = 0; j < kWidth; ++j) {
                if (p * kWidth + j == a.hidden) v[j] = 0.0f;
            }
        }
        memory[p] = pack<kWidth>(v);
    }
}

template <bool kMasked>
void start_rows(const Context& ctx, LossBackwardArgs args, const Tensor& logits) {
    const auto rows = static_cast<std::uint64_t>(logits.dim(0));
    // Compare, subtract, exponential, add; again for the gradient: 3 and the subtraction.
    args.stamp =
        account(ctx, OpKind::loss, "cross entropy backward",
                {1, logits.bytes() + rows * (kMasked ? 8 : 4),
                 rows * 4 + (args.gradient ? logits.bytes() : 0),
                 (args.gradient ? 8 : 4) * rows * static_cast<std::uint64_t>(args.vocab), 0});
    const std::size_t row_bytes = (logits.row_bytes() + 15) / 16 * 16;
    const bool wide = in_eights(logits.data, logits.dim(1));
    const bool fits = row_bytes + 1024 <= this_gpu().shared_per_block;  // plus static memory
    const auto start = [&](auto kernel, std::size_t shared) {
        allow_shared(kernel, shared);
        launch(ctx, dim3(static_cast<unsigned>(rows)), dim3(kLossBackwardThreads), shared, kernel,
               args);
    };
    if (fits && wide && this_gpu().sm >= 90) {
        start(row_gradient<8, Wait::brought, kMasked>, row_bytes);
    } else if (fits) {
        start(wide ? row_gradient<8, Wait::kept, kMasked> : row_gradient<1, Wait::kept, kMasked>,
              row_bytes);
    } else {
        start(
            wide ? row_gradient<8, Wait::memory, kMasked> : row_gradient<1, Wait::memory, kMasked>,
            0);
    }
}

LossBackwardArgs checked(const Context& ctx, float* loss, Tensor logits, std::int64_t vocab,
                         const std::int32_t* targets, float scale, bool gradient) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(logits && logits.dtype == DType::bf16 && logits.shape.rank == 2 && vocab > 0 &&
                 vocab <= logits.dim(1),
             "logits are bf16 [rows, at least vocab]");
    MR_CHECK(loss && targets, "losses and targets lie on the device");
    return {loss,
            static_cast<bf16*>(logits.data),
            targets,
            nullptr,
            -1,
            static_cast<int>(vocab),
            static_cast<int>(logits.dim(1)),
            scale,
            gradient,
            nullptr};
}

}  // namespace

void cross_entropy_backward(const Context& ctx, float* loss, Tensor logits, std::int64_t vocab,
                            const std::int32_t* targets, float scale, bool gradient) {
    const LossBackwardArgs args = checked(ctx, loss, logits, vocab, targets, scale, gradient);
    if (logits.dim(0) > 0) start_rows<false>(ctx, args, logits);
}

void masked_cross_entropy(const Context& ctx, float* loss, Tensor logits, std::int64_t vocab,
                          const std::int32_t* targets, const ops::MaskedLoss& of,
                          std::optional<float> scale) {
    LossBackwardArgs args =
        checked(ctx, loss, logits, vocab, targets, scale.value_or(0), scale.has_value());
    MR_CHECK(of.weights && of.mask >= 0 && of.mask < vocab,
             "rows have weights on the device, and the mask lies in the vocabulary");
    args.weights = of.weights;
    args.hidden = of.mask;
    if (logits.dim(0) > 0) start_rows<true>(ctx, args, logits);
}

}  // namespace mr::cuda
