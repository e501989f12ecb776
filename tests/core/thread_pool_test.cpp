#include "core/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "core/error.h"
#include "sanitized.h"

namespace mr {
namespace {

TEST(ThreadPool, EveryIndexOnce) {
    for (int threads : {1, 2, 3, 5}) {
        ThreadPool pool(threads);
        EXPECT_EQ(pool.size(), threads);
        for (std::int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
            for (std::int64_t grain : {-1, 0, 1, 3, 64, 5000}) {
                std::vector<std::atomic<int>> seen(static_cast<std::size_t>(count));
                std::atomic<bool> bad_thread{false}, bad_piece{false};
                pool.parallel_for(
                    count, grain, [&](std::int64_t begin, std::int64_t end, int thread) {
                        if (thread < 0 || thread >= threads) bad_thread = true;
                        if (begin >= end || end - begin > std::max<std::int64_t>(1, grain)) {
                            bad_piece = true;
                        }
                        for (std::int64_t i = begin; i < end; ++i)
                            ++seen[static_cast<std::size_t>(i)];
                    });
                EXPECT_FALSE(bad_thread);
                EXPECT_FALSE(bad_piece);
                for (const auto& times : seen) ASSERT_EQ(times, 1);
            }
        }
    }
}

// The loops of a decode step: thousands of short ones, with results read right after each.
TEST(ThreadPool, ThousandsOfShortLoops) {
    ThreadPool pool(3);
    std::vector<std::int64_t> values(64, 0);
    for (int loop = 0; loop < 5000; ++loop) {
        pool.parallel_for(64, 8, [&](std::int64_t begin, std::int64_t end, int) {
            for (std::int64_t i = begin; i < end; ++i) values[static_cast<std::size_t>(i)] += i;
        });
    }
    for (std::int64_t i = 0; i < 64; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], 5000 * i);
}

TEST(ThreadPool, WorkersThatFellAsleepWakeUp) {
    ThreadPool pool(2);
    for (int round = 0; round < 3; ++round) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        std::atomic<int> done{0};
        pool.parallel_for(100, 1, [&](std::int64_t, std::int64_t, int) { ++done; });
        EXPECT_EQ(done, 100);
    }
}

TEST(ThreadPool, WorkersTakePart) {
    ThreadPool pool(2);
    std::atomic<int> arrived{0};
    // Two pieces that wait for each other: this needs two threads.
    pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t, int) {
        ++arrived;
        const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        while (arrived < 2 && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
    });
    EXPECT_EQ(arrived, 2);
}

std::atomic<bool> stuck{false}, let_go{false};

void stay_in_handler(int) {
    stuck = true;
    while (!let_go) ::usleep(1000);
}

// As on a busy machine: the system does not run the worker while loops begin and end.
TEST(ThreadPool, AWorkerThatDoesNotRunIsNotWaitedFor) {
    ThreadPool pool(2);
    std::atomic<pthread_t> worker{};
    std::atomic<int> arrived{0};
    pool.parallel_for(2, 1, [&](std::int64_t, std::int64_t, int thread) {
        if (thread == 1) worker = ::pthread_self();
        ++arrived;
        while (arrived < 2) std::this_thread::yield();
    });
    stuck = let_go = false;
    struct sigaction stay {};
    stay.sa_handler = stay_in_handler;  // to the end: a signal may still be on its way
    ASSERT_EQ(::sigaction(SIGUSR1, &stay, nullptr), 0);
    // Again and again: ThreadSanitizer keeps a signal until the thread's next atomic operation, and
    // a worker that has just fallen asleep has none until another signal wakes it.
    while (!stuck) {
        ASSERT_EQ(::pthread_kill(worker, SIGUSR1), 0);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (int loop = 0; loop < 100; ++loop) {
        int done = 0;  // of the caller alone
        pool.parallel_for(50, 1, [&](std::int64_t, std::int64_t, int) { ++done; });
        ASSERT_EQ(done, 50);
    }
    let_go = true;
    std::atomic<int> done{0};
    pool.parallel_for(50, 1, [&](std::int64_t, std::int64_t, int) { ++done; });
    EXPECT_EQ(done, 50);
}

// A pool that ends right behind a loop: workers that come late to the loop see its end, too.
TEST(ThreadPool, EndsWhileWorkersComeLate) {
    // Before the mend one run in ten hung, on two busy cores.
    const int kPools = test::sanitized() ? 100 : 3000;
    ::alarm(240);  // a worker that waits for ever would keep the destructor waiting
    std::atomic<int> done{0};
    for (int i = 0; i < kPools; ++i) {
        ThreadPool pool(16);
        for (int loop = 0; loop < 3; ++loop) {
            pool.parallel_for(64, 1, [&](std::int64_t, std::int64_t, int) { ++done; });
        }
    }
    ::alarm(0);
    EXPECT_EQ(done, kPools * 3 * 64);
}

TEST(ThreadPool, AnExceptionLeavesThroughTheCallerAndThePoolLivesOn) {
    for (int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        for (std::int64_t bad : {0, 17, 99}) {
            try {
                pool.parallel_for(100, 1, [&](std::int64_t begin, std::int64_t, int) {
                    if (begin == bad) throw std::runtime_error("piece " + std::to_string(begin));
                });
                FAIL() << "no exception";
            } catch (const std::runtime_error& error) {
                EXPECT_EQ(std::string(error.what()), "piece " + std::to_string(bad));
            }
            std::atomic<int> done{0};
            pool.parallel_for(50, 1, [&](std::int64_t, std::int64_t, int) { ++done; });
            EXPECT_EQ(done, 50);
        }
        // All pieces throw: one exception arrives.
        EXPECT_THROW(
            pool.parallel_for(10, 1,
                              [](std::int64_t, std::int64_t, int) { throw std::logic_error("x"); }),
            std::logic_error);
    }
}

TEST(ThreadPool, AThreadsScratchIsItsOwn) {
    ThreadPool pool(3);
    std::vector<std::atomic<int>> inside(3);
    std::atomic<bool> shared{false};
    pool.parallel_for(2000, 1, [&](std::int64_t, std::int64_t, int thread) {
        auto& mine = inside[static_cast<std::size_t>(thread)];
        if (mine.fetch_add(1) != 0) shared = true;
        mine.fetch_sub(1);
    });
    EXPECT_FALSE(shared);
}

TEST(ThreadPool, ManyPoolsComeAndGo) {
    for (int i = 0; i < 50; ++i) {
        ThreadPool pool(1 + i % 4);
        if (i % 2) pool.parallel_for(10, 1, [](std::int64_t, std::int64_t, int) {});
    }
    EXPECT_THROW(ThreadPool(0), ContractError);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Stacks take address space: with little left, some threads start and the next does not.
void start_more_threads_than_fit() {
    std::ifstream statm("/proc/self/statm");
    std::size_t pages = 0;
    statm >> pages;
    const rlim_t most = pages * 4096 + (rlim_t{128} << 20);
    const rlimit limit{most, most};
    const rlimit stack{rlim_t{16} << 20, RLIM_INFINITY};
    setrlimit(RLIMIT_STACK, &stack);
    setrlimit(RLIMIT_AS, &limit);
    try {
        ThreadPool pool(512);
        std::fputs("all of them started\n", stderr);
    } catch (const Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        std::_Exit(error.exit_code());
    }
    std::_Exit(0);
}

TEST(ThreadPoolDeathTest, ThreadsThatCannotStartAreAnError) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(start_more_threads_than_fit(), ::testing::ExitedWithCode(3), "fewer --threads");
}
#endif

}  // namespace
}  // namespace mr
