// How a kernel controls the loop that it is part of (loop.h).
#pragma once

#include <cuda_runtime.h>

#include "core/cuda/loop.h"

namespace mr::cuda {

// Sets whether the body runs again. One thread of the grid calls it. loop 0: does nothing.
__device__ __forceinline__ void loop_again(LoopGraph::Loop loop, bool again) {
    if (loop != 0) cudaGraphSetConditional(loop, again ? 1 : 0);
}

}  // namespace mr::cuda
