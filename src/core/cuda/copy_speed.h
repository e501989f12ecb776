// The speed of copies between pinned host memory and the device. Loading is compared with it.
#pragma once

namespace mr::cuda {

struct CopySpeed {
    double to_device = 0, to_host = 0;  // bytes per second
};

// The best of several passes over one pinned buffer of 64 MiB each way, timed by the device. Throws
// Error (device) if there is no GPU.
CopySpeed measure_copy_speed();

}  // namespace mr::cuda
