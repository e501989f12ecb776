#include "lab/sampler/sample_measure.h"

#include <algorithm>

#include "core/cuda/kernel.cuh"
#include "core/cuda/timer.h"
#include "ops/sample/sample_cuda.h"

namespace mr::cuda {

ops::SampleMeasurement measure_sample(const ops::SampleMeasureOptions& options) {
    const DeviceInfo device = require_device();
    ops::SampleMeasurement out;
    out.device = device.name;
    const int most_rows = *std::max_element(options.rows.begin(), options.rows.end());
    const std::size_t row_bytes = static_cast<std::size_t>(options.vocab) * sizeof(float);
    // Four times the size of the L2 cache, used row after row.
    const std::size_t held = std::max<std::size_t>(4 * device.l2_bytes / row_bytes + 1,
                                                   2 * static_cast<std::size_t>(most_rows));
    DeviceArena memory("logits to sample from", held * row_bytes);
    const Tensor all = memory.tensor(
        DType::f32, {static_cast<std::int64_t>(held), static_cast<std::int64_t>(options.vocab)});
    Stream stream;
    Context ctx;
    ctx.cuda = &stream;
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
    Sampler sampler(stream, most_rows, options.window);
    const std::vector<std::int32_t> recent = ops::plausible_recent(options);
    for (int row = 0; row < most_rows; ++row) {
        ops::SampleParams params = options.params;
        params.seed = static_cast<std::uint64_t>(row);
        sampler.set_row(row, params, 0, recent, options.window, nullptr);
    }
    for (int rows : options.rows) {
        const int sets = static_cast<int>(held) / rows;  // as many as fit into the memory
        const auto seconds_of = [&](bool cached) {
            return seconds_per_call(stream, cached ? 32 : std::clamp(sets, 2, 256), [&](int i) {
                const std::int64_t first = cached ? 0 : std::int64_t{i % sets} * rows;
                sample(ctx, all.slice_rows(first, rows), sampler.state(),
                       sampler.kind(0, sampler.max_rows()), options.team);
            });
        };
        out.timings.push_back({rows, seconds_of(false), seconds_of(true),
                               static_cast<std::uint64_t>(rows) * row_bytes});
    }
    return out;
}

}  // namespace mr::cuda
