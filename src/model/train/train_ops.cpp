#include "model/train/train_ops.h"

#include <fmt/format.h>

#include "core/cuda/device.h"
#include "core/error.h"
#include "ops/attention/flash/flash_cuda.h"

namespace mr::model {

void require_trainable_heads(const ModelSpec& spec, bool cuda) {
    const std::int64_t most = cuda ? cuda::kFlashBackwardMaxDim : ops::kFlashMaxDim;
    if (spec.head_dim % 8 == 0 && spec.head_dim <= most) return;
    const bool on_cpu = cuda && spec.head_dim % 8 == 0 && spec.head_dim <= ops::kFlashMaxDim;
    throw Error::usage(
        {.field = "head size",
         .value = fmt::format("{}", spec.head_dim),
         .problem = fmt::format("to train{} it must be a multiple of 8 up to {}",
                                cuda ? " on a GPU" : "", most),
         .remedy = fmt::format("{}take a model with other heads (--dim and --heads, or --head-dim)",
                               on_cpu ? "use --device cpu, or " : "")});
}

// Stand-in for train_ops_cuda.cpp in a build without CUDA.
#ifndef MR_CUDA
std::unique_ptr<TrainOps> make_cuda_train_ops(int) {
    cuda::require_device();  // its error says why
    throw Error::device({.field = "--device", .value = "cuda", .problem = cuda::why_no_device()});
}
#endif

}  // namespace mr::model
