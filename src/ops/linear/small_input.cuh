// Prepares a token's input for the tensor cores: normed and rounded to the compute type, or
// quantised to 8 bits, and stored where the warps will read it. All kernels that use these
// functions get the same bits.
#pragma once

#include <algorithm>

#include "core/cuda/mma.cuh"
#include "ops/linear/small_linear.cuh"
#include "ops/linear/small_params.cuh"
#include "ops/norm/norm_row.cuh"

namespace mr::cuda::small {

// The 32 columns of a block become 8-bit numbers times a scale, as on the CPU (linear_kernels.cpp),
// bit for bit. Every block of the grid repeats this for the same input, so it uses few
// instructions: rounding is an addition.
struct QuantScale {
    float d, inverse;
};
// `top`: the bits of the largest magnitude.
__device__ __forceinline__ QuantScale quant_scale(unsigned top) {
    const float steps = __fdiv_rn(__uint_as_float(top), 127.0f);
    const float d = __uint_as_float((__float_as_uint(steps) + 2u) & ~3u);
    if (top >= 0x71800000u) {  // 2^100 and more, infinity, NaN: the result must be NaN
        return {__int_as_float(0x7fc00000), 0};
    }
    if (steps < 0x1p-126f) return {0, 0};
    return {d, __frcp_rn(d)};
}
__device__ __forceinline__ unsigned quantise4(const float (&v)[4], float inverse) {
    unsigned q[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        // The lowest byte is the number.
        q[i] = __float_as_uint(__fadd_rn(__fmul_rn(v[i], inverse), 0x1.8p23f));
    }
    if (inverse == 0) return 0;  // also if v is NaN
    return __byte_perm(__byte_perm(q[0], q[1], 0x0040), __byte_perm(q[2], q[3], 0x0040), 0x5410);
}
// 8 lanes hold 4 columns each.
__device__ __forceinline__ QuantScale scale_of_four(const float (&v)[4]) {
    const auto magnitude = [](float x) { return __float_as_uint(x) & 0x7fffffffu; };
    unsigned top =
        max(max(magnitude(v[0]), magnitude(v[1])), max(magnitude(v[2]), magnitude(v[3])));
#if __CUDA_ARCH__ >= 800
    top = __reduce_max_sync(0xffu << (threadIdx.x & 24), top);
#endif
    return quant_scale(top);
}
// Two neighbouring lanes hold 16 columns each, two bf16 per word.
__device__ __forceinline__ QuantScale scale_of_sixteen(const unsigned (&words)[8]) {
    unsigned top = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) top = __vmaxu2(top, words[i] & 0x7fff7fffu);
    top = max(top & 0xffffu, top >> 16);
    top = max(top, __shfl_xor_sync(~0u, top, 1));
    return quant_scale(top << 16);
}

// The position of a token's input in shared memory, in the kernel for few tokens.
template <typename W>
struct SharedRow {
    std::byte* row;
    float* scales;
    // The address of columns c to c + 3; c is a multiple of 4.
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

// Stores four columns of a token's input, from `chunk` * 4 on, where the warps will read them. All
// lanes of a warp call it together; columns past the last whole granule are dropped.
template <typename W, typename T, typename Row>
__device__ __forceinline__ void store_input(const Row& to, int chunk, int columns,
                                            const float (&v)[4]) {
    const int c = chunk * 4;
    if constexpr (W::kQuantised) {
        const QuantScale scale = scale_of_four(v);
        if (c >= columns) return;
        *reinterpret_cast<unsigned*>(to.at(c)) = quantise4(v, scale.inverse);
        if (c % 32 == 0) *to.scale(c) = __fmul_rn(scale.d, W::LayoutType::kUnit);
    } else {
        if (c >= columns) return;
        const T four[4] = {from_f32<T>(v[0]), from_f32<T>(v[1]), from_f32<T>(v[2]),
                           from_f32<T>(v[3])};
        const uint2 words = *reinterpret_cast<const uint2*>(four);
        if constexpr (requires { to.put(c, words); }) {
            to.put(c, words);
        } else {
            *reinterpret_cast<uint2*>(to.at(c)) = words;
        }
    }
}

// Stores sixteen columns from c on, two bf16 per word, with a quarter of the instructions of four
// calls of store_input().
template <typename W, typename Row>
__device__ __forceinline__ void store_sixteen(const Row& to, int c, int columns,
                                              const unsigned (&words)[8]) {
    const QuantScale scale = scale_of_sixteen(words);
    if (c >= columns) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned a = words[2 * i], b = words[2 * i + 1];
        const float v[4] = {__uint_as_float(a << 16), __uint_as_float(a & 0xffff0000u),
                            __uint_as_float(b << 16), __uint_as_float(b & 0xffff0000u)};
        *reinterpret_cast<unsigned*>(to.at(c + 4 * i)) = quantise4(v, scale.inverse);
    }
    if (c % 32 == 0) *to.scale(c) = __fmul_rn(scale.d, W::LayoutType::kUnit);
}

