// How fast linear() is against what the machine can do: for one token the memory's read bandwidth,
// for many the peak of the multiply-add pipes. Shapes are TinyLlama-1.1B's.
//
//   bench_linear [threads] [seconds per line]
//
// Weights rotate over matrices that together exceed every cache; each line is the best of its runs.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "core/cpu.h"
#include "core/read_double.h"
#include "ops/linear/linear.h"

namespace {

using namespace mr;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// With one thread CPU time is measured, so that a shared machine can be used.
double timer(int threads) {
    timespec now{};
    ::clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Best of the runs that fit into `budget` seconds, at least 3.
template <typename Body>
double best_seconds(int threads, double budget, Body&& body) {
    double best = 1e30;
    const auto begin = Clock::now();
    for (int i = 0; i < 3 || seconds_since(begin) < budget; ++i) {
        const double start = timer(threads);
        body();
        best = std::min(best, timer(threads) - start);
    }
    return best;
}

// Reads of 64 bytes into four sums: the simplest loop that keeps up with the memory.
std::uint64_t read_all(const std::uint64_t* data, std::int64_t begin, std::int64_t end) {
    std::uint64_t sum[8] = {};
    for (std::int64_t i = begin; i < end; i += 8) {
        for (int j = 0; j < 8; ++j) sum[j] += data[i + j];
    }
    std::uint64_t all = 0;
    for (std::uint64_t one : sum) all += one;
    return all;
}

struct Bench {
    Bench(int threads, double budget_) : pool(threads), budget(budget_), weights(kBytes) {
        // Any bytes whose floats are finite and normal: x86 takes 50 times as long for denormal
        // ones.
        for (std::size_t i = 0; i < weights.size(); i += 8) {
            const std::uint64_t word =
                ((i * 0x9e3779b97f4a7c15u) & 0x3f3f3f3f3f3f3f3fu) | 0x2020202020202020u;
            std::memcpy(weights.data() + i, &word, 8);
        }
    }

    void bandwidth() {
        const auto* words = reinterpret_cast<const std::uint64_t*>(weights.data());
        std::atomic<std::uint64_t> sink{0};
        const double s = best_seconds(pool.size(), 2 * budget, [&] {
            pool.parallel_for(kBytes / 8, 1 << 15, [&](std::int64_t b, std::int64_t e, int) {
                sink += read_all(words, b, e);
            });
        });
        read_gb = kBytes / s * 1e-9;
        std::printf("read bandwidth, %d threads: %.1f GB/s (%u)\n", pool.size(), read_gb,
                    static_cast<unsigned>(sink.load() & 1));
    }

    void product(DType dtype, std::int64_t n, std::int64_t k, std::int64_t tokens) {
        const std::size_t bytes = dtype_bytes(dtype, static_cast<std::size_t>(n * k));
        std::vector<float> x(static_cast<std::size_t>(tokens * k)),
            out(static_cast<std::size_t>(tokens * n));
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 37) - 18.0f;
        std::vector<std::byte> scratch(ops::linear_scratch_bytes(tokens, k, pool.size()));
        const Context ctx{&pool, nullptr, scratch};
        std::size_t at = 0;
        const double s = best_seconds(pool.size(), budget, [&] {
            if (at + bytes > weights.size()) at = 0;
            ops::linear(ctx, {x.data(), DType::f32, {tokens, k}},
                        {{weights.data() + at, dtype, {n, k}},
                         {out.data(), DType::f32, {tokens, n}},
                         {},
                         {}});
            at += bytes;
        });
        const double gb = static_cast<double>(bytes) / s * 1e-9;
        std::printf(
            "%-5s %5lld x %5lld, %4lld tokens: %8.1f us %6.1f GB/s (%3.0f%%) %7.1f GMAC/s\n",
            dtype_name(dtype), static_cast<long long>(n), static_cast<long long>(k),
            static_cast<long long>(tokens), s * 1e6, gb, 100 * gb / read_gb,
            static_cast<double>(n * k * tokens) / s * 1e-9);
        std::fflush(stdout);
    }

    static constexpr std::int64_t kBytes = 1 << 30;
    ThreadPool pool;
    double budget;
    std::vector<std::byte> weights;
    double read_gb = 0;
};

}  // namespace

int main(int argc, char** argv) {
    const int threads = argc > 1 ? std::atoi(argv[1]) : cpu_info().cores;
    Bench bench(threads, argc > 2 ? read_double(argv[2]).value_or(0.5) : 0.5);
    std::printf("%s, path %s\n", cpu_info().model.c_str(), isa_name(active_isa()));
    bench.bandwidth();
    constexpr std::int64_t kShapes[][2] = {
        {2048, 2048}, {256, 2048}, {5632, 2048}, {2048, 5632}, {32000, 2048}};
    for (DType dtype : {DType::q8_0, DType::q4_0, DType::bf16, DType::f16, DType::f32}) {
        for (const auto& [n, k] : kShapes) {
            bench.product(dtype, n, k, 1);
            const DType repacked = ops::linear_fastest_type(dtype, n);
            if (repacked != dtype) bench.product(repacked, n, k, 1);
        }
        for (const std::int64_t tokens : {2, 4, 6, 8, 9, 16, 32, 128, 512}) {
            bench.product(ops::linear_fastest_type(dtype, 2048), 2048, 2048, tokens);
        }
        bench.product(dtype, 5632, 2048, 128);
        bench.product(dtype, 2048, 5632, 128);
    }
}
