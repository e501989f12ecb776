// What a kernel says to the loop that it is part of (loop.h).
#pragma once

#include <cuda_runtime.h>

#include "core/cuda/loop.h"

namespace mr::cuda {

// Whether the body runs again. One thread of the grid calls it; 0: there is no loop.
__device__ __forceinline__ void loop_again([[maybe_unused]] LoopGraph::Loop loop,
                                           [[maybe_unused]] bool again) {
#if CUDART_VERSION >= 12040
    if (loop != 0) cudaGraphSetConditional(loop, again ? 1 : 0);
#endif
}

}  // namespace mr::cuda
