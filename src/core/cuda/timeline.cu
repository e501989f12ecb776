#include <algorithm>

#include "core/cuda/check.h"
#include "core/cuda/timeline.h"
#include "core/error.h"

namespace mr::cuda {
namespace {

__global__ void clear_stamps(Stamp* stamps, std::size_t count) {
    const std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
    if (i < count) stamps[i] = {~0ull, 0ull};
}

}  // namespace

Timeline::Timeline(std::size_t most_stages)
    : memory_("timeline", most_stages * sizeof(Stamp)), most_(most_stages) {
    stamps_ = memory_.array<Stamp>(most_stages);
    stages_.reserve(most_stages);
}

Stamp* Timeline::add(OpKind kind, const char* name, int layer, const OpRecord& work) {
    MR_CHECK(stages_.size() < most_, "the timeline was made for that many stages");
    stages_.push_back({kind, name, layer, work});
    return stamps_ + stages_.size() - 1;
}

void Timeline::reset(const Stream& stream) {
    const auto blocks = static_cast<unsigned>((most_ + 255) / 256);
    clear_stamps<<<blocks, 256, 0, stream.raw()>>>(stamps_, most_);
    MR_CUDA_CALL(cudaGetLastError());
}

std::vector<Stage> Timeline::read(const Stream& stream) const {
    std::vector<Stamp> stamps(stages_.size());
    stream.to_host(stamps.data(), stamps_, stamps.size() * sizeof(Stamp), nullptr);
    stream.synchronize();
    std::vector<Stage> out = stages_;
    unsigned long long first = ~0ull;
    for (const Stamp& stamp : stamps) first = std::min(first, stamp.begin);
    for (std::size_t i = 0; i < out.size(); ++i) {
        if (stamps[i].end < stamps[i].begin) continue;  // it did not run
        out[i].begin = static_cast<double>(stamps[i].begin - first) * 1e-9;
        out[i].work.seconds = static_cast<double>(stamps[i].end - stamps[i].begin) * 1e-9;
    }
    return out;
}

}  // namespace mr::cuda
