// Asynchronous copies from global to shared memory (cp.async, sm_80 and up), and loads past L1 for
// data that is read once.
#pragma once

#include "core/cuda/kernel.cuh"

namespace mr::cuda {

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Copies 16 bytes from global to shared memory; they have arrived after commit_copies() and
// wait_for_copies(). If !on, it writes zeros and does not read `from`. Before sm_80 the copy is
// synchronous.
__device__ __forceinline__ void copy16(unsigned to, const void* from, bool on = true) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(on ? 16 : 0)
                 : "memory");
#else
    const uint4 v = on ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
#endif
}
__device__ __forceinline__ void zero16(unsigned to) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
}
// Ends a group of this thread's copies.
__device__ __forceinline__ void commit_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until all of this thread's groups but the last kPending are complete.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
}

// Loads data that is read once, past L1; zeros where `on` is false. Not ld.global.nc: a kernel that
// was started early must see the writes of its predecessor.
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

}  // namespace mr::cuda
