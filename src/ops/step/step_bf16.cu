#include "ops/step/step_kernel.cuh"

namespace mr::cuda::step {

template void start<HalfRing<bf16>, bf16>(const Context&, const Start&, const Args&);

}  // namespace mr::cuda::step
