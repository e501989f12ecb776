// The register layout of q, keys and values in a decode team. A team is four warps, and a warp has
// 16 keys of a step of 64, for up to eight rows of q.
//
// Eight rows are the N of m16n8k16, so everything is transposed:
//   scoresᵀ [16 keys, 8 rows] = K [16 keys, head_dim] · Qᵀ        (A = keys, as stored in memory)
//   outᵀ    [head_dim, 8 rows] = Vᵀ [head_dim, 16 keys] · weightsᵀ
// The order of head_dim inside a product is free as long as both operands agree, and so is the
// order of the keys. Both are chosen such that a lane loads exactly the 16 bytes of a key, or of a
// value, that it needs.
#pragma once

#include "core/cuda/copy.cuh"
#include "ops/attention/paged/common.cuh"

namespace mr::cuda::attn {

constexpr int kDecodeWarps = kDecodeThreads / 32;
constexpr int kWarpKeys = kStepKeys / kDecodeWarps;  // 16: the K of the second product
static_assert(kWarpKeys == 16);

// The source of a lane's row: global memory, or shared memory that its team has filled.
struct FromMemory {
    template <int kWords>
    static __device__ __forceinline__ void words(std::uint32_t* to, const void* from, bool on) {
        load_words<kWords>(to, from, on);
    }
};
struct FromShared {
    template <int kWords>
    static __device__ __forceinline__ void words(std::uint32_t* to, const void* from, bool on) {
        if (!on) {
#pragma unroll
            for (int i = 0; i < kWords; ++i) to[i] = 0;
        } else {
            using Vector = std::conditional_t<kWords == 4, uint4,
                                              std::conditional_t<kWords == 2, uint2, uint1>>;
            const Vector v = *static_cast<const Vector*>(from);
            memcpy(to, &v, sizeof v);
        }
    }
};

// Row m of the first product's A is key 4 (m / 2 % 4) + 2 (m / 8) + m % 2 of the warp's, so that
// the keys whose weights a lane gets, 2 c, 2 c + 1, 2 c + 8 and 2 c + 9, are neighbours. A lane
// loads keys key_of_row(g) and the one two further (words k[0], k[1]), and values 4 c ... 4 c + 3.
__device__ __forceinline__ int key_of_row(int g) { return 4 * (g / 2) + g % 2; }

// Loads 16 bytes of shared memory that the warp's copies have filled.
__device__ __forceinline__ void load16(std::uint32_t* to, unsigned from) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

// The part of one row along head_dim that lane 4 g + c holds for the first product: 16 bytes from
// every 32 elements (two k16 steps), 8 bytes from a last 16. Words 2 i and 2 i + 1 belong to k16
// step i.
template <typename T, int D, typename From = FromMemory>
__device__ __forceinline__ void load_row(std::uint32_t (&words)[D / 8], const T* row, int c,
                                         bool on) {
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
        From::template words<4>(words + 4 * i, row + 32 * i + 8 * c, on);
    }
    if constexpr (D % 32 != 0) {
        From::template words<2>(words + D / 32 * 4, row + D / 32 * 32 + 4 * c, on);
    }
}

// The part of one value that lane 4 g + c holds for the second product: word w has two neighbours
// of head_dim, beginning at value_column(w, g), which are rows g and g + 8 of m16 tile w.
template <typename T, int D, typename From = FromMemory>
__device__ __forceinline__ void load_value(std::uint32_t (&words)[D / 16], const T* row, int g,
                                           bool on) {
#pragma unroll
    for (int i = 0; i < D / 64; ++i) {
        From::template words<4>(words + 4 * i, row + 64 * i + 8 * g, on);
    }
    constexpr int kRest = D / 64 * 64;
    if constexpr (D % 64 >= 32) {
        From::template words<2>(words + kRest / 16, row + kRest + 4 * g, on);
    }
    if constexpr (D % 32 != 0) {
        From::template words<1>(words + D / 32 * 2, row + D / 32 * 32 + 2 * g, on);
    }
}
template <int D>
__device__ __forceinline__ int value_column(int w, int g) {
    const int d = 16 * w;
    if (d < D / 64 * 64) return d / 64 * 64 + 8 * g + 2 * (w % 4);
    if (d < D / 32 * 32) return d / 32 * 32 + 4 * g + 2 * (w % 2);
    return d + 2 * g;
}

}  // namespace mr::cuda::attn
