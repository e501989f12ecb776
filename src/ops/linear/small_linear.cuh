// The core of linear_small(): how a warp loads one piece of weights and multiplies it.
//
// A warp works on 16 rows of w at a time, as the first operand of mma.m16n8: two halves of 8 rows,
// `upper` and `lower`. Lane = 4 g + t holds row g of each half; t says which quarter of the
// columns. The second operand is up to 8 tokens; lane 4 g + t holds token g. Results: lane 4 g + t
// has tokens 2t and 2t + 1 of rows g (c0, c1) and g + 8 (c2, c3).
//
// The columns come in granules. Inside a granule the order of columns does not matter as long as
// both operands agree, so every lane takes 16 contiguous bytes of its row: no shuffles.
#pragma once

#include <cstring>
#include <type_traits>

#include "core/cuda/copy.cuh"
#include "core/cuda/mma.cuh"
#include "ops/linear/tile_layout.h"

namespace mr::cuda::small {

constexpr int kWarps = 8;   // share the columns of a tile
constexpr int kTokens = 8;  // per pass over the weights
constexpr int kTileRows = 16;

__device__ __forceinline__ uint4 load16(unsigned from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from));
    return v;
}

// begin + the product of 32 columns of 8-bit numbers; the sums are exact.
__device__ __forceinline__ void mma_bytes(int (&c)[4], unsigned a0, unsigned a1, unsigned a2,
                                          unsigned a3, unsigned b0, unsigned b1, int begin = 0) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(begin));
#endif
}

// The addresses of a lane's weights: a pointer for each half of the tile.
struct RowPointers {
    const std::byte* upper;
    const std::byte* lower;
};

// f16 and bf16: plain rows. A granule is 64 columns: 128 bytes of each row, two pieces of 16 bytes
// per lane and half.
template <typename T>
struct HalfWeights {
    using Input = T;  // element type of the input in shared memory
    static constexpr bool kQuantised = false;
    static constexpr int kGranule = 64;
    static constexpr int kStageBytes = 2 * 2 * 32 * 16;

    // Rows past the last are read as the last; their results are not used.
    static __device__ RowPointers rows(const std::byte* w, std::int64_t k, int n, int upper,
                                       int lower, int lane) {
        const int g = lane / 4;
        const std::byte* column = w + (lane % 4) * 16;
        return {column + min(upper + g, n - 1) * k * 2, column + min(lower + g, n - 1) * k * 2};
    }
    static constexpr int kStep = 2 * kGranule;  // bytes from one granule of a row to the next
    // `left`: columns of the row from the granule's first one on.
    static __device__ void stage(unsigned to, RowPointers from, int left, int lane) {
        to += lane * 16;
        if (left >= kGranule) {
            copy16(to, from.upper);
            copy16(to + 512, from.upper + 64);
            copy16(to + 1024, from.lower);
            copy16(to + 1536, from.lower + 64);
            return;
        }
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const bool valid = j * 32 + lane % 4 * 8 < left;
            const int at = valid ? j * 64 : 0;
            copy16(to + j * 512, from.upper + at, valid);
            copy16(to + 1024 + j * 512, from.lower + at, valid);
        }
    }
    static constexpr int kInputStep = 2 * kGranule;  // bytes of a token's input per granule
    static constexpr int kInputPad = 64;             // puts two tokens in different banks
    static __device__ unsigned input(unsigned row, int lane) { return row + lane % 4 * 16; }
    // acc += a granule; x: this lane's part of its token in shared memory.
    template <bool kOne>
    static __device__ void multiply(float (&acc)[4], unsigned from, unsigned x, const float*,
                                    const float*, int lane) {
        from += lane * 16;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const uint4 u = load16(from + j * 512);
            const uint4 l = load16(from + 1024 + j * 512);
            const uint4 b = load16(x + j * 64);
            mma<T>(acc, u.x, l.x, u.y, l.y, b.x, b.y);
            mma<T>(acc, u.z, l.z, u.w, l.w, b.z, b.w);
        }
    }
};

