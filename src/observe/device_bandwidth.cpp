#include "observe/device_bandwidth.h"

#include "core/cuda/device.h"

namespace mr::observe {

const Ceilings& device_ceilings() {
    static const Ceilings measured = measure_device();
    return measured;
}

#ifndef MR_CUDA
Ceilings measure_device(std::size_t) {
    cuda::require_device();  // which throws: a build without CUDA has no device
    return {};
}
#endif

}  // namespace mr::observe
