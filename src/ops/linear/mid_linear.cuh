// What the products for 5 to 64 tokens share, and the inside of that with quantised weights: how a
// stage of the ring gets its inputs, and how a warp multiplies R tiles of weights with NT groups of
// 8 tokens. The instructions that a result is made of, and their order, are those of
// small_linear.cuh.
//
// A quantised input of 8 tokens and one granule of columns is kGroupBytes in shared memory: two
// pieces of 512 bytes, in which lane 4 g + t finds 16 bytes of token g at lane * 16, and behind
// them the tokens' scales, f32 [8 tokens, 4 blocks of 32 columns].
#pragma once

#include "ops/linear/small_linear.cuh"
#include "ops/linear/small_params.cuh"

namespace mr::cuda::small {

// Blocks that share a strip of rows; each takes kBlockParts of the 8 parts of the columns.
constexpr int kCluster = 8;
constexpr int kBlockParts = kWarps / kCluster;
static_assert(kBlockParts * kCluster == kWarps);

// f16 and bf16 weights (mid_half.cu): one pass for up to kMidHalfRows tokens, whose inputs lie in
// memory as rows, p.x_stride bytes apart.
constexpr int kMidHalfRows = 32;
template <typename T>
void run_mid_half(const Context& ctx, const Params& p);

// f16 and bf16 weights (wide_half.cu): any number of tokens, in passes of 256.
template <typename T>
void run_wide(const Context& ctx, const Params& all);
std::size_t wide_scratch_bytes();  // what it needs beside the inputs

// How prepared inputs lie in memory.
template <typename W>
struct Mid;

// Rows.
template <typename T>
struct Mid<HalfWeights<T>> {
    using W = HalfWeights<T>;

    // Where the prepared input of a token goes.
    struct Row {
        std::byte* row;
        __device__ Row(std::byte* to, int token, int stride)
            : row(to + static_cast<std::int64_t>(token) * stride) {}
        __device__ __forceinline__ std::byte* at(int c) const { return row + c * 2; }
    };
    static int stride(std::int64_t k, int) {
        return static_cast<int>((k + W::kGranule - 1) / W::kGranule * W::kGranule * 2);
    }
    // What is added to p.x for the group of tokens that a pass begins with.
    static std::int64_t group(int first, int stride) { return std::int64_t{first} * 8 * stride; }
};

// [granules][groups of 8 tokens][kGroupBytes], a granule's p.x_stride bytes apart.
template <typename Layout>
struct Mid<QuantWeights<Layout>> {
    using W = QuantWeights<Layout>;
    static constexpr int kGroupBytes = 1024 + 8 * 4 * 4;
    static_assert(W::kGranule == 128);

    struct Row {
        std::byte* group;
        int token, stride;
        __device__ Row(std::byte* to, int row, int bytes)
            : group(to + row / 8 * kGroupBytes), token(row % 8), stride(bytes) {}
        __device__ __forceinline__ std::byte* at(int c) const {
            constexpr int kQuarter = 8 * W::kBlocks;  // bytes of a record that are one lane's
            const int in = c % W::kGranule, place = Layout::input_place(in % W::kColumns);
            const int piece = in / W::kColumns + place % kQuarter / 16;
            return group + static_cast<std::int64_t>(c / W::kGranule) * stride + piece * 512 +
                   (token * 4 + place / kQuarter) * 16 + place % 16;
        }
        __device__ __forceinline__ float* scale(int c) const {
            return reinterpret_cast<float*>(group +
                                            static_cast<std::int64_t>(c / W::kGranule) * stride +
                                            1024 + token * 16 + c % W::kGranule / 32 * 4);
        }
    };
    static int stride(std::int64_t, int rows) { return (rows + 7) / 8 * kGroupBytes; }
    static std::int64_t group(int first, int) { return std::int64_t{first} * kGroupBytes; }

    template <int kNT>
    static __device__ __forceinline__ void fetch(const Params& p, unsigned to, int granule,
                                                 int share, int lane) {
        const int bytes = (p.rows + 7) / 8 * kGroupBytes;  // of the pass, at most kNT groups
        const std::byte* from =
            static_cast<const std::byte*>(p.x) + static_cast<std::int64_t>(granule) * p.x_stride;
#pragma unroll
        for (int i = 0; i < (kNT * kGroupBytes + 512 * kCluster - 1) / (512 * kCluster); ++i) {
            const int at = (share + kCluster * i) * 512 + lane * 16;
            if (at < bytes) copy16(to + at, from + at);
        }
    }

