// Shared by the products for 5 tokens and more, with the core of those with quantised
// weights: the layout of prepared inputs, and how a warp multiplies. Results are
// computed as in small_linear.cuh: sums of 32 columns are exact integers, so 16
// tokens may be the first operand of the tensor cores, and 8 rows of weights the
// second. Both are then loaded from shared memory in the instruction's layout, 16
// bytes per lane; with the weights first, every instruction needed four moves before
// it. Lane 4 g + t has the results of tokens g and g + 8 with rows 2 t and 2 t + 1.
#pragma once

#include "ops/linear/small_linear.cuh"
#include "ops/linear/small_params.cuh"

namespace mr::cuda::small {

constexpr int kPreparedRows = 256;  // tokens prepared at once
constexpr int kTiledRows = 1024;    // the same for wide products with f16 and bf16 weights
constexpr int kWideRows = 192;      // limit for these; more are faster in tiles

// P: Params, or RecordParams.
//
// f16 and bf16 weights (mid_half.cu): one pass for up to kMidHalfRows tokens, with inputs as rows
// in memory, p.x_stride bytes apart.
constexpr int kMidHalfRows = 32;
template <typename T, typename P>
void run_mid_half(const Context& ctx, const P& p);

// f16 and bf16 weights (wide_half.cu): any number of tokens, in passes of 1024. Passes of more than
// kWideRows tokens use tiles (tiled_half.cu); p.x: inputs in the layout of wide_half.cu.
template <typename T, typename P>
void run_wide(const Context& ctx, const P& all);
struct WidePlan;
template <typename T, typename P>
void run_tiled(const Context& ctx, const P& p, const WidePlan& plan);
std::size_t tiled_scratch_bytes();  // size of WidePlan::handed
int tiled_counters();               // size of WidePlan::arrived; all are 0 before and after

// Quantised weights: up to kMidQuantRows tokens (mid_quant.cu), or up to 256 (wide_quant.cu).
// Inputs are prepared; granules are p.x_stride bytes apart.
constexpr int kMidQuantRows = 32;
template <typename Layout, typename P>
void run_mid_quant(const Context& ctx, const P& p);
template <typename Layout, typename P>
void run_wide_quant(const Context& ctx, const P& p, const WidePlan& plan);

// The layout of prepared inputs in memory.
template <typename W>
struct Mid;

// Rows.
template <typename T>
struct Mid<HalfWeights<T>> {
    using W = HalfWeights<T>;

    // Where a token's prepared input is written.
    struct Row {
        std::byte* row;
        __device__ Row(std::byte* to, int token, int stride)
            : row(to + static_cast<std::int64_t>(token) * stride) {}
        __device__ __forceinline__ std::byte* at(int c) const { return row + c * 2; }
    };
    static int stride(std::int64_t k) {
        return static_cast<int>((k + W::kGranule - 1) / W::kGranule * W::kGranule * 2);
    }
};

// [granules][groups of tokens][kGroupBytes]; granules are p.x_stride bytes apart. A group is 16
// tokens: [4 blocks of 32 columns][32 lanes][16 bytes: tokens g and g + 8, twice], then their
// scales, f32 [2 pieces of 64 columns][8 g][g, g + 8][2 blocks]. For at most 8 tokens (kFew) it is
// [2 pieces][32 lanes][2 blocks][8 bytes], scales [2 pieces][8 tokens][2 blocks].
template <typename Layout>
struct Mid<QuantWeights<Layout>> {
    using W = QuantWeights<Layout>;
    static_assert(W::kGranule == 128);
    template <bool kFew>
    static constexpr int kGroupBytes = kFew ? 1024 + 128 : 2048 + 256;

    template <bool kFew>
    struct Row {
        std::byte* group;
        int token, stride;
        __device__ Row(std::byte* to, int row, int bytes)
            : group(to + row / 16 * kGroupBytes<kFew>), token(row % 16), stride(bytes) {}
        __device__ __forceinline__ std::byte* at(int c) const {
            // Columns c to c + 3 are one word of a lane: the first or the second word of its block.
            constexpr int kQuarter = 8 * W::kBlocks;  // bytes of a record per lane
            const int place = Layout::input_place(c % W::kColumns);
            const int lane = token % 8 * 4 + place / kQuarter, second = place / 4 % 2;
            const int block = c % W::kGranule / 32;
            const int in = kFew ? block / 2 * 512 + lane * 16 + block % 2 * 8 + second * 4
                                : block * 512 + lane * 16 + second * 8 + token / 8 * 4;
            return granule(c) + in;
        }
        __device__ __forceinline__ float* scale(int c) const {
            const int block = c % W::kGranule / 32, g = token % 8;
            const int in = kFew ? 1024 + block / 2 * 64 + g * 8
                                : 2048 + block / 2 * 128 + g * 16 + token / 8 * 8;
            return reinterpret_cast<float*>(granule(c) + in + block % 2 * 4);
        }
        __device__ __forceinline__ std::byte* granule(int c) const {
            return group + static_cast<std::int64_t>(c / W::kGranule) * stride;
        }
    };
    template <bool kFew>
    static int stride(int rows) {
        return (rows + 15) / 16 * kGroupBytes<kFew>;
    }

