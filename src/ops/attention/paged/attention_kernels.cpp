#include "ops/attention/paged/attention_kernels.h"

#include "ops/attention/paged/tiles.inl"

namespace mr::ops::MR_ISA {
namespace {

// Replaces the scores of one row by weights relative to the new maximum and rescales the row's
// previous sums. Returns false if the row sees nothing here.
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
    if (new_max == -__builtin_inff()) {  // no weight at all, or NaN, which x86's max drops
        for (int j = lo; j < hi; ++j) {
            if (scores[j] != scores[j]) tile.sum[row] = scores[j];  // makes the row's result NaN
            scores[j] = 0;
        }
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

template <int R, typename T>
MR_INLINE void add_values(const AttentionTile& tile, int row, const T* values, int lo, int hi,
                          const float (*weights)[kTileKeys]) {
    add_weighted<R>(tile.out + static_cast<std::int64_t>(row) * tile.stride, tile.stride, values,
                    tile.value_stride, tile.head_dim, lo, hi, weights);
}

template <int R, typename T>
MR_INLINE void row_block(const AttentionTile& tile, int row, const T* keys, const T* values) {
    alignas(64) float scores[R][kTileKeys];
    // All keys that any of the rows sees are scored; each row then weighs only its own.
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
    const float* q = tile.q + static_cast<std::int64_t>(row) * tile.stride;
    dot_rows<R>(q, tile.stride, keys, tile.key_stride, tile.head_dim, any_lo, any_hi, scores);
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
    if constexpr (kRowBlock > 2) {  // a token with two heads per group
        for (; row + 2 <= tile.rows; row += 2) row_block<2>(tile, row, keys, values);
    }
    for (; row < tile.rows; ++row) row_block<1>(tile, row, keys, values);
}

}  // namespace

void attention_tile_f32(const AttentionTile& tile) { attention_tile<float>(tile); }
void attention_tile_f16(const AttentionTile& tile) { attention_tile<std::uint16_t>(tile); }

}  // namespace mr::ops::MR_ISA
