#include <atomic>

#include "core/cuda/device.h"
#include "core/cuda/tensor_map.h"
#include "ops/attention/flash_dispatch.cuh"
#include "ops/attention/flash_forward_hopper.cuh"

namespace mr::cuda::flash {
namespace {

// A counter that no other launch uses at the same time. A captured launch keeps its own: it may run
// at any time, but not beside itself, since it would write the same tensors. Others share a ring of
// so many that whoever had it before is long done. -1: every counter is kept.
int take_counter(const Context& ctx) {
    constexpr unsigned kHalf = kTileCounters / 2;
    static std::atomic<unsigned> launched{0}, captured{0};
    cudaStreamCaptureStatus status{};
    MR_CUDA_CALL(cudaStreamIsCapturing(ctx.cuda->raw(), &status));
    if (status == cudaStreamCaptureStatusNone) return static_cast<int>(launched++ % kHalf);
    const unsigned taken = captured.load() < kHalf ? captured++ : kHalf;
    return taken < kHalf ? static_cast<int>(kHalf + taken) : -1;
}

template <typename T, typename S>
void launch_forward(const Context& ctx, const Problem& p, Stamp* stamp) {
    const CUtensorMap q =
        head_rows_map(p.q.data, p.dtype, p.tokens_q, p.heads, p.head_dim, p.q.stride, S::kRows);
    const auto keys_map = [&](const View& view) {
        if (p.tokens_k == 0) return q;  // never read
        return head_rows_map(view.data, p.dtype, p.tokens_k, p.kv_heads, p.head_dim, view.stride,
                             S::kKeys);
    };
    const int blocks = this_gpu().multiprocessors;
    ForwardPlan plan = plan_forward(p, S::kRows, blocks, this_gpu().l2_bytes, stamp);
    if (plan.tiles > blocks) plan.counter = take_counter(ctx);
    const auto kernel = forward::forward_kernel<T, S>;
    allow_shared(kernel, S::kBytes);
    launch(ctx, static_cast<unsigned>(std::min(blocks, plan.tiles)), S::kThreads, S::kBytes, kernel,
           p, plan, q, keys_map(p.k), keys_map(p.v));
}

template <typename T>
void launch_forward(const Context& ctx, const Problem& p, Stamp* stamp) {
    const auto with = [&](auto shape) { launch_forward<T, decltype(shape)>(ctx, p, stamp); };
    if (p.head_dim <= 64) return with(ForwardShape<64, 3, 128, 4, true>());
    if (p.head_dim <= 80) return with(ForwardShape<80, 2, 128, 2, true>());
    if (p.head_dim <= 96) return with(ForwardShape<96, 2, 128, 2, true>());
    if (p.head_dim <= 128) return with(ForwardShape<128, 2, 128, 2, false>());
    with(ForwardShape<256, 2, 80, 2, true>());
}

}  // namespace

void forward_hopper(const Context& ctx, const Problem& p, Stamp* stamp) {
    if (p.dtype == DType::bf16) return launch_forward<bf16>(ctx, p, stamp);
    launch_forward<__half>(ctx, p, stamp);
}

}  // namespace mr::cuda::flash
