// Values for measurements: constant ones would draw less power than real ones.
#pragma once

#include "core/cuda/kernel.cuh"
#include "core/tensor.h"

namespace mr::cuda {

// In [0, 1).
__device__ __forceinline__ float some_number(std::uint32_t i) {
    auto x = i * 2654435761u;
    x = (x ^ (x >> 15)) * 2246822519u;
    return static_cast<float>((x ^ (x >> 13)) >> 8) * 0x1p-24f;
}
struct BetweenOnes {
    static __device__ float value(std::uint32_t i) { return 2 * some_number(i) - 1; }
};
// Normal values, like PyTorch's randn(), which other engines are measured with. The values
// determine the power that a product draws, and so its speed.
struct Normal {
    static __device__ float value(std::uint32_t i) {
        const float u = 1 - some_number(i), angle = some_number(i ^ 0x9e3779b9u);
        return sqrtf(-2 * logf(u)) * cospif(2 * angle);
    }
};

template <typename Values, typename T>
__global__ void fill_kernel(T* to, std::int64_t count, std::uint32_t seed) {
    wait_for_previous();
    const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
    for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
         i += step) {
        to[i] = from_f32<T>(Values::value(static_cast<std::uint32_t>(i) + seed));
    }
}

// The values depend on the tensor's address, so that two tensors differ.
template <typename Values>
void fill_with(const Context& ctx, Tensor t) {
    with_float_type(t.dtype, [&](auto type) {
        using T = decltype(type);
        launch(ctx, 1024, 256, 0, fill_kernel<Values, T>, static_cast<T*>(t.data), t.shape.count(),
               static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(t.data) >> 8));
    });
}

}  // namespace mr::cuda
