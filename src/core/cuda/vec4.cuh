// Four neighbouring elements at once: 16 bytes of f32, 8 of f16 or bf16, as f32 in registers.
#pragma once

#include "core/cuda/kernel.cuh"

namespace mr::cuda {

// The four elements as stored: many loads can be in flight before the first is unpacked.
template <typename T>
struct Raw4 {
    uint2 bits;
};
template <>
struct Raw4<float> {
    float4 bits;
};

// `p` is aligned to four elements.
template <typename T>
__device__ __forceinline__ Raw4<T> load_raw4(const T* p) {
    return *reinterpret_cast<const Raw4<T>*>(p);
}
template <typename T>
__device__ __forceinline__ Raw4<T> zero_raw4() {
    if constexpr (sizeof(T) == 4) {
        return {make_float4(0, 0, 0, 0)};
    } else {
        return {make_uint2(0, 0)};
    }
}

__device__ __forceinline__ void unpack4(const Raw4<float>& raw, float (&v)[4]) {
    v[0] = raw.bits.x;
    v[1] = raw.bits.y;
    v[2] = raw.bits.z;
    v[3] = raw.bits.w;
}
__device__ __forceinline__ void unpack4(const Raw4<__half>& raw, float (&v)[4]) {
    const float2 low = __half22float2(reinterpret_cast<const __half2&>(raw.bits.x));
    const float2 high = __half22float2(reinterpret_cast<const __half2&>(raw.bits.y));
    v[0] = low.x;
    v[1] = low.y;
    v[2] = high.x;
    v[3] = high.y;
}
__device__ __forceinline__ void unpack4(const Raw4<bf16>& raw, float (&v)[4]) {
    v[0] = __uint_as_float(raw.bits.x << 16);
    v[1] = __uint_as_float(raw.bits.x & 0xffff0000u);
    v[2] = __uint_as_float(raw.bits.y << 16);
    v[3] = __uint_as_float(raw.bits.y & 0xffff0000u);
}

template <typename T>
__device__ __forceinline__ void load4(const T* p, float (&v)[4]) {
    unpack4(load_raw4(p), v);
}
// For data that is read-only while the kernel runs: weights.
__device__ __forceinline__ void load4_weight(const float* p, float (&v)[4]) {
    unpack4(Raw4<float>{__ldg(reinterpret_cast<const float4*>(p))}, v);
}

__device__ __forceinline__ Raw4<float> pack4(const float (&v)[4], float) {
    return {make_float4(v[0], v[1], v[2], v[3])};
}
__device__ __forceinline__ Raw4<__half> pack4(const float (&v)[4], __half) {
    const __half2 low = __floats2half2_rn(v[0], v[1]), high = __floats2half2_rn(v[2], v[3]);
    return {make_uint2(reinterpret_cast<const unsigned&>(low),
                       reinterpret_cast<const unsigned&>(high))};
}
__device__ __forceinline__ Raw4<bf16> pack4(const float (&v)[4], bf16) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(v[0], v[1]);
    const __nv_bfloat162 high = __floats2bfloat162_rn(v[2], v[3]);
    return {make_uint2(reinterpret_cast<const unsigned&>(low),
                       reinterpret_cast<const unsigned&>(high))};
}
template <typename T>
__device__ __forceinline__ void store4(T* p, const float (&v)[4]) {
    *reinterpret_cast<Raw4<T>*>(p) = pack4(v, T{});
}

// Whether `data` may be read and written four elements at a time, in rows of `cols`.
inline bool in_fours(const void* data, std::int64_t cols) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && cols % 4 == 0;
}

}  // namespace mr::cuda
