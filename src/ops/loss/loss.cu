#include "core/cuda/kernel.cuh"
#include "ops/loss/loss_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kLossThreads = 512;
constexpr int kLossWarps = kLossThreads / 32;
constexpr int kLossBatch = 4;  // loads in flight

// Calls f(x[i]) for this thread's columns, i = thread, thread + kLossThreads, ...
template <typename F>
__device__ __forceinline__ void for_each_of_row(const float* x, int n, F&& f) {
    int i = static_cast<int>(threadIdx.x);
    for (; i + (kLossBatch - 1) * kLossThreads < n; i += kLossBatch * kLossThreads) {
        float v[kLossBatch];
#pragma unroll
        for (int j = 0; j < kLossBatch; ++j) v[j] = x[i + j * kLossThreads];
#pragma unroll
        for (int j = 0; j < kLossBatch; ++j) f(v[j]);
    }
    for (; i < n; i += kLossThreads) f(x[i]);
}

// A block reads its row twice: for the largest element, then for the sum.
__global__ void __launch_bounds__(kLossThreads)
    row_nll(double* nll, const float* logits, const std::int32_t* targets, int vocab,
            Stamp* stamp) {
    __shared__ float tops[kLossWarps];
    __shared__ double sums[kLossWarps];
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    const float* row =
        logits + static_cast<std::size_t>(blockIdx.x) * static_cast<std::size_t>(vocab);
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);

    float top = __int_as_float(0xff800000);  // -inf
    bool nan = false;
    for_each_of_row(row, vocab, [&](float v) {
        nan |= v != v;
        top = fmaxf(top, v);
    });
    top = warp_max(top);
    if (lane == 0) tops[warp] = top;
    nan = __syncthreads_or(nan) != 0;
    top = warp_max(tops[lane % kLossWarps]);

    // The exponential in f32 as on the CPU, the sum in f64: per thread, then a tree.
    double sum = 0;
    for_each_of_row(row, vocab, [&](float v) { sum += static_cast<double>(expf(v - top)); });
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    double total = 0;
#pragma unroll
    for (int w = 0; w < kLossWarps; ++w) total += sums[w];
    const int target = targets[blockIdx.x];
    // Infinities have no useful loss either: +inf - +inf, or a row of -inf.
    const bool none = nan || isinf(top) || target < 0 || target >= vocab;
    nll[blockIdx.x] =
        none ? __longlong_as_double(0x7ff8000000000000ll)
             : log(total) + (static_cast<double>(top) - static_cast<double>(row[target]));
}

}  // namespace

void cross_entropy(const Context& ctx, double* nll, Tensor logits, const std::int32_t* targets) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(logits && logits.dtype == DType::f32 && logits.shape.rank == 2 && logits.dim(1) > 0,
             "logits are f32 [rows, vocab]");
    MR_CHECK(nll && targets, "results and targets lie on the device");
    const auto rows = static_cast<std::uint64_t>(logits.dim(0));
    if (rows == 0) return;
    // Compare, subtract, exponential, add: 4 operations per logit.
    Stamp* stamp = account(ctx, OpKind::loss, "cross entropy",
                           {1, logits.bytes() + rows * 4, rows * 8,
                            4 * rows * static_cast<std::uint64_t>(logits.dim(1)), 0});
    launch(ctx, dim3(static_cast<unsigned>(rows)), dim3(kLossThreads), 0, row_nll, nll,
           logits.f32(), targets, static_cast<int>(logits.dim(1)), stamp);
}

}  // namespace mr::cuda
