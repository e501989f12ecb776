// Clusters (sm_90): blocks that run side by side, meet at a barrier and reach each other's shared
// memory. Block i of a cluster is blockIdx.x % size.
#pragma once

#include <cuda_runtime.h>

#include "core/cuda/kernel.cuh"

namespace mr::cuda {

// A barrier of all threads of all blocks of the cluster: writes before it are visible to all after
// it. Older devices have clusters of one block only.
__device__ __forceinline__ void cluster_barrier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#else
    __syncthreads();
#endif
}

// `address` in this block's shared memory -> the same place in that of block `rank`.
__device__ __forceinline__ unsigned cluster_address(unsigned address, int rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
#else
    (void)rank;
    return address;
#endif
}
__device__ __forceinline__ void cluster_store(unsigned to, float v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
#else
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
#endif
}

// How many clusters of `size` blocks the device runs at once.
template <typename... Params>
int most_clusters(void (*kernel)(Params...), unsigned size, int threads, std::size_t shared) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(size);
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = shared;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = size;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    MR_CUDA_CALL(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
    return clusters;
}

// launch() with blocks in clusters of `size`: 1, 2, 4 or 8; whole clusters.
template <typename... Params, typename... Args>
void launch_clusters(const Context& ctx, unsigned clusters, unsigned size, dim3 block,
                     std::size_t shared, void (*kernel)(Params...), Args&&... args) {
    prepare_kernel(reinterpret_cast<const void*>(kernel));
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(clusters * size);
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = ctx.cuda->raw();
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = size;
    attributes[0].val.clusterDim.y = 1;
    attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attributes;
    config.numAttrs = ctx.dependent_launch ? 2 : 1;
    MR_CUDA_CALL(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

}  // namespace mr::cuda
