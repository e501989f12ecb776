// Time of drawing a token, compared with one read of the logits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "ops/sample/sample.h"

namespace mr::ops {

struct SampleMeasureOptions {
    std::int64_t vocab = 151936;
    std::vector<int> rows{1, 4, 16, 32, 64};  // one measurement each
    SampleParams params{
        .temperature = 0.8f, .top_k = 50, .top_p = 0.9f, .min_p = 0, .repeat_penalty = 1};
    int window = 64;  // recent tokens, if there is a penalty: as many as it counts
    int team = 0;     // blocks per row on the GPU; 0: the best
};

struct SampleTiming {
    int rows = 0;
    double seconds = 0;         // of all rows, logits not cached
    double cached_seconds = 0;  // with the same logits every time: as after the step that made them
    std::uint64_t bytes = 0;    // of the logits, each read once
};

struct SampleMeasurement {
    std::string device;
    std::vector<SampleTiming> timings;
};

SampleMeasurement measure_sample(ThreadPool& pool, const SampleMeasureOptions& options);

// Logits roughly like a model's: normal, with a few high values.
std::vector<float> plausible_logits(std::int64_t vocab, std::uint32_t seed);
// As many tokens as the penalty counts, some repeated.
std::vector<std::int32_t> plausible_recent(const SampleMeasureOptions& options);

}  // namespace mr::ops

namespace mr::cuda {

// On the GPU, with launches replayed from a graph. Throws Error (device) if there is none.
ops::SampleMeasurement measure_sample(const ops::SampleMeasureOptions& options);

}  // namespace mr::cuda