constexpr int kInputThreads = 32 * kWarps;  // prepare a row
constexpr int kHeld = 4;                    // chunks of a row per thread: k up to 4096

// The norm's weights for the chunks this thread will write, loaded before the input arrives.
// Quantised: four adjacent chunks, sixteen columns.
template <typename W>
struct HeldNorm {
    float4 weight[kHeld], bias[kHeld];

    static __device__ bool possible(const Params& p) {
        return p.norm_weight && p.k % (W::kQuantised ? 16 : 4) == 0 &&
               p.k <= kHeld * 4 * kInputThreads;
    }
    // This thread's j-th chunk.
    static __device__ int chunk(int j) {
        const int thread = thread_here();
        return W::kQuantised ? thread * kHeld + j : thread + kInputThreads * j;
    }
    __device__ void load(const Params& p) {
#pragma unroll
        for (int j = 0; j < kHeld; ++j) {
            const int c = chunk(j) * 4;
            weight[j] = bias[j] = float4{};
            if (c >= p.k) continue;
            weight[j] = *reinterpret_cast<const float4*>(p.norm_weight + c);
            if (p.norm_bias) bias[j] = *reinterpret_cast<const float4*>(p.norm_bias + c);
        }
    }
};

// The source of a row: here, memory that an earlier kernel has written. The functions read kCount
// pieces at once, with zeros from column k on; column(j) is where piece j begins.
struct MemoryRow {
    const void* x;

    static constexpr bool kTwice = true;  // may be read again, in another order
    template <int kCount, typename Column>
    __device__ __forceinline__ void floats(float4 (&v)[kCount], int k, Column&& column) const {
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
            const int c = column(j);
            v[j] = c < k ? *reinterpret_cast<const float4*>(static_cast<const float*>(x) + c)
                         : float4{};
        }
    }
    // 16-bit elements: four, and sixteen at a time.
    template <int kCount, typename Column>
    __device__ __forceinline__ void fours(uint2 (&v)[kCount], int k, Column&& column) const {
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
            const int c = column(j);
            v[j] = uint2{};
            if (c < k) v[j] = *reinterpret_cast<const uint2*>(static_cast<const short*>(x) + c);
        }
    }
    template <int kCount, typename Column>
    __device__ __forceinline__ void sixteens(uint4 (&v)[kCount][2], int k, Column&& column) const {
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
            const int c = column(j);
            v[j][0] = v[j][1] = uint4{};
            if (c >= k) continue;
            const uint4* from = reinterpret_cast<const uint4*>(static_cast<const short*>(x) + c);
            v[j][0] = from[0];
            v[j][1] = from[1];
        }
    }
};

