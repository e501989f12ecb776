// What every op is given besides its tensors: who works, where to write it down, and scratch.
#pragma once

#include <cstddef>
#include <span>

#include "core/ledger.h"
#include "core/thread_pool.h"

namespace mr::cuda {
class Stream;
class Timeline;
}  // namespace mr::cuda

namespace mr {

struct Context {
    ThreadPool* pool = nullptr;         // required
    Ledger* ledger = nullptr;           // may be null: nothing is recorded
    std::span<std::byte> scratch = {};  // planned by the caller; ops say how much they want

    // Set: the tensors and the scratch lie on the GPU, and the op runs there, in this order.
    cuda::Stream* cuda = nullptr;
    cuda::Timeline* timeline = nullptr;  // where kernels stamp their times; may be null
    int layer = -1;                      // which layer of the model is running, for the timeline
    bool dependent_launch = true;        // kernels may start while their predecessors end
    bool batch_products = true;          // products of 5 tokens and more read the weights once
    bool whole_device = true;            // kernels may be used whose blocks wait (DeviceTurn)
    bool resident_attention = true;      // attention's blocks stay: decode of much, prefill (9.0)
    bool many_rows_norm = true;          // norms of thousands of rows have a kernel of their own
};

}  // namespace mr
