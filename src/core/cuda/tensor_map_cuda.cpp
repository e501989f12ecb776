#include "core/cuda/tensor_map.h"

#include <cudaTypedefs.h>

#include "core/cuda/check.h"
#include "core/error.h"

namespace mr::cuda {
namespace {

// The driver's function, found at run time: the program also starts where there is no driver.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
    static const auto found = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult result{};
        MR_CUDA_CALL(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                      cudaEnableDefault, &result));
        if (result != cudaDriverEntryPointSuccess || !function) {
            throw Error::device({.problem = "the GPU's driver has no tensor maps",
                                 .remedy = "install a driver for CUDA 12 or newer"});
        }
        return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
    }();
    return found;
}

}  // namespace

CUtensorMap head_rows_map(const void* data, DType dtype, std::int64_t tokens, std::int64_t heads,
                          std::int64_t head_dim, std::int64_t stride, int rows) {
    MR_CHECK(dtype == DType::bf16 || dtype == DType::f16, "tensor maps are for f16 and bf16");
    MR_CHECK(tokens > 0 && heads > 0 && head_dim > 0, "a tensor map is not empty");
    CUtensorMap map{};
    const auto unsigned64 = [](std::int64_t x) { return static_cast<cuuint64_t>(x); };
    const cuuint64_t dims[3] = {unsigned64(head_dim), unsigned64(heads), unsigned64(tokens)};
    const cuuint64_t strides[2] = {unsigned64(2 * head_dim), unsigned64(2 * stride)};
    const cuuint32_t box[3] = {64, 1, static_cast<cuuint32_t>(rows)};
    const cuuint32_t steps[3] = {1, 1, 1};
    const CUresult status = encoder()(
        &map,
        dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        3, const_cast<void*>(data), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    MR_CHECK(status == CUDA_SUCCESS, "the driver accepts the tensor map");
    return map;
}

}  // namespace mr::cuda
