#include "observe/nvtx.h"

#if defined(MR_CUDA) && __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define MR_HAS_NVTX 1
#endif

namespace mr::observe {

#ifdef MR_HAS_NVTX
void nvtx_push(const char* name) { nvtxRangePushA(name); }
void nvtx_pop() { nvtxRangePop(); }
#else
void nvtx_push(const char*) {}
void nvtx_pop() {}
#endif

}  // namespace mr::observe
