// Exclusive permission to run kernels that need the whole device.
#pragma once

#include <atomic>

namespace mr::cuda {

// The blocks of some kernels wait for one another, so all must be on the device at once. Two such
// kernels of one process in two streams could each occupy half of the device and wait forever. The
// holder of the turn may run them; the destructor gives the turn back. Streams without the turn run
// kernels whose blocks do not wait (Context::whole_device), which give the same bits.
class DeviceTurn {
  public:
    DeviceTurn() = default;
    ~DeviceTurn() {
        if (taken_) held = false;
    }
    DeviceTurn(const DeviceTurn&) = delete;
    DeviceTurn& operator=(const DeviceTurn&) = delete;
    // False: it is taken.
    bool take() {
        if (!taken_) taken_ = !held.exchange(true);
        return taken_;
    }

  private:
    inline static std::atomic<bool> held{false};
    bool taken_ = false;
};

}  // namespace mr::cuda
