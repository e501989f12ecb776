// Shared by the CPU's attention ops: blocks of query rows that walk over the keys together.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include "ops/attention/mask.h"
#include "ops/attention/paged/attention_kernels.h"

namespace mr::ops {

inline constexpr int kVectorFloats = 16;  // the widest vector of any path

// Row length in scratch, padded with zeros so that kernels read whole vectors.
inline int padded_dim(int head_dim) {
    return (head_dim + kVectorFloats - 1) / kVectorFloats * kVectorFloats;
}

// Keys [first, stop) of a sequence, at most kTileKeys, and the addresses of keys and values.
struct KeyTile {
    std::int64_t first = 0, stop = 0;
    const void* keys = nullptr;
    const void* values = nullptr;
};

// Calls visit(tile, lo, hi, sinks) for every tile that some row sees, sinks first and then the
// rest, each in order; row r sees keys [lo[r], hi[r]) of the tile, nothing if lo[r] >= hi[r].
// locate(key) gives the tile that holds a key. Tile boundaries must not depend on the rows, so that
// the bits of a row do not depend on its neighbours.
template <typename Locate, typename Visit>
void for_each_tile(std::span<const VisibleKeys> rows, Locate&& locate, Visit&& visit) {
    std::int32_t lo[kBlockRows], hi[kBlockRows];
    for (const bool sinks : {true, false}) {
        const auto begin_of = [&](const VisibleKeys& row) { return sinks ? 0 : row.lo; };
        const auto end_of = [&](const VisibleKeys& row) { return sinks ? row.sinks : row.hi; };
        std::int64_t key = std::numeric_limits<std::int32_t>::max(), end = 0;
        for (const VisibleKeys& row : rows) {
            if (begin_of(row) >= end_of(row)) continue;
            key = std::min<std::int64_t>(key, begin_of(row));
            end = std::max<std::int64_t>(end, end_of(row));
        }
        while (key < end) {
            const KeyTile tile = locate(key);
            for (std::size_t r = 0; r < rows.size(); ++r) {
                lo[r] = static_cast<std::int32_t>(
                    std::max<std::int64_t>(0, begin_of(rows[r]) - tile.first));
                hi[r] = static_cast<std::int32_t>(
                    std::min<std::int64_t>(tile.stop, end_of(rows[r])) - tile.first);
            }
            visit(tile, lo, hi, sinks);
            key = tile.stop;
        }
    }
}

// Up to kBlockRows queries of one kv head, or of several with equal shares, and their running
// softmax.
class RowBlock {
  public:
    static std::size_t scratch_bytes(int head_dim) {
        // q, q of sinks and out [kBlockRows, padded], max and sum [kBlockRows]
        const auto floats = static_cast<std::size_t>(kBlockRows) *
                            (3 * static_cast<std::size_t>(padded_dim(head_dim)) + 2);
        return (floats * sizeof(float) + 63) / 64 * 64;
    }
    // `scratch` begins at a multiple of 64.
    RowBlock(std::byte* scratch, int head_dim) : dim_(head_dim), stride_(padded_dim(head_dim)) {
        q_ = reinterpret_cast<float*>(scratch);
        sinks_q_ = q_ + std::ptrdiff_t{kBlockRows} * stride_;
        out_ = sinks_q_ + std::ptrdiff_t{kBlockRows} * stride_;
        max_ = out_ + std::ptrdiff_t{kBlockRows} * stride_;
        sum_ = max_ + kBlockRows;
    }

    // sinks_q: the query for the sinks; none: q.
    void add(const float* q, float scale, const VisibleKeys& keys, const float* sinks_q = nullptr) {
        const auto put = [&](float* rows, const float* from) {
            float* to = rows + std::ptrdiff_t{rows_} * stride_;
            for (int d = 0; d < dim_; ++d) to[d] = from[d] * scale;
            std::fill(to + dim_, to + stride_, 0.0f);
        };
        put(q_, q);
        if (keys.sinks > 0) put(sinks_q_, sinks_q ? sinks_q : q);
        std::fill_n(out_ + std::ptrdiff_t{rows_} * stride_, stride_, 0.0f);
        max_[rows_] = -std::numeric_limits<float>::infinity();
        sum_[rows_] = 0;
        visible_[rows_++] = keys;
    }

    // Strides in elements, from one key (value) to the next. Rows are of `heads` kv heads, in
    // order, whose tiles are `head_bytes` apart.
    template <typename Kernel, typename Locate>
    void attend(Kernel kernel, std::int64_t key_stride, std::int64_t value_stride, Locate&& locate,
                int heads = 1, std::size_t head_bytes = 0) {
        AttentionTile tile{.rows = rows_ / heads,
                           .head_dim = dim_,
                           .stride = stride_,
                           .key_stride = key_stride,
                           .value_stride = value_stride};
        for_each_tile(
            {visible_, static_cast<std::size_t>(rows_)}, locate,
            [&](const KeyTile& keys, const std::int32_t* lo, const std::int32_t* hi, bool sinks) {
                for (int head = 0; head < heads; ++head) {
                    const int row = head * tile.rows;
                    const std::ptrdiff_t at = std::ptrdiff_t{row} * stride_;
                    const std::size_t bytes = static_cast<std::size_t>(head) * head_bytes;
                    tile.q = (sinks ? sinks_q_ : q_) + at;
                    tile.keys = static_cast<const std::byte*>(keys.keys) + bytes;
                    tile.values = static_cast<const std::byte*>(keys.values) + bytes;
                    tile.lo = lo + row;
                    tile.hi = hi + row;
                    tile.max = max_ + row;
                    tile.sum = sum_ + row;
                    tile.out = out_ + at;
                    kernel(tile);
                }
            });
    }

    // Stores row r, in the order of add(); zeros and -infinity if it saw no weight.
    void store(int r, float* out) const {
        const float* from = out_ + std::ptrdiff_t{r} * stride_;
        const float factor = sum_[r] == 0 ? 0.0f : 1.0f / sum_[r];
        for (int d = 0; d < dim_; ++d) out[d] = from[d] * factor;
    }
    float log_sum_exp(int r) const {
        return sum_[r] == 0 ? -std::numeric_limits<float>::infinity() : max_[r] + std::log(sum_[r]);
    }

  private:
    int dim_, stride_, rows_ = 0;
    float *q_, *sinks_q_, *out_, *max_, *sum_;
    VisibleKeys visible_[kBlockRows];
};

}  // namespace mr::ops
