// Waiting for what a kernel writes to host memory, without a call to the driver.
#pragma once

#include <cstdint>
#include <thread>

#include "core/cuda/device.h"
#include "core/error.h"

namespace mr::cuda {

// Whether all that was launched is over. Throws Error (device) where the device has failed.
bool idle(const Stream& stream);

// Until there() is true. A device that has failed never writes: now and then the stream is asked.
template <typename There>
void spin_until(const Stream& stream, There&& there) {
    constexpr std::uint64_t kSpins = 1024;  // some microseconds: a result is never far
    for (std::uint64_t spins = 1; !there(); ++spins) {
        if (spins % kSpins == 0) std::this_thread::yield();
        if (spins % (kSpins * 64) != 0 || !idle(stream)) continue;
        MR_CHECK(there(), "a launch that is over has written its result");
    }
}

}  // namespace mr::cuda
