#include "ops/linear/packed_kernels.h"

#include "ops/simd/vec.h"

namespace mr::ops::MR_ISA {
namespace {

// A tile is kTileRows x (kTileVecs vectors): accumulators, one row of b's panel and the elements of
// a fit the path's registers (NEON 24 + 3 + 2 of 32, AVX2 12 + 2 + 1 of 16, AVX-512 24 + 2 + 1).
#if defined(MR_VEC_NEON)
constexpr int kTileRows = 8, kTileVecs = 3;
#elif defined(MR_VEC_AVX2)
constexpr int kTileRows = 6, kTileVecs = 2;
#elif defined(MR_VEC_AVX512)
constexpr int kTileRows = 12, kTileVecs = 2;
#else
constexpr int kTileRows = 4, kTileVecs = 2;
#endif
constexpr int kTileCols = kTileVecs * kLanes;
constexpr int kAlongRows = 32;  // rows of a matrix packed together
static_assert(kPanelStep % kTileRows == 0 && kPanelStep % kTileCols == 0);

// One step of the depth: a's elements of all rows of the tile.
#if defined(MR_VEC_NEON)
struct Left {
    float32x4_t low, high;
    MR_INLINE explicit Left(const float* p) : low(vld1q_f32(p)), high(vld1q_f32(p + 4)) {}
    template <int R>
    MR_INLINE Vec times(Vec b, Vec acc) const {
        return {vfmaq_laneq_f32(acc.v, b.v, R < 4 ? low : high, R % 4)};
    }
};
#else
struct Left {
    const float* p;
    MR_INLINE explicit Left(const float* from) : p(from) {}
    template <int R>
    MR_INLINE Vec times(Vec b, Vec acc) const {
        return fma(set(p[R]), b, acc);
    }
};
#endif

// Rows by recursion, so that every index is a constant.
template <int R>
MR_INLINE void step_rows(Vec (&acc)[kTileRows][kTileVecs], const Left& a,
                         const Vec (&b)[kTileVecs]) {
    if constexpr (R < kTileRows) {
#pragma GCC unroll 4
        for (int v = 0; v < kTileVecs; ++v) acc[R][v] = a.times<R>(b[v], acc[R][v]);
        step_rows<R + 1>(acc, a, b);
    }
}

template <int R>
MR_INLINE void store_rows(const PackedBlock& block, const Vec (&acc)[kTileRows][kTileVecs],
                          std::int64_t at, std::int64_t rows, std::int64_t cols,
                          const float* bias) {
    if constexpr (R < kTileRows) {
        if (R >= rows) return;
        float* c = block.c + at + R * block.c_stride;
        const float* add_row = block.add ? block.add + at + R * block.c_stride : nullptr;
#pragma GCC unroll 4
        for (int v = 0; v < kTileVecs; ++v) {
            const auto left = static_cast<int>(cols - v * kLanes);
            if (left <= 0) break;
            Vec y = acc[R][v];
            if (add_row) y = add(y, load_n(add_row + v * kLanes, left));
            if (bias) y = add(y, load_n(bias + v * kLanes, left));
            store_n(c + v * kLanes, y, left);
        }
        store_rows<R + 1>(block, acc, at, rows, cols, bias);
    }
}

MR_INLINE void tile(const PackedBlock& block, const float* a, const float* b, std::int64_t row,
                    std::int64_t col) {
    Vec acc[kTileRows][kTileVecs];
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kTileVecs; ++v) acc[r][v] = set(0);
    }
    for (std::int64_t p = 0; p < block.depth; ++p) {
        Vec b_row[kTileVecs];
#pragma GCC unroll 4
        for (int v = 0; v < kTileVecs; ++v) b_row[v] = load(b + v * kLanes);
        const Left a_col(a);
        step_rows<0>(acc, a_col, b_row);
        a += kTileRows;
        b += kTileCols;
    }
    store_rows<0>(block, acc, row * block.c_stride + col, block.rows - row, block.cols - col,
                  block.bias ? block.bias + col : nullptr);
}

