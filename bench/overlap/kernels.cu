#include <algorithm>

#include "bench/overlap/kernels.h"
#include "core/cuda/kernel.cuh"

namespace mr::overlap {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float added(float a, float b) { return a + b; }
__device__ __forceinline__ float4 added(float4 a, float4 b) {
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// The tree over ranks [first, first + kRanks), as comm::tree_sum() adds them.
template <int kRanks, typename T, typename Part>
__device__ __forceinline__ T tree(const Part& part, int first) {
    if constexpr (kRanks == 1) {
        return part(first);
    } else {
        const T left = tree<kRanks / 2, T>(part, first);
        return added(left, tree<kRanks / 2, T>(part, first + kRanks / 2));
    }
}

// own [count], parts [kRanks - 1, count], packed [count].
template <int kRanks, typename T>
__global__ void __launch_bounds__(kThreads)
    sum_parts(T* own, const T* __restrict__ parts, T* __restrict__ packed, std::int64_t count,
              int rank) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
         i += step) {
        const auto part = [&](int r) {
            return r == rank ? own[i] : parts[(r < rank ? r : r - 1) * count + i];
        };
        const T sum = tree<kRanks, T>(part, 0);
        own[i] = sum;
        packed[i] = sum;
    }
}

template <int kRanks, typename T>
void launch_sum_of(const cuda::Stream& stream, const Sum& sum, int rank) {
    const std::int64_t count = sum.count / static_cast<std::int64_t>(sizeof(T) / sizeof(float));
    // All multiprocessors for a short time: a product whose blocks run all at once waits for the
    // last of those that are busy.
    const std::int64_t most = 2 * cuda::this_gpu().multiprocessors;
    const std::int64_t blocks = std::min(most, (count + kThreads - 1) / kThreads);
    const auto kernel = sum_parts<kRanks, T>;
    cuda::prepare_kernel(reinterpret_cast<const void*>(kernel));
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream.raw()>>>(
        reinterpret_cast<T*>(sum.own), reinterpret_cast<const T*>(sum.parts),
        reinterpret_cast<T*>(sum.packed), count, rank);
    MR_CUDA_CALL(cudaGetLastError());
}

bool in_fours(const Sum& sum) {
    const auto aligned = [](const float* p) {
        return reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
    };
    return sum.count % 4 == 0 && aligned(sum.own) && aligned(sum.parts) && aligned(sum.packed);
}

template <int kRanks>
void launch_sum_over(const cuda::Stream& stream, const Sum& sum, int rank, int ranks) {
    if (ranks == kRanks) {
        if (in_fours(sum)) {
            launch_sum_of<kRanks, float4>(stream, sum, rank);
        } else {
            launch_sum_of<kRanks, float>(stream, sum, rank);
        }
    } else if constexpr (kRanks < kMostRanks) {
        launch_sum_over<2 * kRanks>(stream, sum, rank, ranks);
    } else {
        MR_CHECK(false, "the number of ranks is a power of two, 64 at most");
    }
}

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

void launch_sum(const cuda::Stream& stream, const Sum& sum, int rank, int ranks) {
    if (sum.count > 0) launch_sum_over<2>(stream, sum, rank, ranks);
}

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
