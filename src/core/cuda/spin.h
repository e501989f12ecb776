// Waits for a kernel's writes to host memory without calls to the driver.
#pragma once

#include <cstdint>
#include <thread>

#include "core/cuda/device.h"
#include "core/error.h"

namespace mr::cuda {

// Whether all launched work is finished. Throws Error (device) if the device has failed.
bool idle(const Stream& stream);

// Spins until there() is true. A failed device never writes, so the stream is polled now and then.
template <typename There>
void spin_until(const Stream& stream, There&& there) {
    constexpr std::uint64_t kSpins = 1024;  // a few microseconds: results come soon
    for (std::uint64_t spins = 1; !there(); ++spins) {
        if (spins % kSpins == 0) std::this_thread::yield();
        if (spins % (kSpins * 64) != 0 || !idle(stream)) continue;
        MR_CHECK(there(), "a launch that is over has written its result");
    }
}

}  // namespace mr::cuda
