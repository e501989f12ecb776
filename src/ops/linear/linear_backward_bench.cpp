// How fast the products of training are against the peak of the multiply-add pipes: shapes of small
// models, thousands of tokens.
//
//   bench_linear_backward [threads]
//
// Each line is the best of its runs. With one thread CPU time is measured, so that a shared machine
// can be used.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "core/cpu.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_backward.h"

namespace {

using namespace mr;
using namespace mr::ops;

double now(int threads) {
    timespec time{};
    ::clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

template <typename Body>
double best_seconds(int threads, Body&& body) {
    double best = 1e30;
    for (int i = 0; i < 7; ++i) {
        const double start = now(threads);
        body();
        best = std::min(best, now(threads) - start);
    }
    return best;
}

std::vector<float> values(std::int64_t count) {
    std::vector<float> out(static_cast<std::size_t>(count));
    std::uint32_t state = 1;
    for (float& x : out) {
        state = state * 1664525u + 1013904223u;
        x = static_cast<float>(state >> 8) * 0x1p-23f - 1;  // in [-1, 1)
    }
    return out;
}

void measure(ThreadPool& pool, std::int64_t tokens, std::int64_t n, std::int64_t k) {
    const int threads = pool.size();
    std::vector<std::byte> scratch(std::max(linear_backward_scratch_bytes(tokens, n, k, threads),
                                            linear_scratch_bytes(tokens, k, threads)));
    const Context ctx{&pool, nullptr, scratch};
    std::vector<float> x = values(tokens * k), y = values(tokens * n), w = values(n * k);
    const Tensor x_t{x.data(), DType::f32, {tokens, k}}, y_t{y.data(), DType::f32, {tokens, n}};
    const Tensor w_t{w.data(), DType::f32, {n, k}};
    const double flops = 2.0 * static_cast<double>(tokens) * static_cast<double>(n * k);
    const double inference = best_seconds(threads, [&] { linear(ctx, x_t, {w_t, y_t}); });
    const double forward = best_seconds(threads, [&] { linear_train(ctx, y_t, x_t, w_t); });
    const double input = best_seconds(threads, [&] { linear_backward_input(ctx, x_t, y_t, w_t); });
    std::fill(w.begin(), w.end(), 0.0f);
    const double weight =
        best_seconds(threads, [&] { linear_backward_weight(ctx, w_t, {}, y_t, x_t); });
    std::printf("%6lld %6lld %6lld   %8.1f %8.1f %8.1f %8.1f\n", static_cast<long long>(tokens),
                static_cast<long long>(n), static_cast<long long>(k), flops / inference * 1e-9,
                flops / forward * 1e-9, flops / input * 1e-9, flops / weight * 1e-9);
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
    const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1;
    ThreadPool pool(threads);
    std::printf(
        "%s, %s, %d thread(s), GFLOP/s\ntokens      n      k   linear() forward       dx"
        "       dw\n",
        cpu_info().model.c_str(), isa_name(active_isa()), threads);
    for (const std::int64_t tokens : {2048, 4096}) {
        for (const std::int64_t dim : {128, 192, 512}) {
            measure(pool, tokens, dim, dim);
            measure(pool, tokens, 6 * dim, dim);  // gate and up of a SwiGLU
            measure(pool, tokens, dim, 3 * dim);
        }
        measure(pool, tokens, 2048, 192);  // a small vocabulary's LM head
    }
}