template <int Width>
MR_INLINE void panel_across(float* to, const float* from, std::int64_t stride, std::int64_t depth,
                            int count) {
    constexpr int kQuads = Width / 4 * 4;
    std::int64_t p = 0;
    if (count == Width) {
        for (; p + 4 <= depth; p += 4) {
#pragma GCC unroll 8
            for (int i = 0; i < kQuads; i += 4) {
                transpose4(to + p * Width + i, Width, from + i * stride + p, stride);
            }
            for (int i = kQuads; i < Width; ++i) {
                for (int j = 0; j < 4; ++j) to[(p + j) * Width + i] = from[i * stride + p + j];
            }
        }
    }
    for (; p < depth; ++p) {
        for (int i = 0; i < Width; ++i) to[p * Width + i] = i < count ? from[i * stride + p] : 0;
    }
}

template <int Width>
MR_INLINE void panel_along(float* to, const float* from, std::int64_t stride, std::int64_t depth,
                           int count) {
    for (std::int64_t p = 0; p < depth; ++p, to += Width, from += stride) {
        __builtin_prefetch(from + kAlongRows * stride);  // harmless beyond the end
        if (count == Width) {
            __builtin_memcpy(to, from, Width * sizeof(float));
        } else {
            for (int i = 0; i < Width; ++i) to[i] = i < count ? from[i] : 0;
        }
    }
}

template <int Width>
MR_INLINE void panels(float* to, const float* from, std::int64_t stride, std::int64_t depth,
                      std::int64_t count, bool across) {
    // When reading along rows, one panel takes only part of a cache line. So all panels are filled
    // from a few rows while these are in L1.
    const std::int64_t step = across ? depth : kAlongRows;
    for (std::int64_t p = 0; p < depth; p += step) {
        const std::int64_t rows = depth - p < step ? depth - p : step;
        for (std::int64_t i = 0; i < count; i += Width) {
            const int here = count - i < Width ? static_cast<int>(count - i) : Width;
            float* panel = to + i * depth + p * Width;
            if (across) {
                panel_across<Width>(panel, from + i * stride, stride, depth, here);
            } else {
                panel_along<Width>(panel, from + p * stride + i, stride, rows, here);
            }
        }
    }
}

}  // namespace

PackedTile packed_tile() { return {kTileRows, kTileCols}; }

void packed_panels(float* to, const float* from, std::int64_t stride, std::int64_t depth,
                   std::int64_t count, bool across, PanelSide side) {
    if (side == PanelSide::left) {
        panels<kTileRows>(to, from, stride, depth, count, across);
    } else {
        panels<kTileCols>(to, from, stride, depth, count, across);
    }
}

// A panel of `b` stays in L1 while all panels of `a` stream from L2.
void packed_block(const PackedBlock& block) {
    for (std::int64_t col = 0; col < block.cols; col += kTileCols) {
        for (std::int64_t row = 0; row < block.rows; row += kTileRows) {
            tile(block, block.a + row * block.depth, block.b + col * block.depth, row, col);
        }
    }
}

void column_sums(float* sums, const float* x, std::int64_t stride, std::int64_t rows,
                 std::int64_t cols) {
    constexpr std::int64_t kPart = 64;  // rows per partial sum, for precision with many rows
    for (std::int64_t i = 0; i < cols; i += kLanes) {
        const int left = cols - i < kLanes ? static_cast<int>(cols - i) : kLanes;
        Vec total = load_n(sums + i, left);
        for (std::int64_t begin = 0; begin < rows; begin += kPart) {
            const std::int64_t end = begin + kPart < rows ? begin + kPart : rows;
            Vec part = set(0);
            for (std::int64_t r = begin; r < end; ++r) {
                part = add(part, load_n(x + r * stride + i, left));
            }
            total = add(total, part);
        }
        store_n(sums + i, total, left);
    }
}

}  // namespace mr::ops::MR_ISA
