// Named ranges for Nsight Systems and its kin. They cost a branch where no such tool listens, and
// nothing at all in builds without CUDA.
#pragma once

namespace mr::observe {

// Ranges of one thread nest: the last one pushed is the first to be popped.
void nvtx_push(const char* name);
void nvtx_pop();

}  // namespace mr::observe
