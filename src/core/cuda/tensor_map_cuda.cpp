#include "core/cuda/tensor_map.h"

#include <cudaTypedefs.h>

#include "core/cuda/check.h"
#include "core/error.h"

namespace mr::cuda {
namespace {

// The driver's function, looked up at run time: the program must also start without a driver.
PFN_cuTensorMapEncodeTiled_v12000 encoder() {
    static const auto found = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult result{};
        MR_CUDA_CALL(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                      cudaEnableDefault, &result));
        if (result != cudaDriverEntryPointSuccess || !function) {
            throw Error::device({.problem = "the GPU's driver has no tensor maps",
                                 .remedy = "install a driver for CUDA 12.5 or newer"});
        }
        return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
    }();
    return found;
}

// Three dimensions, the fastest first; strides in elements.
CUtensorMap map_of(const void* data, DType dtype, const std::int64_t (&sizes)[3],
                   const std::int64_t (&steps)[2], int box_second, int box_third) {
    MR_CHECK(dtype == DType::bf16 || dtype == DType::f16, "tensor maps are for f16 and bf16");
    MR_CHECK(sizes[0] > 0 && sizes[1] > 0 && sizes[2] > 0, "a tensor map is not empty");
    CUtensorMap map{};
    const auto unsigned64 = [](std::int64_t x) { return static_cast<cuuint64_t>(x); };
    const cuuint64_t dims[3] = {unsigned64(sizes[0]), unsigned64(sizes[1]), unsigned64(sizes[2])};
    const cuuint64_t strides[2] = {unsigned64(2 * steps[0]), unsigned64(2 * steps[1])};
    const cuuint32_t box[3] = {64, static_cast<cuuint32_t>(box_second),
                               static_cast<cuuint32_t>(box_third)};
    const cuuint32_t ones[3] = {1, 1, 1};
    const CUresult status = encoder()(
        &map,
        dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        3, const_cast<void*>(data), dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    MR_CHECK(status == CUDA_SUCCESS, "the driver accepts the tensor map");
    return map;
}

}  // namespace

CUtensorMap head_rows_map(const void* data, DType dtype, std::int64_t tokens, std::int64_t heads,
                          std::int64_t head_dim, std::int64_t stride, int rows) {
    return map_of(data, dtype, {head_dim, heads, tokens}, {head_dim, stride}, 1, rows);
}

CUtensorMap plane_rows_map(const void* data, DType dtype, std::int64_t planes, std::int64_t rows,
                           std::int64_t cols, int box_planes, int box_rows) {
    return map_of(data, dtype, {cols, rows, planes}, {cols, cols * rows}, box_rows, box_planes);
}

}  // namespace mr::cuda
