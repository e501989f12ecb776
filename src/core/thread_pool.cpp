#include "core/thread_pool.h"

#include <algorithm>
#include <exception>
#include <string>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace mr {
namespace {

// About 50 microseconds of spinning before a worker sleeps: longer than the gaps inside a decode
// step, far shorter than a person notices.
constexpr int kSpins = 20000;

inline void relax() {
#if defined(__aarch64__)
    asm volatile("yield" ::: "memory");
#elif defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
    MR_CHECK(threads >= 1, "a pool has at least one thread");
    workers_.reserve(static_cast<std::size_t>(threads - 1));
    try {
        for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
    } catch (const std::system_error& error) {  // a limit on processes or on address space
        const int started = size();
        stop();
        throw Error::device({.field = "threads",
                             .value = std::to_string(threads),
                             .problem = "only " + std::to_string(started) +
                                        " could be started: " + error.code().message(),
                             .remedy = "use fewer --threads"});
    } catch (...) {
        stop();
        throw;
    }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
    stop_.store(true, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
}

void ThreadPool::take_pieces(int thread) {
    try {
        for (;;) {
            const std::int64_t begin = next_.fetch_add(job_.grain, std::memory_order_relaxed);
            if (begin >= job_.count) return;
            job_.call(job_.context, begin, std::min(begin + job_.grain, job_.count), thread);
        }
    } catch (...) {
        next_.store(job_.count, std::memory_order_relaxed);
        if (!failed_.test_and_set()) failure_ = std::current_exception();
    }
}

void ThreadPool::run(const Job& job) {
    job_ = job;
    next_.store(0, std::memory_order_relaxed);
    busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    take_pieces(0);
    for (int spins = 0; busy_.load(std::memory_order_acquire) != 0; ++spins) {
        if (spins < kSpins) {
            relax();
        } else {
            std::this_thread::yield();
        }
    }
    if (failed_.test()) {
        failed_.clear();
        std::rethrow_exception(std::exchange(failure_, nullptr));
    }
}

void ThreadPool::work(int thread) {
    std::uint32_t seen = 0;
    for (;;) {
        for (int spins = 0; generation_.load(std::memory_order_acquire) == seen; ++spins) {
            if (spins < kSpins) {
                relax();
            } else {
                generation_.wait(seen, std::memory_order_acquire);
            }
        }
        ++seen;
        if (stop_.load(std::memory_order_relaxed)) return;
        take_pieces(thread);
        busy_.fetch_sub(1, std::memory_order_release);
    }
}

}  // namespace mr
