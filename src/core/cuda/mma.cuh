// The tensor-core product of [16, 16] and [16, 8] for T = __half and bf16: sm_80 and up. For older
// devices the code compiles and is never launched.
#pragma once

#include <type_traits>

#include "core/cuda/kernel.cuh"

namespace mr::cuda {

// c[16, 8] += a[16, 16] b[16, 8]. Lane l = 4 g + c holds
//   a0 (g, 2c..2c+1)  a1 (g + 8, 2c..)  a2 (g, 2c + 8..)  a3 (g + 8, 2c + 8..)
//   b0 (2c..2c+1, g)  b1 (2c + 8.., g)
//   c0, c1 (g, 2c), (g, 2c + 1)         c2, c3 (g + 8, 2c), (g + 8, 2c + 1)
template <typename T>
__device__ __forceinline__ void mma(float (&c)[4], std::uint32_t a0, std::uint32_t a1,
                                    std::uint32_t a2, std::uint32_t a3, std::uint32_t b0,
                                    std::uint32_t b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (sizeof(T) == 2 && std::is_same_v<T, bf16>) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
#else
    (void)c, (void)a0, (void)a1, (void)a2, (void)a3, (void)b0, (void)b1;
#endif
}

template <typename T>
__device__ __forceinline__ void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
    mma<T>(c, a[0], a[1], a[2], a[3], b0, b1);
}

// Two values in one register, x in the low half.
template <typename T>
__device__ __forceinline__ std::uint32_t pack(float x, float y) {
    std::uint32_t bits;
    if constexpr (std::is_same_v<T, bf16>) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
        memcpy(&bits, &pair, 4);
    } else {
        const __half2 pair = __floats2half2_rn(x, y);
        memcpy(&bits, &pair, 4);
    }
    return bits;
}
template <typename T>
__device__ __forceinline__ float2 unpack(std::uint32_t bits) {
    if constexpr (std::is_same_v<T, bf16>) {
        return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
    } else {
        __half2 pair;
        memcpy(&pair, &bits, 4);
        return __half22float2(pair);
    }
}

}  // namespace mr::cuda
