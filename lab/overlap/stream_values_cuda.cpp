// Stream memory operations and copies of many pieces, which cuda::Stream lacks.
#include <cudaTypedefs.h>

#include <atomic>
#include <string>
#include <vector>

#include "core/cuda/check.h"
#include "lab/overlap/kernels.h"

namespace mr::overlap {
namespace {

// The driver's functions, found at run time, so that the program also starts without a driver. Both
// have the same arguments.
using OnValue = PFN_cuStreamWaitValue32_v11070;
OnValue driver_function(const char* name) {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    MR_CUDA_CALL(
        cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result));
    if (result != cudaDriverEntryPointSuccess || !function) {
        throw Error::device({.field = "overlap",
                             .problem = std::string("the GPU's driver has no ") + name,
                             .remedy = "install a driver for CUDA 12.5 or newer"});
    }
    return reinterpret_cast<OnValue>(function);
}

void call(OnValue function, const char* name, const cuda::Stream& stream, std::uint32_t* word,
          std::uint32_t value, unsigned flags) {
    const CUresult status =
        function(stream.raw(), reinterpret_cast<CUdeviceptr>(word), value, flags);
    if (status == CUDA_SUCCESS) return;
    throw Error::device({.field = "CUDA",
                         .value = std::to_string(static_cast<int>(status)),
                         .problem = std::string(name) + " failed",
                         .remedy = "look the number up in cuda.h; a driver for CUDA 12.5 or newer "
                                   "has stream memory operations"});
}

// 12.8 has one more argument.
#if CUDART_VERSION >= 13000
bool copy_batch(const cuda::Stream& stream, std::span<const Copy> copies) {
    static std::atomic<bool> refused{false};
    if (refused) return false;
    std::vector<void*> to;
    std::vector<const void*> from;
    std::vector<std::size_t> bytes;
    for (const Copy& copy : copies) {
        to.push_back(copy.to);
        from.push_back(copy.from);
        bytes.push_back(copy.bytes);
    }
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    std::size_t first = 0;
    const cudaError_t status = cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), to.size(),
                                                    &attributes, &first, 1, stream.raw());
    if (status == cudaErrorNotSupported || status == cudaErrorCallRequiresNewerDriver) {
        cudaGetLastError();
        refused = true;
        return false;
    }
    MR_CUDA_CALL(status);
    return true;
}
#else
bool copy_batch(const cuda::Stream&, std::span<const Copy>) { return false; }
#endif

}  // namespace

void write_value(const cuda::Stream& stream, std::uint32_t* word, std::uint32_t value) {
    static const OnValue write = driver_function("cuStreamWriteValue32");
    call(write, "cuStreamWriteValue32", stream, word, value, CU_STREAM_WRITE_VALUE_DEFAULT);
}

void wait_value(const cuda::Stream& stream, std::uint32_t* word, std::uint32_t value) {
    static const OnValue wait = driver_function("cuStreamWaitValue32");
    call(wait, "cuStreamWaitValue32", stream, word, value, CU_STREAM_WAIT_VALUE_GEQ);
}

bool copy_on_device(const cuda::Stream& stream, std::span<const Copy> copies) {
    if (copies.empty()) return true;
    if (copy_batch(stream, copies)) return true;
    for (const Copy& copy : copies) stream.on_device(copy.to, copy.from, copy.bytes);
    return false;
}

}  // namespace mr::overlap
