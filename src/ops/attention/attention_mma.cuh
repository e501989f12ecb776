// The tensor-core instructions that attention uses, for T = __half and bf16. Everything here is for
// sm_80 and up; elsewhere it compiles, and the host never launches it.
#pragma once

#include "core/cuda/kernel.cuh"

namespace mr::cuda::attn {

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

// An 8 x 8 matrix, spread over the warp as one 8 x 8 quarter of `a` above, transposed.
__device__ __forceinline__ std::uint32_t transpose(std::uint32_t x) {
    std::uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// Four 8 x 8 matrices from shared memory; lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(std::uint32_t (&m)[4], std::uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address));
}
__device__ __forceinline__ void load_transposed(std::uint32_t (&m)[4], std::uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(address));
}

// 16 bytes to shared memory without passing through registers; zeros where `on` is false, and then
// `from` is not read.
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from, bool on) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(on ? 16 : 0)
                 : "memory");
#else
    (void)to, (void)from, (void)on;
#endif
}
__device__ __forceinline__ void commit_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
}

// Reads of the cache: once, so past L1; zeros where `on` is false. Not the .nc kind: a kernel that
// was started early must see what its predecessor wrote.
template <int kWords>
__device__ __forceinline__ void load_words(std::uint32_t* to, const void* from, bool on) {
    static_assert(kWords == 1 || kWords == 2 || kWords == 4);
    if constexpr (kWords == 4) {
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %5, 0;\n"
            "mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
            "@p ld.global.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4]; }"
            : "=&r"(to[0]), "=&r"(to[1]), "=&r"(to[2]), "=&r"(to[3])
            : "l"(from), "r"(static_cast<int>(on)));
    } else if constexpr (kWords == 2) {
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %3, 0;\n"
            "mov.b32 %0, 0; mov.b32 %1, 0;\n"
            "@p ld.global.L1::no_allocate.L2::128B.v2.u32 {%0,%1}, [%2]; }"
            : "=&r"(to[0]), "=&r"(to[1])
            : "l"(from), "r"(static_cast<int>(on)));
    } else {
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %2, 0;\n"
            "mov.b32 %0, 0;\n"
            "@p ld.global.L1::no_allocate.L2::128B.u32 %0, [%1]; }"
            : "=&r"(to[0])
            : "l"(from), "r"(static_cast<int>(on)));
    }
}

}  // namespace mr::cuda::attn
