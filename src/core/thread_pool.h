// A fixed set of threads that run one parallel loop at a time. The caller takes part; workers spin
// briefly between loops (a decode step is hundreds of short ones) and then sleep.
#pragma once

#include <cstdint>
#include <type_traits>

namespace mr {

class ThreadPool {
  public:
    // At least 1; the caller is one of them. Throws Error (device) if the system refuses more
    // threads.
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return size_; }

    // Calls body(begin, end, thread) over [0, count) in pieces of at most `grain`, handed out as
    // threads become free; returns when all are done. `thread` is in [0, size()). A body's result
    // must not depend on which thread runs it. The first exception is rethrown in the caller after
    // the loop has ended.
    template <typename Body>
    void parallel_for(std::int64_t count, std::int64_t grain, Body&& body) {
        if (count <= 0) return;
        if (grain < 1) grain = 1;
        if (size_ == 1 || count <= grain) {
            for (std::int64_t i = 0; i < count; i += grain) {
                body(i, i + grain < count ? i + grain : count, 0);
            }
            return;
        }
        using Plain = std::remove_reference_t<Body>;
        run({[](void* context, std::int64_t begin, std::int64_t end, int thread) {
                 (*static_cast<Plain*>(context))(begin, end, thread);
             },
             const_cast<void*>(static_cast<const void*>(&body)), count, grain});
    }

  private:
    struct Job {
        void (*call)(void*, std::int64_t, std::int64_t, int) = nullptr;
        void* context = nullptr;
        std::int64_t count = 0;
        std::int64_t grain = 1;
    };
    // Threads and shared state. Defined in the .cpp, because <thread> and <atomic> would add a
    // second of compile time to every file that includes Context.
    struct Workers;
    void run(const Job& job);

    int size_ = 1;
    Workers* workers_ = nullptr;  // owned
};

}  // namespace mr
