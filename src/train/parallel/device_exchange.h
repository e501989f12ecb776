// Sums the gradients of ranks on GPUs while the backward pass continues, with its own thread and
// stream, over a comm::DeviceLink. After the work that passes have launched so far, the shares
// go to the ranks that own them, a kernel adds them up in the tree over ranks, and the sums go
// back.
#pragma once

#include <cstdint>
#include <memory>

#include "core/comm/comm.h"
#include "train/parallel/timed_exchange.h"

namespace mr::train {

struct DeviceExchangeOptions {
    std::int64_t bucket = std::int64_t{25} << 20;  // bytes sent together
    // Use NCCL's own sum, in bf16: half the bytes, and bits that depend on the number of ranks.
    bool fast = false;
    int channel = 1;  // of `comm`, for the thread
};

// Throws Error (device), and Error (usage) if `fast` has no NCCL. All ranks of `comm`, which must
// outlive it, call this.
std::unique_ptr<TimedExchange> make_device_exchange(comm::Comm& comm,
                                                    const DeviceExchangeOptions& options);

}  // namespace mr::train
