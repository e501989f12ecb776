// Every op gets a Context besides its tensors: threads or stream, ledger, and scratch.
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

    // If set, the tensors and the scratch lie on the GPU, and the op runs there on this stream.
    cuda::Stream* cuda = nullptr;
    cuda::Timeline* timeline = nullptr;  // where kernels stamp their times; may be null
    int layer = -1;                      // which layer of the model is running, for the timeline
    bool dependent_launch = true;        // kernels may start while their predecessors end
    bool batch_products = true;          // products of 5 or more tokens read the weights once
    bool whole_device = true;            // kernels with waiting blocks are allowed (DeviceTurn)
    bool resident_attention = true;      // resident blocks for long decode and for prefill (sm_90)
    bool many_rows_norm = true;          // norms of thousands of rows have a kernel of their own
};

}  // namespace mr
