#include "core/cuda/kernel.cuh"
#include "lab/streams/work.h"

namespace mr::streams {
namespace {

// Small blocks, so that a chunk gives all multiprocessors nearly the same share.
constexpr int kThreads = 128;

__device__ __forceinline__ float multiplied(float value, int iterations) {
#pragma unroll 4
    for (int n = 0; n < iterations; ++n) {
        value = __fmaf_rn(value, kUp, kStep);
        value = __fmaf_rn(value, kDown, -kStep);
    }
    return value;
}

__global__ void __launch_bounds__(kThreads)
    work(float* x, std::size_t count, int iterations, cuda::Stamp* stamp) {
    cuda::stamp_begin(stamp);
    const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (i < count) x[i] = multiplied(x[i], iterations);
    if (stamp) __syncthreads();  // the end of the block, not of its first warp
    cuda::stamp_end(stamp);
}

__global__ void __launch_bounds__(kThreads)
    busy(float* x, std::size_t count, int iterations, cuda::Stamp* stamp) {
    cuda::stamp_begin(stamp);
    const std::size_t i = (static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x) % count;
    const float value = multiplied(x[i], iterations);
    if (value > 1e30f) x[i] = value;  // never; without it the compiler drops the loop
    if (stamp) __syncthreads();
    cuda::stamp_end(stamp);
}

__global__ void clock_now(cuda::Stamp* stamp) { stamp->begin = stamp->end = cuda::device_clock(); }

unsigned blocks_of(std::size_t count) {
    return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace

void launch_work(const cuda::Stream& stream, float* x, std::size_t count, int iterations,
                 cuda::Stamp* stamp) {
    work<<<blocks_of(count), kThreads, 0, stream.raw()>>>(x, count, iterations, stamp);
    MR_CUDA_CALL(cudaGetLastError());
}

void launch_busy(const cuda::Stream& stream, float* x, std::size_t count, int iterations, int times,
                 cuda::Stamp* stamp) {
    const unsigned blocks = blocks_of(count) * static_cast<unsigned>(times);
    busy<<<blocks, kThreads, 0, stream.raw()>>>(x, count, iterations, stamp);
    MR_CUDA_CALL(cudaGetLastError());
}

void launch_clock(const cuda::Stream& stream, cuda::Stamp* stamp) {
    clock_now<<<1, 1, 0, stream.raw()>>>(stamp);
    MR_CUDA_CALL(cudaGetLastError());
}

}  // namespace mr::streams
