#include "lab/sampler/sample_measure.h"

#include <algorithm>
#include <chrono>
#include <random>

#include "core/cpu.h"
#include "core/cuda/device.h"
#include "core/median.h"
#include "observe/bandwidth.h"

namespace mr::ops {
namespace {}  // namespace

std::vector<float> plausible_logits(std::int64_t vocab, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> dist(0, 2.2f);
    std::vector<float> logits(static_cast<std::size_t>(vocab));
    for (float& x : logits) x = dist(random);
    for (float lead : {9.0f, 8.5f, 8.0f, 6.0f, 5.0f, 5.0f, 4.0f}) {
        logits[random() % logits.size()] += lead;
    }
    return logits;
}

std::vector<std::int32_t> plausible_recent(const SampleMeasureOptions& options) {
    if (options.params.repeat_penalty == 1.0f) return {};
    std::mt19937 random(1);
    std::vector<std::int32_t> recent(static_cast<std::size_t>(options.window));
    for (std::size_t i = 0; i < recent.size(); ++i) {
        recent[i] =
            i % 4 == 3
                ? recent[i / 2]
                : static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(options.vocab));
    }
    return recent;
}

SampleMeasurement measure_sample(ThreadPool& pool, const SampleMeasureOptions& options) {
    SampleMeasurement out;
    out.device = cpu_info().model;
    std::vector<std::byte> scratch(sample_scratch_bytes(options.vocab));
    Context ctx;
    ctx.pool = &pool;
    ctx.scratch = scratch;
    const double row_bytes = static_cast<double>(options.vocab) * sizeof(float);
    // Enough rows that the next one is in no cache.
    const auto most = static_cast<std::size_t>(std::clamp(
        2.0 * static_cast<double>(observe::last_level_cache_bytes()) / row_bytes, 1.0, 4096.0));
    std::vector<std::vector<float>> logits;
    for (std::uint32_t i = 0; i < 8; ++i) logits.push_back(plausible_logits(options.vocab, i));
    while (logits.size() < most) logits.push_back(logits[logits.size() % 8]);
    std::uint64_t position = 0;
    const std::vector<std::int32_t> recent = plausible_recent(options);
    const auto draw = [&](std::vector<float>& row) {
        sample(ctx, {row.data(), DType::f32, {options.vocab}}, options.params, recent, position++);
    };
    for (int rows : options.rows) {
        const auto seconds_of = [&](bool cached) {
            std::vector<double> seconds;
            for (int repetition = 0; repetition < 5; ++repetition) {
                const auto start = std::chrono::steady_clock::now();
                for (int i = 0; i < rows; ++i) {
                    draw(logits[cached ? static_cast<std::size_t>(i) % 8
                                       : static_cast<std::size_t>(position) % logits.size()]);
                }
                seconds.push_back(
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
                        .count());
            }
            return median(seconds);
        };
        out.timings.push_back({rows, seconds_of(false), seconds_of(true),
                               static_cast<std::uint64_t>(rows * row_bytes)});
    }
    return out;
}

}  // namespace mr::ops

namespace mr::cuda {

#ifndef MR_CUDA
ops::SampleMeasurement measure_sample(const ops::SampleMeasureOptions&) {
    require_device();
    return {};
}
#endif

}  // namespace mr::cuda
