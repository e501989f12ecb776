// The two products of attention's tiles, only for *_kernels.cpp: dot products of rows, and weighted
// sums of rows. Forward and backward are built from them.
#pragma once

#include "ops/attention/paged/attention_kernels.h"
#include "ops/simd/vec.h"

namespace mr::ops::MR_ISA {
namespace {

// Rows that share loads of the other side, keys scored together, and output vectors held meanwhile:
// as many as the registers hold. None of them changes any bit: every (row, key) and (row, column)
// has its own accumulator and its own order.
#if defined(MR_VEC_AVX2)
constexpr int kRowBlock = 2;
#else
constexpr int kRowBlock = 4;
#endif
constexpr int kColumns = 4;
#if defined(MR_VEC_NEON)  // 32 registers; a head of 32 takes eight of them
template <int R>
constexpr int kKeysOf = R <= 2 ? 8 : 4;
template <int R>
constexpr int kWideColumnsOf = R <= 2 ? 8 : 0;  // taken first; 0: none
#else
template <int R>
constexpr int kKeysOf = R == 1 ? 8 : 4;
template <int R>
constexpr int kWideColumnsOf = 0;
#endif

// dots[r][j] = a[r] · b[j] for R rows and K keys from j on: one vector of partial sums over dim
// each, then the one tree of sum() and sum4(). Rows of a are padded with zeros to whole vectors.
template <int R, int K, typename T>
MR_INLINE void dot_block(const float* a, std::int64_t a_stride, const T* b, std::int64_t b_stride,
                         int dim, int j, float (*dots)[kTileKeys]) {
    Vec acc[R][K];
    for (int r = 0; r < R; ++r) {
        for (int k = 0; k < K; ++k) acc[r][k] = set(0);
    }
    const T* key = b + j * b_stride;
    int d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
        Vec kv[K];
        for (int k = 0; k < K; ++k) kv[k] = load(key + k * b_stride + d);
        for (int r = 0; r < R; ++r) {
            const Vec av = load(a + r * a_stride + d);
            for (int k = 0; k < K; ++k) acc[r][k] = fma(av, kv[k], acc[r][k]);
        }
    }
    if (d < dim) {
        for (int k = 0; k < K; ++k) {
            const Vec kv = load_part(key + k * b_stride + d, dim - d);
            for (int r = 0; r < R; ++r) {
                acc[r][k] = fma(load(a + r * a_stride + d), kv, acc[r][k]);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        if constexpr (K % 4 == 0) {
            for (int k = 0; k < K; k += 4) {
                sum4(acc[r][k], acc[r][k + 1], acc[r][k + 2], acc[r][k + 3], &dots[r][j + k]);
            }
        } else {
            for (int k = 0; k < K; ++k) dots[r][j + k] = sum(acc[r][k]);
        }
    }
}

// As dot_block, for keys [lo, hi).
template <int R, typename T>
MR_INLINE void dot_rows(const float* a, std::int64_t a_stride, const T* b, std::int64_t b_stride,
                        int dim, int lo, int hi, float (*dots)[kTileKeys]) {
    constexpr int kKeys = kKeysOf<R>;
    int j = lo;
    for (; j + kKeys <= hi; j += kKeys) {
        dot_block<R, kKeys>(a, a_stride, b, b_stride, dim, j, dots);
    }
    for (; j < hi; ++j) dot_block<R, 1>(a, a_stride, b, b_stride, dim, j, dots);
}

// out[r] += sum of weights[r][j] * in[j] over j in [lo, hi), in order of j: C vectors of columns.
template <int R, int C, typename T>
MR_INLINE void add_columns(float* out, std::int64_t out_stride, const T* in, std::int64_t in_stride,
                           int lo, int hi, const float (*weights)[kTileKeys]) {
    Vec acc[R][C];
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) acc[r][c] = load(out + r * out_stride + c * kLanes);
    }
    for (int j = lo; j < hi; ++j) {
        const T* value = in + j * in_stride;
        Vec vv[C];
        for (int c = 0; c < C; ++c) vv[c] = load(value + c * kLanes);
        for (int r = 0; r < R; ++r) {
            const Vec weight = set(weights[r][j]);
            for (int c = 0; c < C; ++c) acc[r][c] = fma(weight, vv[c], acc[r][c]);
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) store(out + r * out_stride + c * kLanes, acc[r][c]);
    }
}

// As add_columns, for all `dim` columns.
template <int R, typename T>
MR_INLINE void add_weighted(float* out, std::int64_t out_stride, const T* in,
                            std::int64_t in_stride, int dim, int lo, int hi,
                            const float (*weights)[kTileKeys]) {
    int d = 0;
    if constexpr (constexpr int kWide = kWideColumnsOf<R>; kWide > 0) {
        for (; d + kWide * kLanes <= dim; d += kWide * kLanes) {
            add_columns<R, kWide>(out + d, out_stride, in + d, in_stride, lo, hi, weights);
        }
    }
    for (; d + kColumns * kLanes <= dim; d += kColumns * kLanes) {
        add_columns<R, kColumns>(out + d, out_stride, in + d, in_stride, lo, hi, weights);
    }
    for (; d < dim; d += kLanes) {
        const int left = dim - d;
        Vec acc[R];
        for (int r = 0; r < R; ++r) acc[r] = load_n(out + r * out_stride + d, left);
        for (int j = lo; j < hi; ++j) {
            const T* value = in + j * in_stride + d;
            const Vec vv = left >= kLanes ? load(value) : load_part(value, left);
            for (int r = 0; r < R; ++r) acc[r] = fma(set(weights[r][j]), vv, acc[r]);
        }
        for (int r = 0; r < R; ++r) store_n(out + r * out_stride + d, acc[r], left);
    }
}

}  // namespace
}  // namespace mr::ops::MR_ISA