// A normed row, with the raw values held in registers.
template <typename W, typename T, typename Source, typename Row, typename Team>
__device__ void load_normed(const Params& p, const HeldNorm<W>& held, const Source& source,
                            const Row& to, int columns, float* shared, Team team) {
    const int k = static_cast<int>(p.k), thread = thread_here();
    float v[kHeld][4];  // in the order of the statistics
    float4 mine[kHeld];
    source.floats(mine, k, [&](int j) { return 4 * (thread + kInputThreads * j); });
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
        v[j][0] = mine[j].x, v[j][1] = mine[j].y, v[j][2] = mine[j].z, v[j][3] = mine[j].w;
    }
    // In HeldNorm's order: from the source again, or through shared memory.
    [[maybe_unused]] const auto mine_at = [](int j) { return 4 * HeldNorm<W>::chunk(j); };
    if constexpr (W::kQuantised && Source::kTwice) {
        source.floats(mine, k, mine_at);
    } else if constexpr (W::kQuantised) {
#pragma unroll
        for (int j = 0; j < kHeld; ++j) source.keep(thread + kInputThreads * j, mine[j]);
    }
    const RowStats stats =
        row_stats<kInputThreads, kHeld>(p.norm, v, k, p.eps, thread, shared, team);
    if constexpr (W::kQuantised && !Source::kTwice) {  // row_stats() has a barrier inside
#pragma unroll
        for (int j = 0; j < kHeld; ++j) mine[j] = source.kept(HeldNorm<W>::chunk(j));
    }
    const auto normed_chunk = [&](int j, float(&r)[4]) {
        const float4 x = mine[j], w = held.weight[j], b = held.bias[j];
        const float n[4] = {normed(x.x, stats, w.x, b.x), normed(x.y, stats, w.y, b.y),
                            normed(x.z, stats, w.z, b.z), normed(x.w, stats, w.w, b.w)};
        const bool inside = HeldNorm<W>::chunk(j) * 4 < k;
#pragma unroll
        for (int i = 0; i < 4; ++i) r[i] = inside ? n[i] : 0.0f;
    };
    if constexpr (W::kQuantised) {
        if (thread / 32 * 32 * 16 >= columns) return;
        unsigned words[8];
#pragma unroll
        for (int j = 0; j < kHeld; ++j) {
            float r[4];
            normed_chunk(j, r);
            words[2 * j] = pack<bf16>(r[0], r[1]);
            words[2 * j + 1] = pack<bf16>(r[2], r[3]);
        }
        store_sixteen<W>(to, thread * 16, columns, words);
    } else {
#pragma unroll
        for (int j = 0; j < kHeld; ++j) {
            if ((thread / 32 * 32 + kInputThreads * j) * 4 >= columns) break;
            float r[4];
            normed_chunk(j, r);
            store_input<W, T>(to, HeldNorm<W>::chunk(j), columns, r);
        }
    }
}

// A normed row that is too wide for registers, or of odd width.
template <typename W, typename T, typename Row, typename Team>
__device__ void load_normed_wide(const Params& p, const float* raw, const Row& to, int columns,
                                 float* shared, Team team) {
    const int k = static_cast<int>(p.k);
    const int thread = thread_here();
    const RowStats stats = row_stats<kInputThreads>(p.norm, raw, k, p.eps, thread, shared, team);
    for (int first = thread / 32 * 32; first * 4 < columns; first += kInputThreads) {
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

// A prepared row, quantised in units of sixteen columns; k is a multiple of 16.
template <typename W, typename Source, typename Row>
__device__ void load_ready_quantised(int k, const Source& source, const Row& to, int columns) {
    const int thread = thread_here();
    constexpr int kBatch = 3;
    for (int first = thread / 32 * 32; first * 16 < columns; first += kInputThreads * kBatch) {
        const auto column = [&](int j) { return (first + thread % 32 + kInputThreads * j) * 16; };
        uint4 words[kBatch][2];
        source.sixteens(words, k, column);
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
            if ((first + kInputThreads * j) * 16 >= columns) break;
            const uint4 a = words[j][0], b = words[j][1];
            const unsigned eight[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            store_sixteen<W>(to, column(j), columns, eight);
        }
    }
}

// A prepared row; k is a multiple of 4.
template <typename W, typename T, typename Source, typename Row>
__device__ void load_ready(int k, const Source& source, const Row& to, int columns) {
    const int thread = thread_here();
    if constexpr (W::kQuantised) {
        if (k % 16 == 0) return load_ready_quantised<W>(k, source, to, columns);
        if constexpr (!Source::kTwice) return;  // never requested
    }
    constexpr int kBatch = 11;  // loads in flight
    for (int first = thread / 32 * 32; first * 4 < columns; first += kInputThreads * kBatch) {
        const auto column = [&](int j) { return (first + thread % 32 + kInputThreads * j) * 4; };
        uint2 four[kBatch];
        source.fours(four, k, column);
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
            if ((first + kInputThreads * j) * 4 >= columns) break;
            float v[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) v[i] = to_f32(reinterpret_cast<const T*>(&four[j])[i]);
            store_input<W, T>(to, column(j) / 4, columns, v);
        }
    }
}
// A prepared row of any width.
template <typename W, typename T, typename Row>
__device__ void load_ready_odd(int k, const T* ready, const Row& to, int columns) {
    const int thread = thread_here();
    for (int first = thread / 32 * 32; first * 4 < columns; first += kInputThreads) {
        const int chunk = first + thread % 32;
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v[i] = chunk * 4 + i < k ? to_f32(ready[chunk * 4 + i]) : 0.0f;
        }
        store_input<W, T>(to, chunk, columns, v);
    }
}

