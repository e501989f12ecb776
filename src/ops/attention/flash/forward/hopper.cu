#include <atomic>
#include <mutex>
#include <vector>

#include "core/cuda/device.h"
#include "core/cuda/tensor_map.h"
#include "ops/attention/flash/dispatch.cuh"
#include "ops/attention/flash/forward/hopper.cuh"

namespace mr::cuda::flash {
namespace {

// Counters of captured launches. A graph keeps one for each of its calls: it may run at any time,
// but not concurrently with itself, since it would write the same tensors. The counter is returned
// when the graph and everything instantiated from it are destroyed and no longer run.
class CapturedCounters {
  public:
    static constexpr int kFirst = kTileCounters / 2;
    static CapturedCounters& all() {
        static auto* pool = new CapturedCounters;  // never destroyed: graphs may outlive it
        return *pool;
    }
    // -1: all are in use.
    int take(cudaGraph_t graph) {
        const int counter = pop();
        if (counter < 0) return -1;
        cudaUserObject_t object{};
        MR_CUDA_CALL(cudaUserObjectCreate(
            &object, reinterpret_cast<void*>(static_cast<std::intptr_t>(counter)),
            [](void* taken) {
                all().push(static_cast<int>(reinterpret_cast<std::intptr_t>(taken)));
            },
            1, cudaUserObjectNoDestructorSync));
        MR_CUDA_CALL(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
        return counter;
    }
    int spare() {
        const std::lock_guard lock(mutex_);
        return static_cast<int>(free_.size());
    }

  private:
    CapturedCounters() {
        for (int i = kTileCounters - 1; i >= kFirst; --i) free_.push_back(i);
    }
    int pop() {
        const std::lock_guard lock(mutex_);
        if (free_.empty()) return -1;
        const int counter = free_.back();
        free_.pop_back();
        return counter;
    }
    void push(int counter) {
        const std::lock_guard lock(mutex_);
        free_.push_back(counter);
    }
    std::mutex mutex_;
    std::vector<int> free_;
};

// A counter that no other launch uses at the same time, or -1. Launches that are not captured share
// a ring of counters so large that the previous user of a counter has long finished.
int take_counter(const Context& ctx) {
    static std::atomic<unsigned> launched{0};
    cudaStreamCaptureStatus status{};
    unsigned long long id = 0;
    cudaGraph_t graph{};
    MR_CUDA_CALL(cudaStreamGetCaptureInfo(ctx.cuda->raw(), &status, &id, &graph));
    if (status != cudaStreamCaptureStatusNone) return CapturedCounters::all().take(graph);
    return static_cast<int>(launched++ % unsigned{CapturedCounters::kFirst});
}

template <typename T, typename S>
void launch_forward(const Context& ctx, const Problem& p, Stamp* stamp, const PagedKeys& paged) {
    const CUtensorMap q =
        head_rows_map(p.q.data, p.dtype, p.tokens_q, p.heads, p.head_dim, p.q.stride, S::kRows);
    const auto keys_map = [&](const View& view) {
        if (p.tokens_k == 0) return q;  // never read
        if (paged.table) {
            return head_rows_map(view.data, p.dtype, paged.pages * p.kv_heads * PagedKeys::kPage, 1,
                                 p.head_dim, p.head_dim, PagedKeys::kPage);
        }
        return head_rows_map(view.data, p.dtype, p.tokens_k, p.kv_heads, p.head_dim, view.stride,
                             S::kKeys);
    };
    const int blocks = this_gpu().multiprocessors;
    ForwardPlan plan = plan_forward(p, S::kRows, blocks, this_gpu().l2_bytes, stamp);
    if (plan.tiles > blocks) plan.counter = take_counter(ctx);
    const auto kernel = forward::forward_kernel<T, S>;
    allow_shared(kernel, S::kBytes);
    launch(ctx, static_cast<unsigned>(std::min(blocks, plan.tiles)), S::kThreads, S::kBytes, kernel,
           p, plan, paged, q, keys_map(p.k), keys_map(p.v));
}

template <typename T>
void launch_forward(const Context& ctx, const Problem& p, Stamp* stamp, const PagedKeys& paged) {
    const auto with = [&](auto shape) { launch_forward<T, decltype(shape)>(ctx, p, stamp, paged); };
    if (p.head_dim <= 64) return with(ForwardShape<64, 3, 128, 4, true>());
    if (p.head_dim <= 80) return with(ForwardShape<80, 2, 128, 2, true>());
    if (p.head_dim <= 96) return with(ForwardShape<96, 2, 128, 2, true>());
    if (p.head_dim <= 128) return with(ForwardShape<128, 2, 128, 2, false>());
    with(ForwardShape<256, 2, 80, 2, true>());
}

}  // namespace

int spare_counters() { return CapturedCounters::all().spare(); }

void forward_hopper(const Context& ctx, const Problem& p, Stamp* stamp, const PagedKeys& paged) {
    if (p.dtype == DType::bf16) return launch_forward<bf16>(ctx, p, stamp, paged);
    launch_forward<__half>(ctx, p, stamp, paged);
}

}  // namespace mr::cuda::flash