// q8_0x8 and q4_0x8 (tile_layout.h): a granule of a half is one or two records of quants and
// scales.
template <typename Layout>
struct QuantWeights {
    using LayoutType = Layout;
    using Input = std::int8_t;
    static constexpr bool kQuantised = true;
    static constexpr int kRecords = Layout::kRecords;
    static constexpr int kColumns = Layout::kColumns;  // of a record
    static constexpr int kGranule = kRecords * kColumns;
    static constexpr int kBlocks = kColumns / 32;
    static constexpr int kScaleBytes = 16 * kBlocks;  // f16 [8 rows, blocks]
    static constexpr int kRecord = 512 + kScaleBytes;
    static constexpr int kHalf = kRecords * kRecord;
    static constexpr int kStageBytes = 2 * kHalf;

    static __device__ RowPointers rows(const std::byte* w, std::int64_t k, int n, int upper,
                                       int lower, int) {
        const std::int64_t records = (k + kColumns - 1) / kColumns;
        const int last = (n - 1) / 8;
        return {w + min(upper / 8, last) * records * kRecord,
                w + min(lower / 8, last) * records * kRecord};
    }
    static constexpr int kStep = kHalf;
    static __device__ void stage(unsigned to, RowPointers from, int left, int lane) {
#pragma unroll
        for (int i = 0; i < kRecords; ++i) {
            const bool valid = i == 0 || left > i * kColumns;  // the last granule may be cut short
            const int at = valid ? i * kRecord : 0;
            copy16(to + i * kRecord + lane * 16, from.upper + at + lane * 16, valid);
            copy16(to + kHalf + i * kRecord + lane * 16, from.lower + at + lane * 16, valid);
        }
        // The scales: the first lanes fetch one half's, the next lanes the other's.
        constexpr int kPieces = kScaleBytes / 16;  // per record
        if (lane < 2 * kRecords * kPieces) {
            const bool second = lane >= kRecords * kPieces;
            const int piece = second ? lane - kRecords * kPieces : lane;
            const int i = piece / kPieces, at = i * kRecord + 512 + piece % kPieces * 16;
            const bool valid = left > i * kColumns;
            copy16(to + (second ? kHalf : 0) + at,
                   (second ? from.lower : from.upper) + (valid ? at : 0), valid);
        }
    }
    static constexpr int kInputStep = kGranule;
    static constexpr int kInputPad = kBlocks == 2 ? 64 : 16;
    static __device__ unsigned input(unsigned row, int lane) {
        return row + lane % 4 * (8 * kBlocks);
    }
    // acc += a granule. scales_a, scales_b: of tokens 2t and 2t + 1, one per block of 32 columns.
    template <bool kOne>
    static __device__ __forceinline__ void multiply(float (&acc)[4], unsigned from, unsigned x,
                                                    const float* scales_a, const float* scales_b,
                                                    int lane) {
        // All loads of a record are issued before the products of the previous one.
        Record<kOne> record[kRecords];
#pragma unroll
        for (int i = 0; i < kRecords; ++i) {
            record[i].template load<kHalf>(from + i * kRecord, x + i * kColumns,
                                           scales_a + i * kBlocks, scales_b + i * kBlocks, lane);
        }
#pragma unroll
        for (int i = 0; i < kRecords; ++i) record[i].multiply(acc);
    }

    // A lane's part of a record: its weights and their scales, its input and its scales. kLower:
    // bytes from the upper half's record to the lower half's.
    template <bool kOne>
    struct Record {
        unsigned u[4], l[4], b[2 * kBlocks];
        unsigned su[kBlocks / 2], sl[kBlocks / 2];  // two f16 each
        float da[kBlocks], db[kBlocks];

