// Eight neighbouring bf16, 16 bytes, as f32 in registers.
#pragma once

#include "core/cuda/kernel.cuh"

namespace mr::cuda {

__device__ __forceinline__ void unpack8(const uint4& raw, float (&v)[8]) {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        v[2 * i] = __uint_as_float(words[i] << 16);
        v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}
__device__ __forceinline__ uint4 pack8(const float (&v)[8]) {
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
        memcpy(&words[i], &pair, 4);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// kWidth neighbouring elements: 8 at a 16-byte aligned address, or 1 at any address.
template <int kWidth>
__device__ __forceinline__ void load_wide(const bf16* p, float (&v)[kWidth]) {
    if constexpr (kWidth == 8) {
        unpack8(*reinterpret_cast<const uint4*>(p), v);
    } else {
        static_assert(kWidth == 1);
        v[0] = to_f32(*p);
    }
}
template <int kWidth>
__device__ __forceinline__ void store_wide(bf16* p, const float (&v)[kWidth]) {
    if constexpr (kWidth == 8) {
        *reinterpret_cast<uint4*>(p) = pack8(v);
    } else {
        static_assert(kWidth == 1);
        *p = from_f32<bf16>(v[0]);
    }
}

// Whether `data` may be read and written eight bf16 at a time, in rows of `cols`.
inline bool in_eights(const void* data, std::int64_t cols) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && cols % 8 == 0;
}

}  // namespace mr::cuda
