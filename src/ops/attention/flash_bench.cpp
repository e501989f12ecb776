// How fast attention is on the CPU, forward and backward: one causal sequence of 1024 tokens.
//
//   bench_flash [threads]
//
// Each line is the best of 7 runs, counting only the pairs that the mask leaves.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/cpu.h"
#include "ops/attention/flash.h"

namespace {

using namespace mr;
using namespace mr::ops;

template <typename Body>
double best_seconds(Body&& body) {
    double best = 1e30;
    for (int i = 0; i < 7; ++i) {
        const auto start = std::chrono::steady_clock::now();
        body();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        best = std::min(best, took.count());
    }
    return best;
}

void measure(const Context& ctx, int heads, int kv_heads, int dim) {
    constexpr int kTokens = 1024;
    const auto values = [&](int rows) {
        std::vector<float> out(static_cast<std::size_t>(kTokens) * static_cast<std::size_t>(rows) *
                               static_cast<std::size_t>(dim));
        std::uint32_t state = 1;
        for (float& x : out) {
            state = state * 1664525u + 1013904223u;
            x = static_cast<float>(state >> 8) * 0x1p-23f - 1;  // in [-1, 1)
        }
        return out;
    };
    const auto tensor = [&](std::vector<float>& x, int rows) {
        return Tensor{x.data(), DType::f32, {kTokens, rows, dim}};
    };
    std::vector<float> q = values(heads), k = values(kv_heads), v = values(kv_heads);
    std::vector<float> out = q, dout = q, dq = q, dk = k, dv = k;
    std::vector<float> lse(static_cast<std::size_t>(heads) * kTokens);
    const Tensor lse_tensor{lse.data(), DType::f32, {heads, kTokens}};
    const float scale = 0.1f;
    const double forward = best_seconds([&] {
        flash_forward(ctx, tensor(out, heads), lse_tensor, tensor(q, heads), tensor(k, kv_heads),
                      tensor(v, kv_heads), {}, {}, scale);
    });
    const double backward = best_seconds([&] {
        flash_backward(ctx, {tensor(dq, heads), tensor(dk, kv_heads), tensor(dv, kv_heads)},
                       tensor(dout, heads), tensor(q, heads), tensor(k, kv_heads),
                       tensor(v, kv_heads), tensor(out, heads), lse_tensor, {}, {}, scale);
    });
    const double work = 2.0 * kTokens * (kTokens + 1) / 2 * heads * dim;  // of one product
    std::printf("%5d %8d %8d   %8.2f ms %6.1f GFLOP/s   %8.2f ms %6.1f GFLOP/s\n", heads, kv_heads,
                dim, forward * 1e3, 2 * work / forward * 1e-9, backward * 1e3,
                5 * work / backward * 1e-9);
}

}  // namespace

int main(int argc, char** argv) {
    const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1;
    ThreadPool pool(threads);
    std::vector<std::byte> scratch(flash_backward_scratch_bytes(kFlashMaxDim, threads));
    const Context ctx{&pool, nullptr, scratch};
    std::printf("%s, %d thread(s)\nheads kv_heads head_dim   forward%22s backward\n",
                isa_name(active_isa()), threads, "");
    for (const int dim : {64, 128}) {
        measure(ctx, 4, 4, dim);
        measure(ctx, 4, 2, dim);
    }
}
