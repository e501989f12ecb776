// Where operations run: on the CPU's threads, or on a stream of the caller.
#include <pthread.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "core/cpu.h"
#include "core/cuda/device.h"
#include "ops.h"

namespace mr::python {
namespace {

struct Place {
    std::mutex mutex;
    int threads = 0;  // 0: all cores
    std::unique_ptr<ThreadPool> pool;
    std::vector<std::byte> scratch;
};

std::atomic<Place*> current{nullptr};

// A fork has none of its parent's threads, and one of them may have held the mutex: it gets its own
// place, and the parent's is left alone.
void after_fork() {
    auto* const mine = new Place;
    if (const Place* const before = current.load()) mine->threads = before->threads;
    current = mine;
}

Place& place() {
    static const bool once = [] {
        current = new Place;
        return ::pthread_atfork(nullptr, nullptr, &after_fork) == 0;
    }();
    MR_CHECK(once, "the process tells of its forks");
    return *current.load();
}

}  // namespace

void on_cpu(std::size_t scratch_bytes(int threads, const void* of), const void* of,
            const std::function<void(const Context&)>& body) {
    Place& p = place();
    const std::lock_guard lock(p.mutex);
    const int threads = p.threads > 0 ? p.threads : cpu_info().cores;
    if (!p.pool || p.pool->size() != threads) {
        p.pool.reset();
        p.pool = std::make_unique<ThreadPool>(threads);
    }
    const std::size_t bytes = scratch_bytes ? scratch_bytes(threads, of) : 0;
    if (p.scratch.size() < bytes) p.scratch.resize(bytes);
    Context ctx;
    ctx.pool = p.pool.get();
    ctx.scratch = p.scratch;
    body(ctx);
}

void set_ops_threads(int threads) {
    if (threads < 0 || threads > 4096) {
        throw Error::usage({.field = "threads",
                            .value = std::to_string(threads),
                            .problem = "must be from 0 (all cores) to 4096"});
    }
    Place& p = place();
    const std::lock_guard lock(p.mutex);
    p.threads = threads;
}

void on_cuda([[maybe_unused]] Address stream, [[maybe_unused]] std::span<std::byte> scratch,
             [[maybe_unused]] const std::function<void(const Context&)>& body) {
#ifdef MR_CUDA
    cuda::Stream borrowed(reinterpret_cast<CUstream_st*>(stream));
    Context ctx;
    ctx.cuda = &borrowed;
    ctx.scratch = scratch;
    // Earlier kernels on the stream are the caller's, and give no early signal.
    ctx.dependent_launch = false;
    body(ctx);
#else
    throw Error::device({.problem = "this build has no CUDA, and the tensors lie on a GPU",
                         .remedy = "build with the CUDA toolkit, or move them to the CPU"});
#endif
}

}  // namespace mr::python
