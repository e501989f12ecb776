// How fast attention is on the CPU, forward and backward: one causal sequence of 1024 tokens, and a
// batch of small ones as a small model trains on.
//
//   bench_flash [threads]
//
// Each line is the best of 7 runs, counting only the pairs that the mask leaves; with one thread
// CPU time is measured, so that a shared machine can be used.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "core/cpu.h"
#include "ops/attention/flash/flash.h"

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

void measure(const Context& ctx, int sequences, int seq, int heads, int kv_heads, int dim) {
    const int tokens = sequences * seq, threads = ctx.pool->size();
    std::vector<std::int32_t> cu;
    for (int i = 0; i <= sequences; ++i) cu.push_back(i * seq);
    const PackedBatch batch{cu, cu};
    const auto values = [&](int rows) {
        std::vector<float> out(static_cast<std::size_t>(tokens) * static_cast<std::size_t>(rows) *
                               static_cast<std::size_t>(dim));
        std::uint32_t state = 1;
        for (float& x : out) {
            state = state * 1664525u + 1013904223u;
            x = static_cast<float>(state >> 8) * 0x1p-23f - 1;  // in [-1, 1)
        }
        return out;
    };
    const auto tensor = [&](std::vector<float>& x, int rows) {
        return Tensor{x.data(), DType::f32, {tokens, rows, dim}};
    };
    std::vector<float> q = values(heads), k = values(kv_heads), v = values(kv_heads);
    std::vector<float> out = q, dout = q, dq = q, dk = k, dv = k;
    std::vector<float> lse(static_cast<std::size_t>(heads) * static_cast<std::size_t>(tokens));
    const Tensor lse_tensor{lse.data(), DType::f32, {heads, tokens}};
    const float scale = 0.1f;
    const double forward = best_seconds(threads, [&] {
        flash_forward(ctx, tensor(out, heads), lse_tensor, tensor(q, heads), tensor(k, kv_heads),
                      tensor(v, kv_heads), batch, {}, scale);
    });
    const double backward = best_seconds(threads, [&] {
        flash_backward(ctx, {tensor(dq, heads), tensor(dk, kv_heads), tensor(dv, kv_heads)},
                       tensor(dout, heads), tensor(q, heads), tensor(k, kv_heads),
                       tensor(v, kv_heads), tensor(out, heads), lse_tensor, batch, {}, scale);
    });
    const double work = 1.0 * sequences * seq * (seq + 1) * heads * dim;  // of one product
    std::printf("%4d x %4d %5d %8d %8d   %8.2f ms %6.1f GFLOP/s   %8.2f ms %6.1f GFLOP/s\n",
                sequences, seq, heads, kv_heads, dim, forward * 1e3, 2 * work / forward * 1e-9,
                backward * 1e3, 5 * work / backward * 1e-9);
}

}  // namespace

int main(int argc, char** argv) {
    const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1;
    ThreadPool pool(threads);
    std::vector<std::byte> scratch(flash_backward_scratch_bytes(kFlashMaxDim, threads));
    const Context ctx{&pool, nullptr, scratch};
    std::printf("%s, %d thread(s)\n sequences  heads kv_heads head_dim   forward%22s backward\n",
                isa_name(active_isa()), threads, "");
    for (const int dim : {64, 128}) {
        measure(ctx, 1, 1024, 4, 4, dim);
        measure(ctx, 1, 1024, 4, 2, dim);
    }
    for (const int dim : {16, 24, 32, 48}) {
        measure(ctx, 8, 256, 192 / dim, 192 / dim, dim);
        measure(ctx, 8, 256, 192 / dim, 192 / dim / 2, dim);
    }
}
