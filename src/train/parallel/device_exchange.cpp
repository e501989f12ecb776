// Without CUDA there is none.
#include "train/parallel/device_exchange.h"

#include "core/cuda/device.h"

#ifndef MR_CUDA

namespace mr::train {

std::unique_ptr<TimedExchange> make_device_exchange(comm::Comm&, const DeviceExchangeOptions&) {
    throw Error::device({.field = "--device", .value = "cuda", .problem = cuda::why_no_device()});
}

}  // namespace mr::train

#endif