    template <int kR, int kNT>
    static __device__ __forceinline__ void multiply(float (&acc)[kR][kNT][4], unsigned from,
                                                    unsigned x, int lane) {
        // Pieces of two blocks of 32 columns. Not unrolled: with the loads of the second before the
        // products of the first the registers do not suffice.
#pragma unroll 1
        for (int piece = 0; piece < 2; ++piece) {
            unsigned a[kR][2][4];
            float du[kR][2], dl[kR][2];
#pragma unroll
            for (int r = 0; r < kR; ++r) {
                weights(a[r], du[r], dl[r], from + r * W::kStageBytes, piece, lane);
            }
            const unsigned scales = x + 1024 + lane % 4 * 32 + piece * 8;
#pragma unroll
            for (int nt = 0; nt < kNT; ++nt) {
                const uint4 v = load16(x + nt * kGroupBytes + piece * 512 + lane * 16);
                const unsigned b[4] = {v.x, v.y, v.z, v.w};
                const float2 first = load_two(scales + nt * kGroupBytes);  // of token 2t
                const float2 second = load_two(scales + nt * kGroupBytes + 16);
                const float da[2] = {first.x, first.y}, db[2] = {second.x, second.y};
#pragma unroll
                for (int block = 0; block < 2; ++block) {
#pragma unroll
                    for (int r = 0; r < kR; ++r) {
                        const unsigned(&w)[4] = a[r][block];
                        float c[4];
                        mma_bytes(c, w[0], w[1], w[2], w[3], b[2 * block], b[2 * block + 1]);
                        float(&to)[4] = acc[r][nt];
                        const float u = du[r][block], l = dl[r][block];
                        const float first_of = da[block], second_of = db[block];
                        to[0] = __fmaf_rn(c[0], __fmul_rn(u, first_of), to[0]);
                        to[1] = __fmaf_rn(c[1], __fmul_rn(u, second_of), to[1]);
                        to[2] = __fmaf_rn(c[2], __fmul_rn(l, first_of), to[2]);
                        to[3] = __fmaf_rn(c[3], __fmul_rn(l, second_of), to[3]);
                    }
                }
            }
        }
    }

  private:
    // Two blocks of a tile: the first operand of their products, and the rows' scales.
    static __device__ __forceinline__ void weights(unsigned (&a)[2][4], float (&du)[2],
                                                   float (&dl)[2], unsigned from, int piece,
                                                   int lane) {
        // A piece is a record of q8_0x8, or half of one of q4_0x8.
        constexpr bool kWhole = W::kBlocks == 2;
        const unsigned record = from + (kWhole ? piece * W::kRecord : 0);
        const unsigned quants = record + lane * 16 + (kWhole ? 0 : piece * 8);
        const unsigned scales =
            record + 512 + lane / 4 * (2 * W::kBlocks) + (kWhole ? 0 : piece * 4);
        unsigned u[4] = {}, l[4] = {};
        if constexpr (kWhole) {
            const uint4 upper = load16(quants), lower = load16(quants + W::kHalf);
            u[0] = upper.x, u[1] = upper.y, u[2] = upper.z, u[3] = upper.w;
            l[0] = lower.x, l[1] = lower.y, l[2] = lower.z, l[3] = lower.w;
        } else {
            load8(u[0], u[1], quants);
            load8(l[0], l[1], quants + W::kHalf);
        }
#pragma unroll
        for (int block = 0; block < 2; ++block) {
            Layout::unpack(u, block, a[block][0], a[block][2]);
            Layout::unpack(l, block, a[block][1], a[block][3]);
        }
        load_pair(du, scales);
        load_pair(dl, scales + W::kHalf);
    }
    static __device__ __forceinline__ void load8(unsigned& a, unsigned& b, unsigned from) {
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(from));
    }
    static __device__ __forceinline__ float2 load_two(unsigned from) {
        unsigned a, b;
        load8(a, b, from);
        return {__uint_as_float(a), __uint_as_float(b)};
    }
    static __device__ __forceinline__ void load_pair(float (&to)[2], unsigned from) {
        unsigned v;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from));
        __half two[2];
        memcpy(two, &v, 4);
        to[0] = __half2float(two[0]);
        to[1] = __half2float(two[1]);
    }
};

}  // namespace mr::cuda::small
