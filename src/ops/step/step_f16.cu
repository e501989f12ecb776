#include "ops/step/step_kernel.cuh"

namespace mr::cuda::step {

template void start<HalfRing<__half>, __half>(const Context&, const Start&, const Args&);

}  // namespace mr::cuda::step
