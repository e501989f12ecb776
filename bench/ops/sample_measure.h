// How long drawing a token takes, against one read of the logits.
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
    int window = 64;  // recent tokens, where there is a penalty: as many as count
    int team = 0;     // blocks per row on the GPU; 0: what is best
};

struct SampleTiming {
    int rows = 0;
    double seconds = 0;         // of all rows, the logits in no cache
    double cached_seconds = 0;  // the same logits again and again: as after the step that made them
    std::uint64_t bytes = 0;    // of the logits, which must be read once
};

struct SampleMeasurement {
    std::string device;
    std::vector<SampleTiming> timings;
};

SampleMeasurement measure_sample(ThreadPool& pool, const SampleMeasureOptions& options);

// Logits as a model gives them, roughly: normal with a few words that stand out.
std::vector<float> plausible_logits(std::int64_t vocab, std::uint32_t seed);
// As many tokens as count, some of them more than once.
std::vector<std::int32_t> plausible_recent(const SampleMeasureOptions& options);

}  // namespace mr::ops

namespace mr::cuda {

// On the GPU, launches replayed from a graph. Throws Error (device) where there is none.
ops::SampleMeasurement measure_sample(const ops::SampleMeasureOptions& options);

}  // namespace mr::cuda
