#include "core/cuda/kernel.cuh"
#include "lab/overlap/kernels.h"

namespace mr::overlap {
namespace {

__global__ void occupy(const volatile std::uint32_t* stop, std::uint32_t number,
                       unsigned long long most, unsigned long long* held) {
    const unsigned long long begin = cuda::device_clock();
    unsigned long long took = 0;
    while (static_cast<std::int32_t>(*stop - number) < 0 && took < most) {
        __nanosleep(1000);
        took = cuda::device_clock() - begin;
    }
    atomicAdd(held, took);
}

}  // namespace

void launch_occupy(const cuda::Stream& stream, int multiprocessors, const std::uint32_t* stop,
                   std::uint32_t number, unsigned long long* held) {
    if (multiprocessors == 0) return;
    const std::size_t shared = cuda::this_gpu().shared_per_block;
    cuda::prepare_kernel(reinterpret_cast<const void*>(occupy));
    MR_CUDA_CALL(cudaFuncSetAttribute(occupy, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shared)));
    occupy<<<static_cast<unsigned>(multiprocessors), 1, shared, stream.raw()>>>(
        stop, number, static_cast<unsigned long long>(kMostOccupied * 1e9), held);
    MR_CUDA_CALL(cudaGetLastError());
}

}  // namespace mr::overlap
