// The parts of streams.h that need no GPU, and the stand-in for streams_cuda.cpp in a build without
// CUDA.
#include "lab/streams/streams.h"

#include "core/cuda/device.h"

namespace mr::streams {

const Rung& Report::best() const { return *std::ranges::min_element(rungs, {}, &Rung::seconds); }

MemoryPlan host_plan(const Options& options) {
    const std::uint64_t bytes = options.count * sizeof(float);
    MemoryPlan plan;
    plan.add("pageable input, output and expected result", 3 * bytes);
    plan.add("pinned input and output", 2 * bytes);
    return plan;
}

double seconds_a_pass(const std::vector<double>& ends, double until) {
    std::size_t passes = ends.size();
    while (passes > 1 && ends[passes - 1] > until) --passes;
    return ends[passes - 1] / static_cast<double>(passes);
}

void begin_at_zero(Timeline& timeline) {
    if (timeline.bars.empty()) return;
    const double first = std::ranges::min(timeline.bars, {}, &Bar::begin).begin;
    for (Bar& bar : timeline.bars) bar.begin -= first;
}

#ifndef MR_CUDA
Report measure(const Options&, const Progress&) {
    cuda::require_device();
    return {};
}
#endif

}  // namespace mr::streams
