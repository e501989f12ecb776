#include "core/cuda/device.h"
#include "core/error.h"
#include "model/train_ops.h"

namespace mr::model {

std::unique_ptr<TrainOps> make_cuda_train_ops(int) {
    cuda::require_device();  // says why there is none
    throw Error::device({.field = "--device",
                         .value = "cuda",
                         .problem = "training computes on the CPU so far",
                         .remedy = "use --device cpu"});
}

}  // namespace mr::model
