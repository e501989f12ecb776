// What a build without CUDA has in place of train_ops_cuda.cpp.
#include "model/train_ops.h"

#include "core/cuda/device.h"
#include "core/error.h"

namespace mr::model {

#ifndef MR_CUDA
std::unique_ptr<TrainOps> make_cuda_train_ops(int) {
    cuda::require_device();  // says why there is none
    throw Error::device({.field = "--device", .value = "cuda", .problem = cuda::why_no_device()});
}
#endif

}  // namespace mr::model
