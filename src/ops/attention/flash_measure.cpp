// What a build without CUDA has in place of flash_measure.cu.
#ifndef MR_CUDA
#include "ops/attention/flash_measure.h"

#include "core/cuda/device.h"

namespace mr::cuda {

FlashMeasured measure_flash(const FlashShape&, bool, bool, const std::function<void()>&) {
    require_device();  // throws: there is none
    return {};
}

FlashMeasured measure_unfused(const FlashShape&, bool) {
    require_device();
    return {};
}

}  // namespace mr::cuda
#endif
