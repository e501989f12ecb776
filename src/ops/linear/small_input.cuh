// A token's input on its way to the tensor cores: normed and rounded to the compute type, or
// quantised to 8 bits, and laid where the warps will read it. Who takes these functions gets the
// same bits.
#pragma once

#include "ops/linear/small_linear.cuh"
#include "ops/linear/small_params.cuh"
#include "ops/norm/norm_row.cuh"

namespace mr::cuda::small {

// The 32 columns of a block become 8-bit numbers times a scale, as on the CPU
// (linear_kernels.cpp), bit for bit; 8 lanes hold 4 columns each. Every block of the grid does this
// for the same input, so it is made of few instructions: rounding is an addition.
__device__ __forceinline__ unsigned quantise4(const float (&v)[4], float* scale) {
    const auto magnitude = [](float x) { return __float_as_uint(x) & 0x7fffffffu; };
    unsigned top =
        max(max(magnitude(v[0]), magnitude(v[1])), max(magnitude(v[2]), magnitude(v[3])));
#if __CUDA_ARCH__ >= 800
    top = __reduce_max_sync(0xffu << (threadIdx.x & 24), top);
#endif
    const float steps = __fdiv_rn(__uint_as_float(top), 127.0f);
    float d = __uint_as_float((__float_as_uint(steps) + 2u) & ~3u);
    float inverse = __frcp_rn(d);
    if (top >= 0x71800000u) {  // 2^100 and more, infinities, NaN: the result is to be NaN
        d = __int_as_float(0x7fc00000);
        inverse = 0;
    } else if (steps < 0x1p-126f) {
        d = inverse = 0;
    }
    *scale = d;
    unsigned q[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        // The lowest byte is the number.
        q[i] = __float_as_uint(__fadd_rn(__fmul_rn(v[i], inverse), 0x1.8p23f));
    }
    if (inverse == 0) return 0;  // also where v is not a number
    return __byte_perm(__byte_perm(q[0], q[1], 0x0040), __byte_perm(q[2], q[3], 0x0040), 0x5410);
}

// Where a token's input lies in the shared memory of the kernel for few tokens.
template <typename W>
struct SharedRow {
    std::byte* row;
    float* scales;
    // Of columns c to c + 3; c is a multiple of 4.
    __device__ __forceinline__ std::byte* at(int c) const {
        if constexpr (W::kQuantised) {
            return row + c / W::kColumns * W::kColumns +
                   W::LayoutType::input_place(c % W::kColumns);
        } else {
            return row + c * 2;
        }
    }
    __device__ __forceinline__ float* scale(int c) const { return scales + c / 32; }
};

// Four columns of a token's input, from `chunk` * 4 on, to where the warps will read them. All
// lanes of a warp call it together; columns past the last whole granule go nowhere.
template <typename W, typename T, typename Row>
__device__ __forceinline__ void store_input(const Row& to, int chunk, int columns,
                                            const float (&v)[4]) {
    const int c = chunk * 4;
    if constexpr (W::kQuantised) {
        float scale;
        const unsigned word = quantise4(v, &scale);
        if (c >= columns) return;
        *reinterpret_cast<unsigned*>(to.at(c)) = word;
        if (c % 32 == 0) *to.scale(c) = __fmul_rn(scale, W::LayoutType::kUnit);
    } else {
        if (c >= columns) return;
        const T four[4] = {from_f32<T>(v[0]), from_f32<T>(v[1]), from_f32<T>(v[2]),
                           from_f32<T>(v[3])};
        *reinterpret_cast<uint2*>(to.at(c)) = *reinterpret_cast<const uint2*>(four);
    }
}

// A group of 8 warps takes a row's statistics; with two groups both do, and share the rest.
constexpr int kGroupThreads = 32 * kWarps;
constexpr int kHeld = 4;  // chunks of a row that a thread of a group holds: k up to 4096
template <typename W>
constexpr int kThreads = kGroupThreads* W::kGroups;

// The norm's weights of the chunks this thread will write, on their way before the input is there.
template <typename W>
struct HeldNorm {
    static constexpr int kMine = kHeld / W::kGroups;
    float4 weight[kMine], bias[kMine];

