// Values for measurements.
#pragma once

#include "core/cuda/kernel.cuh"
#include "core/tensor.h"

namespace mr::cuda {

// Between -1 and 1: constant ones would draw less power than real ones.
template <typename T>
__global__ void fill_between_ones_kernel(T* to, std::int64_t count, std::uint32_t seed) {
    wait_for_previous();
    const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
    for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
         i += step) {
        auto x = (static_cast<std::uint32_t>(i) + seed) * 2654435761u;
        x = (x ^ (x >> 15)) * 2246822519u;
        to[i] = from_f32<T>(static_cast<float>(x ^ (x >> 13)) * 0x1p-31f - 1);
    }
}

// The values depend on where the tensor lies, so that two of them differ.
inline void fill_between_ones(const Context& ctx, Tensor t) {
    with_float_type(t.dtype, [&](auto type) {
        using T = decltype(type);
        launch(ctx, 1024, 256, 0, fill_between_ones_kernel<T>, static_cast<T*>(t.data),
               t.shape.count(),
               static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(t.data) >> 8));
    });
}

}  // namespace mr::cuda
