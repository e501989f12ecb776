#include "ops/attention/attention_kernels.h"

#include "ops/simd/vec.h"

namespace mr::ops::MR_ISA {
namespace {

// Rows that share the loads of keys and values, and vectors of the output held meanwhile: as many
// as the registers take. Neither changes any bit: every (row, key) and (row, column) has its own
// accumulator and its own order.
#if defined(MR_VEC_AVX2)
constexpr int kRowBlock = 2;
constexpr int kColumns = 4;
#else
constexpr int kRowBlock = 4;
constexpr int kColumns = 4;
#endif

// scores[r][j] = q[r] · k[j] for R rows and K keys from j on: one vector of partial sums over
// head_dim each, then the one tree of sum() and sum4().
template <int R, int K, typename T>
MR_INLINE void score_block(const AttentionTile& tile, int row, const T* keys, int j,
                           float (*scores)[kTileKeys]) {
    const int dim = tile.head_dim;
    Vec acc[R][K];
    for (int r = 0; r < R; ++r) {
        for (int k = 0; k < K; ++k) acc[r][k] = set(0);
    }
    const T* key = keys + static_cast<std::int64_t>(j) * dim;
    const float* q = tile.q + static_cast<std::int64_t>(row) * tile.stride;
    int d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
        Vec kv[K];
        for (int k = 0; k < K; ++k) kv[k] = load(key + static_cast<std::int64_t>(k) * dim + d);
        for (int r = 0; r < R; ++r) {
            const Vec qv = load(q + static_cast<std::int64_t>(r) * tile.stride + d);
            for (int k = 0; k < K; ++k) acc[r][k] = fma(qv, kv[k], acc[r][k]);
        }
    }
    if (d < dim) {
        for (int k = 0; k < K; ++k) {
            const Vec kv = load_part(key + static_cast<std::int64_t>(k) * dim + d, dim - d);
            for (int r = 0; r < R; ++r) {
                const Vec qv = load(q + static_cast<std::int64_t>(r) * tile.stride + d);
                acc[r][k] = fma(qv, kv, acc[r][k]);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        if constexpr (K % 4 == 0) {
            for (int k = 0; k < K; k += 4) {
                sum4(acc[r][k], acc[r][k + 1], acc[r][k + 2], acc[r][k + 3], &scores[r][j + k]);
            }
        } else {
            for (int k = 0; k < K; ++k) scores[r][j + k] = sum(acc[r][k]);
        }
    }
}

template <int R, typename T>
MR_INLINE void score_rows(const AttentionTile& tile, int row, const T* keys, int lo, int hi,
                          float (*scores)[kTileKeys]) {
    constexpr int kKeys = R == 1 ? 8 : 4;
    int j = lo;
    for (; j + kKeys <= hi; j += kKeys) score_block<R, kKeys>(tile, row, keys, j, scores);
    for (; j < hi; ++j) score_block<R, 1>(tile, row, keys, j, scores);
}

// Turns the scores of one row into weights relative to the new maximum and rescales what the row
// has so far. Returns false where the row sees nothing here.
MR_INLINE bool softmax_row(const AttentionTile& tile, int row, float* scores) {
    const int lo = tile.lo[row], hi = tile.hi[row];
    if (lo >= hi) return false;
    const int first = lo / kLanes * kLanes;
    const int last = (hi + kLanes - 1) / kLanes * kLanes;
    for (int j = first; j < lo; ++j) scores[j] = -__builtin_inff();
    for (int j = hi; j < last; ++j) scores[j] = -__builtin_inff();
    Vec best = load(scores + first);
    for (int j = first + kLanes; j < last; j += kLanes) best = max(best, load(scores + j));
    const float old_max = tile.max[row];
    const float tile_max = max_of(best);
    const float new_max = old_max > tile_max ? old_max : tile_max;
    if (new_max == -__builtin_inff()) {  // every score is -inf: no weight anywhere
        for (int j = lo; j < hi; ++j) scores[j] = 0;
        return false;
    }
    // Keys outside [lo, hi) add exact zeros, so the sum does not depend on where the tile was cut.
    Vec total = set(0);
    for (int j = first; j < last; j += kLanes) {
        const Vec weight = exp(sub(load(scores + j), set(new_max)));
        store(scores + j, weight);
        total = add(total, weight);
    }
    if (old_max != new_max) {
        float lanes[kLanes];
        store(lanes, exp(set(old_max - new_max)));
        const Vec correction = set(lanes[0]);
        tile.sum[row] *= lanes[0];
        float* out = tile.out + static_cast<std::int64_t>(row) * tile.stride;
        for (int d = 0; d < tile.stride; d += kLanes)
            store(out + d, mul(load(out + d), correction));
        tile.max[row] = new_max;
    }
    tile.sum[row] += sum(total);
    return true;
}

// out[r] += sum of weights[r][j] * v[j] over keys [lo, hi), in order of j.
template <int R, typename T>
MR_INLINE void add_values(const AttentionTile& tile, int row, const T* values, int lo, int hi,
                          const float (*weights)[kTileKeys]) {
    const int dim = tile.head_dim;
    float* out = tile.out + static_cast<std::int64_t>(row) * tile.stride;
    int d = 0;
    for (; d + kColumns * kLanes <= dim; d += kColumns * kLanes) {
        Vec acc[R][kColumns];
        for (int r = 0; r < R; ++r) {
            for (int c = 0; c < kColumns; ++c) {
                acc[r][c] = load(out + static_cast<std::int64_t>(r) * tile.stride + d + c * kLanes);
            }
        }
        for (int j = lo; j < hi; ++j) {
            const T* value = values + static_cast<std::int64_t>(j) * dim + d;
            Vec vv[kColumns];
            for (int c = 0; c < kColumns; ++c) vv[c] = load(value + c * kLanes);
            for (int r = 0; r < R; ++r) {
                const Vec weight = set(weights[r][j]);
                for (int c = 0; c < kColumns; ++c) acc[r][c] = fma(weight, vv[c], acc[r][c]);
            }
        }
        for (int r = 0; r < R; ++r) {
            for (int c = 0; c < kColumns; ++c) {
                store(out + static_cast<std::int64_t>(r) * tile.stride + d + c * kLanes, acc[r][c]);
            }
        }
    }
    for (; d < dim; d += kLanes) {
        const int left = dim - d;
        Vec acc[R];
        for (int r = 0; r < R; ++r) {
            acc[r] = load(out + static_cast<std::int64_t>(r) * tile.stride + d);
        }
        for (int j = lo; j < hi; ++j) {
            const T* value = values + static_cast<std::int64_t>(j) * dim + d;
            const Vec vv = left >= kLanes ? load(value) : load_part(value, left);
            for (int r = 0; r < R; ++r) acc[r] = fma(set(weights[r][j]), vv, acc[r]);
        }
        for (int r = 0; r < R; ++r) {
            store(out + static_cast<std::int64_t>(r) * tile.stride + d, acc[r]);
        }
    }
}

template <int R, typename T>
MR_INLINE void row_block(const AttentionTile& tile, int row, const T* keys, const T* values) {
    alignas(64) float scores[R][kTileKeys];
    // All keys any of the rows sees are scored; each row then weighs only its own.
    int any_lo = kTileKeys, any_hi = 0, all_lo = 0, all_hi = kTileKeys;
    for (int r = 0; r < R; ++r) {
        const int lo = tile.lo[row + r], hi = tile.hi[row + r];
        all_lo = all_lo > lo ? all_lo : lo;
        all_hi = all_hi < hi ? all_hi : hi;
        if (lo >= hi) continue;
        any_lo = any_lo < lo ? any_lo : lo;
        any_hi = any_hi > hi ? any_hi : hi;
    }
    if (any_lo >= any_hi) return;
    score_rows<R>(tile, row, keys, any_lo, any_hi, scores);
    bool together = all_lo < all_hi;
    bool live[R];
    for (int r = 0; r < R; ++r) {
        live[r] = softmax_row(tile, row + r, scores[r]);
        together = together && live[r];
    }
    if (!together) all_lo = all_hi = 0;
    for (int r = 0; r < R; ++r) {
        const int lo = tile.lo[row + r];
        const int hi = together ? all_lo : tile.hi[row + r];
        if (live[r] && lo < hi) add_values<1>(tile, row + r, values, lo, hi, scores + r);
    }
    if (!together) return;
    add_values<R>(tile, row, values, all_lo, all_hi, scores);
    for (int r = 0; r < R; ++r) {
        const int hi = tile.hi[row + r];
        if (all_hi < hi) add_values<1>(tile, row + r, values, all_hi, hi, scores + r);
    }
}

template <typename T>
void attention_tile(const AttentionTile& tile) {
    const T* keys = static_cast<const T*>(tile.keys);
    const T* values = static_cast<const T*>(tile.values);
    int row = 0;
    for (; row + kRowBlock <= tile.rows; row += kRowBlock) {
        row_block<kRowBlock>(tile, row, keys, values);
    }
    for (; row < tile.rows; ++row) row_block<1>(tile, row, keys, values);
}

}  // namespace

void attention_tile_f32(const AttentionTile& tile) { attention_tile<float>(tile); }
void attention_tile_f16(const AttentionTile& tile) { attention_tile<std::uint16_t>(tile); }

}  // namespace mr::ops::MR_ISA