    // A lane's share of a group's piece: the first operand, and the scales of tokens g and g + 8.
    template <bool kFew>
    struct Tokens {
        unsigned a[2][4];
        float d[2][2];  // [token][block]
        __device__ __forceinline__ void load(unsigned group, int piece, int lane) {
            if constexpr (kFew) {
                const uint4 v = load16(group + piece * 512 + lane * 16);
                a[0][0] = v.x, a[0][2] = v.y, a[1][0] = v.z, a[1][2] = v.w;
                a[0][1] = a[0][3] = a[1][1] = a[1][3] = 0;
                unsigned first, second;
                load8(first, second, group + 1024 + piece * 64 + lane / 4 * 8);
                d[0][0] = __uint_as_float(first), d[0][1] = __uint_as_float(second);
            } else {
#pragma unroll
                for (int block = 0; block < 2; ++block) {
                    const uint4 v = load16(group + (2 * piece + block) * 512 + lane * 16);
                    a[block][0] = v.x, a[block][1] = v.y, a[block][2] = v.z, a[block][3] = v.w;
                }
                const uint4 v = load16(group + 2048 + piece * 128 + lane / 4 * 16);
                d[0][0] = __uint_as_float(v.x), d[0][1] = __uint_as_float(v.y);
                d[1][0] = __uint_as_float(v.z), d[1][1] = __uint_as_float(v.w);
            }
        }
    };
    // A lane's share of 8 rows of weights, a piece: the second operand, and the scales of rows 2 t
    // and 2 t + 1. from: the granule's first record.
    struct Rows {
        unsigned b[2][2];
        float d[2][2];  // [row][block]
        __device__ __forceinline__ void load(unsigned from, int piece, int lane) {
            constexpr bool kWhole = W::kBlocks == 2;  // a piece is a record, or half of one
            const unsigned record = from + (kWhole ? piece * W::kRecord : 0);
            const unsigned quants = record + lane * 16 + (kWhole ? 0 : piece * 8);
            const unsigned scales = record + 512 + lane % 4 * (4 * W::kBlocks);
            unsigned w[4] = {}, s[2];  // two f16 each
            if constexpr (kWhole) {
                const uint4 v = load16(quants);
                w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
                load8(s[0], s[1], scales);
            } else {
                load8(w[0], w[1], quants);
                s[0] = load4(scales + piece * 4);
                s[1] = load4(scales + 8 + piece * 4);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                Layout::unpack(w, i, b[i][0], b[i][1]);
                __half2 pair;
                memcpy(&pair, &s[i], 4);
                d[i][0] = __low2float(pair), d[i][1] = __high2float(pair);
            }
        }
    };
    // The sums of 32 columns are less than 2^22: 32 * 128 * 127 = 520,192 at most, also for 4-bit
    // weights, which are scaled by 16. Adding such an integer to the bits of 1.5 * 2^23 gives the
    // bits of the f32 1.5 * 2^23 + integer. So the tensor cores start from there, and a subtraction
    // converts a sum to f32, at eight times the rate of a conversion.
    static constexpr float kBegin = 0x1.8p23f;

    // acc += a piece of a group of tokens and 8 rows. acc: tokens g, g + 8 x rows 2 t, 2 t + 1.
    template <bool kFew, int kSums>
    static __device__ __forceinline__ void multiply(float (&acc)[kSums], const Tokens<kFew>& x,
                                                    const Rows& w) {
#pragma unroll
        for (int block = 0; block < 2; ++block) {
            const unsigned(&a)[4] = x.a[block];
            int bits[4];
            mma_bytes(bits, a[0], a[1], a[2], a[3], w.b[block][0], w.b[block][1],
                      __float_as_int(kBegin));
            float c[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) c[i] = __fsub_rn(__int_as_float(bits[i]), kBegin);
#pragma unroll
            for (int i = 0; i < kSums; ++i) {
                const float scale = __fmul_rn(w.d[i % 2][block], x.d[i / 2][block]);
                acc[i] = __fmaf_rn(c[i], scale, acc[i]);
            }
        }
    }

  private:
    static __device__ __forceinline__ unsigned load4(unsigned from) {
        unsigned v;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from));
        return v;
    }
    static __device__ __forceinline__ void load8(unsigned& a, unsigned& b, unsigned from) {
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(from));
    }
};

}  // namespace mr::cuda::small
