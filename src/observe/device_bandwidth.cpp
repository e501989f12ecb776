#include "observe/device_bandwidth.h"

#include <fmt/format.h>

#include "core/arena.h"
#include "core/cuda/device.h"
#include "observe/bandwidth.h"

namespace mr::observe {

const Ceilings& device_ceilings() {
    static const Ceilings measured = measure_device();
    return measured;
}

Ceilings ceilings_of(bool gpu, ThreadPool& pool, double seconds) {
    if (gpu) return device_ceilings();
    return {.read = measure_read_bandwidth(pool, 0, seconds).best};
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
