#include <algorithm>

#include "core/cuda/kernel.cuh"
#include "core/cuda/timer.h"
#include "ops/sample/sample_cuda.h"
#include "ops/sample/sample_measure.h"

namespace mr::cuda {
namespace {

// Reads everything and, the buffer being full of zeros, writes nothing.
__global__ void __launch_bounds__(1024)
    read_all(const float4* from, std::int64_t count, float* to) {
    wait_for_previous();
    let_next_start();
    float sum = 0;
    const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
    const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
#pragma unroll 8
    for (std::int64_t i = first; i < count; i += threads) {
        const float4 x = __ldcs(from + i);
        sum += x.x + x.y + x.z + x.w;
    }
    if (sum != 0) *to = sum;
}

// Bytes a second from memory.
double read_rate(const Context& ctx, const DeviceInfo& device) {
    const std::size_t bytes = std::min<std::size_t>(std::size_t{2} << 30, device.free_bytes / 4);
    DeviceArena memory("buffer to measure memory with", bytes + 512);
    auto* to = memory.array<float>(1);
    const auto count = static_cast<std::int64_t>(bytes / sizeof(float4));
    auto* from = memory.array<float4>(static_cast<std::size_t>(count));
    ctx.cuda->fill(from, 0, static_cast<std::size_t>(count) * sizeof(float4));
    const auto blocks = static_cast<unsigned>(2 * device.multiprocessors);
    const double seconds = seconds_per_call(*ctx.cuda, 4, [&](int) {
        launch(ctx, dim3(blocks), dim3(1024), 0, read_all, from, count, to);
    });
    return static_cast<double>(count) * sizeof(float4) / seconds;
}

}  // namespace

ops::SampleMeasurement measure_sample(const ops::SampleMeasureOptions& options) {
    const DeviceInfo device = require_device();
    ops::SampleMeasurement out;
    out.device = device.name;
    const int most_rows = *std::max_element(options.rows.begin(), options.rows.end());
    const std::size_t row_bytes = static_cast<std::size_t>(options.vocab) * sizeof(float);
    // Four times what the second-level cache holds, gone through row after row.
    const std::size_t held = std::max<std::size_t>(4 * device.l2_bytes / row_bytes + 1,
                                                   2 * static_cast<std::size_t>(most_rows));
    DeviceArena memory("logits to sample from", held * row_bytes);
    const Tensor all = memory.tensor(
        DType::f32, {static_cast<std::int64_t>(held), static_cast<std::int64_t>(options.vocab)});
    Stream stream;
    Context ctx;
    ctx.cuda = &stream;
    out.read_bandwidth = read_rate(ctx, device);
    constexpr std::size_t kKinds = 16;
    for (std::size_t i = 0; i < held; ++i) {
        float* to = all.f32(static_cast<std::int64_t>(i));
        if (i < kKinds) {
            const auto row = ops::plausible_logits(options.vocab, static_cast<std::uint32_t>(i));
            stream.to_device(to, row.data(), row_bytes, nullptr);
            stream.synchronize();
        } else {
            stream.on_device(to, all.f32(static_cast<std::int64_t>(i % kKinds)), row_bytes);
        }
    }
    Sampler sampler(stream, most_rows);
    for (int row = 0; row < most_rows; ++row) {
        ops::SampleParams params = options.params;
        params.seed = static_cast<std::uint64_t>(row);
        sampler.set_row(row, params, 0, {}, nullptr);
    }
    for (int rows : options.rows) {
        const int sets = static_cast<int>(held) / rows;  // as many as lie in the memory
        const auto seconds_of = [&](bool cached) {
            return seconds_per_call(stream, cached ? 32 : std::clamp(sets, 2, 256), [&](int i) {
                const std::int64_t first = cached ? 0 : std::int64_t{i % sets} * rows;
                sample(ctx, all.slice_rows(first, rows), sampler.state(), sampler.kind(),
                       options.team);
            });
        };
        out.timings.push_back({rows, seconds_of(false), seconds_of(true),
                               static_cast<double>(row_bytes) * rows / out.read_bandwidth});
    }
    return out;
}

}  // namespace mr::cuda
