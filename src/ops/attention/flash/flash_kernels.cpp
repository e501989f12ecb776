#include "ops/attention/flash/flash_kernels.h"

#include "ops/attention/paged/tiles.inl"

namespace mr::ops::MR_ISA {
namespace {

static_assert(kBlockRows == kTileKeys, "weights by row and by key are the same square");

// The weights of a tile, by key, because dk and dv are sums over rows: [kTileKeys][kBlockRows], 0
// if the row does not see the key.
struct ByKey {
    alignas(64) float p[kTileKeys][kBlockRows];
    alignas(64) float ds[kTileKeys][kBlockRows];
};

// From the scores s and the products dp = dout · v of one row, computes the weights P = exp(s -
// lse) and dS = P * (dp - delta), stored in dp; both are 0 for keys of [first, last) outside [lo,
// hi). first and last are multiples of a vector.
MR_INLINE void weigh_row(const FlashBackwardTile& tile, int row, int first, int last, float* s,
                         float* dp) {
    const int lo = tile.lo[row], hi = tile.hi[row];
    const auto hide = [&](int begin, int end) {
        for (int j = begin; j < end; ++j) {
            s[j] = -__builtin_inff();
            dp[j] = 0;
        }
    };
    if (lo < hi) {
        hide(first, lo);
        hide(hi, last);
    } else {
        hide(first, last);
    }
    // A row that sees nothing may have any lse; its scores stay -inf.
    const Vec lse = set(lo < hi ? tile.lse[row] : 0.0f);
    const Vec delta = set(lo < hi ? tile.delta[row] : 0.0f);
    for (int j = first; j < last; j += kLanes) {
        const Vec p = exp(sub(load(s + j), lse));
        store(s + j, p);
        store(dp + j, mul(p, sub(load(dp + j), delta)));
    }
}

// Rows [row, row + R): fills their columns of by_key and adds dS · K to their dq.
template <int R>
MR_INLINE void row_block(const FlashBackwardTile& tile, int row, int lo, int hi, ByKey& by_key) {
    alignas(64) float s[R][kTileKeys];
    alignas(64) float dp[R][kTileKeys];
    const int first = lo / kLanes * kLanes;
    const int last = (hi + kLanes - 1) / kLanes * kLanes;
    const std::int64_t at = static_cast<std::int64_t>(row) * tile.stride;
    dot_rows<R>(tile.q + at, tile.stride, tile.keys, tile.key_stride, tile.head_dim, lo, hi, s);
    dot_rows<R>(tile.dout + at, tile.stride, tile.values, tile.value_stride, tile.head_dim, lo, hi,
                dp);
    for (int r = 0; r < R; ++r) {
        weigh_row(tile, row + r, first, last, s[r], dp[r]);
        if constexpr (R == 4) continue;
        for (int j = lo; j < hi; ++j) {
            by_key.p[j][row + r] = s[r][j];
            by_key.ds[j][row + r] = dp[r][j];
        }
    }
    if constexpr (R == 4) {  // whole vectors of keys: those outside of [lo, hi) weigh 0
        for (int j = first; j < last; j += 4) {
            transpose4(&by_key.p[j][row], kBlockRows, &s[0][j], kTileKeys);
            transpose4(&by_key.ds[j][row], kBlockRows, &dp[0][j], kTileKeys);
        }
    }
    add_weighted<R>(tile.dq + at, tile.stride, tile.keys, tile.key_stride, tile.head_dim, lo, hi,
                    dp);
}

// Keys [key, key + K): dv += Pᵀ · dout and dk += dSᵀ · q over the rows that see one of them.
template <int K>
MR_INLINE void key_block(const FlashBackwardTile& tile, int key, const ByKey& by_key) {
    int first = tile.rows, last = 0;
    for (int r = 0; r < tile.rows; ++r) {
        const int lo = tile.lo[r] > key ? tile.lo[r] : key;
        const int hi = tile.hi[r] < key + K ? tile.hi[r] : key + K;
        if (lo >= hi) continue;
        first = first < r ? first : r;
        last = r + 1;
    }
    if (first >= last) return;
    add_weighted<K>(tile.dv + key * tile.dv_stride, tile.dv_stride, tile.dout, tile.stride,
                    tile.head_dim, first, last, by_key.p + key);
    add_weighted<K>(tile.dk + key * tile.dk_stride, tile.dk_stride, tile.q, tile.stride,
                    tile.head_dim, first, last, by_key.ds + key);
}

}  // namespace

void flash_backward_tile(const FlashBackwardTile& tile) {
    int any_lo = kTileKeys, any_hi = 0;
    for (int r = 0; r < tile.rows; ++r) {
        if (tile.lo[r] >= tile.hi[r]) continue;
        any_lo = any_lo < tile.lo[r] ? any_lo : tile.lo[r];
        any_hi = any_hi > tile.hi[r] ? any_hi : tile.hi[r];
    }
    if (any_lo >= any_hi) return;
    // Each block of rows walks over the keys that one of its rows sees; the others have weight 0.
    ByKey by_key;
    for (int j = any_lo; j < any_hi; ++j) {
        for (int r = 0; r < tile.rows; ++r) by_key.p[j][r] = by_key.ds[j][r] = 0;
    }
    const auto block = [&](int row, int rows, auto run) {
        int lo = kTileKeys, hi = 0;
        for (int r = row; r < row + rows; ++r) {
            if (tile.lo[r] >= tile.hi[r]) continue;
            lo = lo < tile.lo[r] ? lo : tile.lo[r];
            hi = hi > tile.hi[r] ? hi : tile.hi[r];
        }
        if (lo < hi) run(lo, hi);
    };
    int row = 0;
    for (; row + kRowBlock <= tile.rows; row += kRowBlock) {
        block(row, kRowBlock,
              [&](int lo, int hi) { row_block<kRowBlock>(tile, row, lo, hi, by_key); });
    }
    for (; row < tile.rows; ++row) {
        block(row, 1, [&](int lo, int hi) { row_block<1>(tile, row, lo, hi, by_key); });
    }
    int key = any_lo;
    for (; key + kRowBlock <= any_hi; key += kRowBlock) key_block<kRowBlock>(tile, key, by_key);
    for (; key < any_hi; ++key) key_block<1>(tile, key, by_key);
}

}  // namespace mr::ops::MR_ISA
