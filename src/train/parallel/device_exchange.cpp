// Stand-ins for a build without CUDA.
#include "train/parallel/device_exchange.h"

#include "core/cuda/device.h"
#include "train/parallel/timed_link.h"

#ifndef MR_CUDA

namespace mr::train {

std::unique_ptr<TimedExchange> make_device_exchange(comm::Comm&, const DeviceExchangeOptions&) {
    throw Error::device({.field = "--device", .value = "cuda", .problem = cuda::why_no_device()});
}
std::unique_ptr<TimedLink> make_device_stage_link(comm::Comm&, const std::vector<int>&, int) {
    throw Error::device({.field = "--device", .value = "cuda", .problem = cuda::why_no_device()});
}

}  // namespace mr::train

#endif
