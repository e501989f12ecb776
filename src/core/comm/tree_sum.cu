#include <algorithm>

#include "core/comm/device_link.h"
#include "core/cuda/check.h"
#include "core/cuda/kernel.cuh"

namespace mr::comm {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float added(float a, float b) { return a + b; }
__device__ __forceinline__ float4 added(float4 a, float4 b) {
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// The tree over ranks [first, first + kRanks).
template <int kRanks, typename T, typename Part>
__device__ __forceinline__ T tree(const Part& part, int first) {
    if constexpr (kRanks == 1) {
        return part(first);
    } else {
        const T left = tree<kRanks / 2, T>(part, first);
        return added(left, tree<kRanks / 2, T>(part, first + kRanks / 2));
    }
}

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
        if (packed) packed[i] = sum;
    }
}

template <typename To, typename From>
__global__ void __launch_bounds__(kThreads)
    convert(To* __restrict__ to, const From* __restrict__ from, std::int64_t count) {
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
         i += step) {
        to[i] = cuda::from_f32<To>(cuda::to_f32(from[i]));
    }
}

// All multiprocessors for a short time: a product whose blocks run all at once waits for the last
// of those that are busy.
template <typename Kernel, typename... Args>
void start(const cuda::Stream& stream, Kernel kernel, std::int64_t count, Args... args) {
    if (count == 0) return;
    const std::int64_t most = 2 * cuda::this_gpu().multiprocessors;
    const std::int64_t blocks = std::min(most, (count + kThreads - 1) / kThreads);
    cuda::prepare_kernel(reinterpret_cast<const void*>(kernel));
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream.raw()>>>(args...);
    MR_CUDA_CALL(cudaGetLastError());
}

template <int kRanks>
void start_sum(const cuda::Stream& stream, float* own, const float* parts, float* packed,
               std::int64_t count, int rank, int ranks) {
    if (ranks == kRanks) {
        const auto bits =
            reinterpret_cast<std::uintptr_t>(own) | reinterpret_cast<std::uintptr_t>(parts) |
            reinterpret_cast<std::uintptr_t>(packed) | static_cast<std::uintptr_t>(count * 4);
        if (bits % 16 == 0) {
            start(stream, sum_parts<kRanks, float4>, count / 4, reinterpret_cast<float4*>(own),
                  reinterpret_cast<const float4*>(parts), reinterpret_cast<float4*>(packed),
                  count / 4, rank);
        } else {
            start(stream, sum_parts<kRanks, float>, count, own, parts, packed, count, rank);
        }
    } else if constexpr (kRanks < kMostDeviceRanks) {
        start_sum<2 * kRanks>(stream, own, parts, packed, count, rank, ranks);
    } else {
        MR_CHECK(false, "ranks on GPUs are a power of two, 64 at most");
    }
}

}  // namespace

void tree_sum(const cuda::Stream& stream, float* own, const float* parts, std::int64_t count,
              int rank, int ranks, float* packed) {
    MR_CHECK(ranks > 1, "there are other ranks");
    start_sum<2>(stream, own, parts, packed, count, rank, ranks);
}

void to_bf16(const cuda::Stream& stream, void* to, const float* from, std::int64_t count) {
    start(stream, convert<cuda::bf16, float>, count, static_cast<cuda::bf16*>(to), from, count);
}
void to_f32(const cuda::Stream& stream, float* to, const void* from, std::int64_t count) {
    start(stream, convert<float, cuda::bf16>, count, to, static_cast<const cuda::bf16*>(from),
          count);
}

}  // namespace mr::comm
