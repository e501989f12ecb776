#include "core/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"

namespace mr {
namespace {

// Spinning before a worker sleeps: longer than the gaps inside a decode step, far shorter than a
// person notices. About 50 microseconds on a Neoverse-V1; more where `pause` takes 140 cycles, as
// on Intel's cores since Skylake.
constexpr int kSpins = 20000;

// The bit of the gate that is set while a loop may be entered; the bits below count workers.
constexpr std::uint32_t kOpen = std::uint32_t{1} << 31;

inline void relax() {
#if defined(__aarch64__)
    asm volatile("yield" ::: "memory");
#elif defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

}  // namespace

struct ThreadPool::Workers {
    ~Workers() { stop(); }
    void start(int thread) {
        threads.emplace_back([this, thread] { work(thread); });
    }
    void stop();  // ends and joins them
    void run(const Job& next_job);
    void work(int thread);
    std::uint32_t wait_after(std::uint32_t seen) const;
    void take_pieces(int thread);

    std::vector<std::thread> threads;
    Job job;
    std::exception_ptr failure;
    std::atomic_flag failed = ATOMIC_FLAG_INIT;
    alignas(64) std::atomic<std::int64_t> next{0};         // first index not handed out
    alignas(64) std::atomic<std::uint32_t> generation{0};  // one more for every loop
    alignas(64) std::atomic<std::uint32_t> gate{0};        // kOpen, and workers inside the loop
    std::atomic<bool> stopping{false};
};

ThreadPool::ThreadPool(int threads) {
    MR_CHECK(threads >= 1, "a pool has at least one thread");
    auto workers = std::make_unique<Workers>();  // stops them where this throws
    workers->threads.reserve(static_cast<std::size_t>(threads - 1));
    try {
        for (; size_ < threads; ++size_) workers->start(size_);
    } catch (const std::system_error& error) {  // a limit on processes or on address space
        throw Error::device(
            {.field = "threads",
             .value = std::to_string(threads),
             .problem =
                 "only " + std::to_string(size_) + " could be started: " + error.code().message(),
             .remedy = "use fewer --threads, or raise the limit (ulimit -u, ulimit -v)"});
    }
    workers_ = workers.release();
}

ThreadPool::~ThreadPool() { delete workers_; }

void ThreadPool::run(const Job& job) { workers_->run(job); }

void ThreadPool::Workers::stop() {
    stopping.store(true, std::memory_order_relaxed);
    // In one order with what notify_all() reads, the number of workers that sleep.
    generation.fetch_add(1, std::memory_order_seq_cst);
    generation.notify_all();
    for (std::thread& worker : threads) worker.join();
    threads.clear();
}

void ThreadPool::Workers::take_pieces(int thread) {
    try {
        for (;;) {
            const std::int64_t begin = next.fetch_add(job.grain, std::memory_order_relaxed);
            if (begin >= job.count) return;
            job.call(job.context, begin, std::min(begin + job.grain, job.count), thread);
        }
    } catch (...) {
        next.store(job.count, std::memory_order_relaxed);
        if (!failed.test_and_set()) failure = std::current_exception();
    }
}

void ThreadPool::Workers::run(const Job& next_job) {
    job = next_job;
    next.store(0, std::memory_order_relaxed);
    gate.fetch_or(kOpen, std::memory_order_release);
    generation.fetch_add(1, std::memory_order_release);
    generation.notify_all();
    take_pieces(0);
    // Wait for workers inside the loop alone. On a busy machine a worker may not run for
    // milliseconds, and other threads have done its share by then.
    gate.fetch_and(~kOpen, std::memory_order_acquire);
    for (int spins = 0; gate.load(std::memory_order_acquire) != 0; ++spins) {
        if (spins < kSpins) {
            relax();
        } else {
            std::this_thread::yield();
        }
    }
    if (failed.test()) {
        failed.clear();
        std::rethrow_exception(std::exchange(failure, nullptr));
    }
}

// The number of the first loop after `seen`, or a later one; a worker that takes part in loop after
// loop rarely sleeps.
std::uint32_t ThreadPool::Workers::wait_after(std::uint32_t seen) const {
    for (int spins = 0;; ++spins) {
        const std::uint32_t now = generation.load(std::memory_order_acquire);
        if (now != seen) return now;
        if (spins < kSpins) {
            relax();
        } else {
            generation.wait(seen, std::memory_order_acquire);
        }
    }
}

void ThreadPool::Workers::work(int thread) {
    // stop() may count up at any moment after this: the next wait then returns at once, because a
    // worker has seen no number but the one that it was given.
    for (std::uint32_t seen = wait_after(0); !stopping.load(std::memory_order_relaxed);
         seen = wait_after(seen)) {
        // The loop may have ended before this worker came: then the gate is closed.
        if ((gate.fetch_add(1, std::memory_order_acquire) & kOpen) != 0) take_pieces(thread);
        gate.fetch_sub(1, std::memory_order_release);
    }
}

}  // namespace mr