        template <int kLower>
        __device__ __forceinline__ void load(unsigned from, unsigned x, const float* scales_a,
                                             const float* scales_b, int lane) {
            const uint4 upper = load16(from + lane * 16);
            const uint4 lower = load16(from + kLower + lane * 16);
            u[0] = upper.x, u[1] = upper.y, u[2] = upper.z, u[3] = upper.w;
            l[0] = lower.x, l[1] = lower.y, l[2] = lower.z, l[3] = lower.w;
#pragma unroll
            for (int i = 0; i < kBlocks / 2; ++i) {
                const uint4 v = load16(x + i * 16);
                b[4 * i] = v.x, b[4 * i + 1] = v.y, b[4 * i + 2] = v.z, b[4 * i + 3] = v.w;
            }
            load_scales(su, from + 512 + lane / 4 * (2 * kBlocks));
            load_scales(sl, from + kLower + 512 + lane / 4 * (2 * kBlocks));
            load_input_scales(da, scales_a);
            if constexpr (!kOne) load_input_scales(db, scales_b);
        }
        __device__ __forceinline__ void multiply(float (&acc)[4]) const {
#pragma unroll
            for (int block = 0; block < kBlocks; ++block) {
                unsigned u0, u1, l0, l1;
                Layout::unpack(u, block, u0, u1);
                Layout::unpack(l, block, l0, l1);
                int c[4];
                mma_bytes(c, u0, l0, u1, l1, b[2 * block], b[2 * block + 1]);
                const float du = scale_of(su, block), dl = scale_of(sl, block);
                acc[0] = __fmaf_rn(static_cast<float>(c[0]), __fmul_rn(du, da[block]), acc[0]);
                acc[2] = __fmaf_rn(static_cast<float>(c[2]), __fmul_rn(dl, da[block]), acc[2]);
                if constexpr (!kOne) {
                    acc[1] = __fmaf_rn(static_cast<float>(c[1]), __fmul_rn(du, db[block]), acc[1]);
                    acc[3] = __fmaf_rn(static_cast<float>(c[3]), __fmul_rn(dl, db[block]), acc[3]);
                }
            }
        }
    };

  private:
    static __device__ void load_input_scales(float (&to)[kBlocks], const float* from) {
        if constexpr (kBlocks == 2) {
            const float2 v = *reinterpret_cast<const float2*>(from);
            to[0] = v.x, to[1] = v.y;
        } else {
            const float4 v = *reinterpret_cast<const float4*>(from);
            to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
        }
    }
    static __device__ void load_scales(unsigned (&to)[kBlocks / 2], unsigned from) {
        if constexpr (kBlocks == 2) {
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(to[0]) : "r"(from));
        } else {
            asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(from));
        }
    }
    static __device__ float scale_of(const unsigned (&scales)[kBlocks / 2], int block) {
        __half2 pair;
        memcpy(&pair, &scales[block / 2], 4);
        return block % 2 ? __high2float(pair) : __low2float(pair);
    }
};

struct Q8Layout {
    static constexpr int kColumns = 64;
    static constexpr int kRecords = 2;
    static constexpr float kUnit = 1.0f;
    static __device__ void unpack(const unsigned (&w)[4], int block, unsigned& a0, unsigned& a1) {
        a0 = w[2 * block];
        a1 = w[2 * block + 1];
    }
    // Where column `c` of a record lies in the input, so that a lane reads its 16 bytes at once:
    // [quarter][block][8 columns].
    static __host__ __device__ int input_place(int c) {
        const int block = c / 32, in = c % 32;
        return in / 8 * 16 + block * 8 + in % 8;
    }
};
struct Q4Layout {
    static constexpr int kColumns = 128;
    static constexpr int kRecords = 1;
    // A nibble n stands for n - 8. n ^ 8 in the upper half of a
    // byte is 16 (n - 8) in two's complement: the sums are exactly
    // 16 times too large, and the inputs' scales compensate.
    static constexpr float kUnit = 1.0f / 16;
    static __device__ void unpack(const unsigned (&w)[4], int block, unsigned& a0, unsigned& a1) {
        a0 = flipped(w[block] << 4);
        a1 = flipped(w[block]);
    }
    // (x ^ 0x80808080) & 0xf0f0f0f0 in one instruction: the compiler would use two.
    static __device__ unsigned flipped(unsigned x) {
        unsigned y;
        asm("lop3.b32 %0, %1, %2, %3, 0x28;"
            : "=r"(y)
            : "r"(x), "r"(0x80808080u), "r"(0xf0f0f0f0u));
        return y;
    }
    // [quarter][block][low 4 columns, high 4 columns]
    static __host__ __device__ int input_place(int c) {
        const int block = c / 32, in = c % 32;
        return in % 16 / 4 * 32 + block * 8 + in / 16 * 4 + in % 4;
    }
};

}  // namespace mr::cuda::small
