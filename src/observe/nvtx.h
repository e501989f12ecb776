// Named ranges for Nsight Systems and similar tools. They cost a branch if no tool listens, and
// nothing in builds without CUDA.
#pragma once

namespace mr::observe {

// Ranges of one thread nest: the last one pushed is the first to be popped.
void nvtx_push(const char* name);
void nvtx_pop();

}  // namespace mr::observe