// Token `row` of p.x, normed and rounded to T or quantised, with zeros up to a whole granule. Loads
// are issued in batches, so that a batch takes the latency of one load. The team's kInputThreads
// threads call it, from the block's first on; `shared` is for the norm, kRowShared<kInputThreads>
// floats per group.
template <typename W, typename T, typename Row, typename Team = BlockTeam>
__device__ __forceinline__ void load_row(const Params& p, const HeldNorm<W>& held, int row,
                                         const Row& to, int columns, float* shared,
                                         Team team = {}) {
    const float* raw = static_cast<const float*>(p.x) + row * p.k;
    const T* ready = static_cast<const T*>(p.x) + row * p.k;
    const int k = static_cast<int>(p.k);
    if (HeldNorm<W>::possible(p)) {
        load_normed<W, T>(p, held, MemoryRow{raw}, to, columns, shared, team);
    } else if (p.norm_weight) {
        load_normed_wide<W, T>(p, raw, to, columns, shared, team);
    } else if (k % 4 == 0) {
        load_ready<W, T>(k, MemoryRow{ready}, to, columns);
    } else {
        load_ready_odd<W>(k, ready, to, columns);
    }
}

// The layout of shared memory: the tokens' inputs, their scales (quantised), then the sums of up to
// pass_tiles tiles, whose memory the norm uses before the first sums exist.
struct RoomLayout {
    int x_stride = 0;
    int pass_tiles = 0;
    std::size_t inputs = 0;  // bytes before the sums
    std::size_t bytes = 0;
};
template <typename W>
RoomLayout room_layout(std::int64_t k, int rows, int tiles_a_block, std::size_t most_sums) {
    const std::int64_t granules = (k + W::kGranule - 1) / W::kGranule;
    RoomLayout out;
    // Tokens' rows start in different banks.
    const std::int64_t row = granules * W::kGranule * static_cast<int>(sizeof(typename W::Input));
    out.x_stride = static_cast<int>((row + 127) / 128 * 128) + (rows == 1 ? 0 : W::kInputPad);
    out.bytes = static_cast<std::size_t>(rows) * out.x_stride;
    if (W::kQuantised) {
        out.bytes += static_cast<std::size_t>(rows * granules * (W::kGranule / 32)) * 4;
    }
    out.inputs = out.bytes;
    const std::size_t tile_sums = sizeof(float) * kWarps * kTileRows * rows;
    const std::size_t most = std::max(most_sums, tile_sums);
    out.pass_tiles = std::min<int>(tiles_a_block, static_cast<int>(most / tile_sums));
    out.bytes += std::max<std::size_t>(out.pass_tiles * tile_sums,
                                       sizeof(float) * kRowShared<kInputThreads>);
    return out;
}

}  // namespace mr::cuda::small
