#include "core/cuda/copy_speed.h"

#include "core/cuda/device.h"

namespace mr::cuda {

#ifndef MR_CUDA
CopySpeed measure_copy_speed() {
    require_device();  // throws with the reason
    return {};
}
#endif

}  // namespace mr::cuda
