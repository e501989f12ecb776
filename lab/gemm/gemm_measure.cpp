// The parts of gemm_measure.h that need no GPU, and the stand-in for gemm_measure.cu in a build
// without CUDA.
#include "lab/gemm/gemm_measure.h"

#include "core/cuda/device.h"

namespace mr::cuda {

std::vector<GemmCase> llama_2_7b_products() {
    return {{"qkv", 12288, 4096, false},
            {"attention out", 4096, 4096, true},
            {"gate + up", 22016, 4096, false},
            {"down", 4096, 11008, true}};
}

#ifndef MR_CUDA
GemmReport measure_gemm(const GemmMeasureOptions&) {
    require_device();
    return {};
}
#endif

}  // namespace mr::cuda