    static __device__ bool possible(const Params& p) {
        return p.norm_weight && p.k % 4 == 0 && p.k <= kHeld * 4 * kGroupThreads;
    }
    // The chunk that is this thread's j-th.
    static __device__ int chunk(int j) {
        const int thread = static_cast<int>(threadIdx.x);
        return thread % kGroupThreads + kGroupThreads * (thread / kGroupThreads + W::kGroups * j);
    }
    __device__ void load(const Params& p) {
#pragma unroll
        for (int j = 0; j < kMine; ++j) {
            const int c = chunk(j) * 4;
            weight[j] = bias[j] = float4{};
            if (c >= p.k) continue;
            weight[j] = *reinterpret_cast<const float4*>(p.norm_weight + c);
            if (p.norm_bias) bias[j] = *reinterpret_cast<const float4*>(p.norm_bias + c);
        }
    }
};

// A normed row, the raw values in registers.
template <typename W, typename T, typename Row>
__device__ void load_normed(const Params& p, const HeldNorm<W>& held, const float* raw,
                            const Row& to, int columns, float* shared) {
    const int k = static_cast<int>(p.k);
    const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
    const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
    float v[kHeld][4];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
        const int chunk = thread + kGroupThreads * j;
        const float4 x = chunk * 4 < k ? reinterpret_cast<const float4*>(raw)[chunk] : float4{};
        v[j][0] = x.x, v[j][1] = x.y, v[j][2] = x.z, v[j][3] = x.w;
    }
    const RowStats stats = row_stats<kGroupThreads, kHeld>(
        p.norm, v, k, p.eps, thread, shared + group * kRowShared<kGroupThreads>);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
        if (W::kGroups > 1 && j % W::kGroups != group) continue;
        if ((thread / 32 * 32 + kGroupThreads * j) * 4 >= columns) break;
        const int chunk = thread + kGroupThreads * j;
        const float4 w = held.weight[j / W::kGroups], b = held.bias[j / W::kGroups];
        const float n[4] = {normed(v[j][0], stats, w.x, b.x), normed(v[j][1], stats, w.y, b.y),
                            normed(v[j][2], stats, w.z, b.z), normed(v[j][3], stats, w.w, b.w)};
        float r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) r[i] = chunk * 4 < k ? to_f32(from_f32<T>(n[i])) : 0.0f;
        store_input<W, T>(to, chunk, columns, r);
    }
}

// A normed row that is too wide to hold, or odd.
template <typename W, typename T, typename Row>
__device__ void load_normed_wide(const Params& p, const float* raw, const Row& to, int columns,
                                 float* shared) {
    const int k = static_cast<int>(p.k);
    const int thread = static_cast<int>(threadIdx.x);
    const int group = thread / kGroupThreads;
    const RowStats stats = row_stats<kGroupThreads>(p.norm, raw, k, p.eps, thread % kGroupThreads,
                                                    shared + group * kRowShared<kGroupThreads>);
    for (int first = thread / 32 * 32; first * 4 < columns; first += kThreads<W>) {
        const int chunk = first + thread % 32;
        float r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int c = chunk * 4 + i;
            const float b = c < k && p.norm_bias ? p.norm_bias[c] : 0.0f;
            r[i] = c < k ? to_f32(from_f32<T>(normed(raw[c], stats, p.norm_weight[c], b))) : 0.0f;
        }
        store_input<W, T>(to, chunk, columns, r);
    }
}

// A row that is ready.
template <typename W, typename T, typename Row>
__device__ void load_ready(const Params& p, const T* ready, const Row& to, int columns) {
    const int k = static_cast<int>(p.k), thread = static_cast<int>(threadIdx.x);
    const bool whole = k % 4 == 0;
    constexpr int kBatch = 11;  // loads in flight
    for (int first = thread / 32 * 32; first * 4 < columns; first += kThreads<W> * kBatch) {
        uint2 four[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
            const int c = (first + thread % 32 + kThreads<W> * j) * 4;
            four[j] = uint2{};
            if (whole && c < k) four[j] = *reinterpret_cast<const uint2*>(ready + c);
        }
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
            if ((first + kThreads<W> * j) * 4 >= columns) break;
            const int chunk = first + thread % 32 + kThreads<W> * j;
            float v[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const bool odd = !whole && chunk * 4 + i < k;
                v[i] = odd ? to_f32(ready[chunk * 4 + i])
                           : to_f32(reinterpret_cast<const T*>(&four[j])[i]);
            }
            store_input<W, T>(to, chunk, columns, v);
        }
    }
}

// Token `row` of p.x, normed and rounded to T or quantised, with zeros up to a whole granule. Loads
// are issued in batches: the latency of one is what all of them take. The whole block calls it;
// `shared` is the norm's, kRowShared<kGroupThreads> floats a group.
template <typename W, typename T, typename Row>
__device__ __forceinline__ void load_row(const Params& p, const HeldNorm<W>& held, int row,
                                         const Row& to, int columns, float* shared) {
    const float* raw = static_cast<const float*>(p.x) + row * p.k;
    if (HeldNorm<W>::possible(p)) {
        load_normed<W, T>(p, held, raw, to, columns, shared);
    } else if (p.norm_weight) {
        load_normed_wide<W, T>(p, raw, to, columns, shared);
    } else {
        load_ready<W, T>(p, static_cast<const T*>(p.x) + row * p.k, to, columns);
    }
}

}  // namespace mr::cuda::small
