#include "observe/device_bandwidth.h"

#include <fmt/format.h>

#include "core/arena.h"
#include "core/cuda/device.h"
#include "observe/bandwidth.h"
#include "observe/compute_peak.h"

namespace mr::observe {

const Ceilings& device_ceilings() {
    static const Ceilings measured = measure_device();
    return measured;
}

Ceilings ceilings_of(bool gpu, ThreadPool& pool, double seconds, bool compute, bool quick) {
    if (gpu) return device_ceilings();
    Ceilings ceilings{.read = quick ? measure_read_bandwidth(pool, 0, seconds, kQuickLookBytes).best
                                    : measure_read_bandwidth(pool, 0, seconds).best};
    if (!compute) return ceilings;
    const ComputePeak peak = compute_peak(pool);
    ceilings.f32 = peak.f32;
    ceilings.int8 = peak.int8;
    ceilings.bf16 = peak.bf16;
    return ceilings;
}

RunPlace place_of(bool gpu) {
    RunPlace place;
    place.cache_bytes = gpu ? cuda::require_device().l2_bytes : last_level_cache_bytes();
    if (gpu) {
        place.reader = "this GPU";
        place.cache = fmt::format("the {} of the GPU's L2", format_bytes(place.cache_bytes));
    }
    return place;
}

std::string device_name(bool gpu) { return gpu ? cuda::require_device().name : "cpu"; }

#ifndef MR_CUDA
Ceilings measure_device(std::size_t) {
    cuda::require_device();  // throws: a build without CUDA has no device
    return {};
}
#endif

}  // namespace mr::observe
