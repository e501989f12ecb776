// Replaces device.cu in a build without CUDA: there is no device, and why_no_device() says why.
#include "core/cuda/device.h"

#include "core/error.h"

namespace mr::cuda {

DeviceInfo require_device() {
    if (std::optional<DeviceInfo> info = device()) return *info;
    throw Error::device({.field = "--device", .value = "cuda", .problem = why_no_device()});
}

#ifndef MR_CUDA
bool built() { return false; }
std::optional<DeviceInfo> device() { return std::nullopt; }
std::string why_no_device() {
    return "this build has no CUDA engine; install the CUDA toolkit (nvcc 12.5 or later) and build "
           "again, or use --device cpu";
}
std::string passed_over() { return ""; }
#endif

}  // namespace mr::cuda
