// Which keys a query sees. Every attention op, on the CPU and on the GPU, means the same by it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace mr::ops {

// Queries and keys have positions in their sequence: keys 0, 1, ... and the last query that of the
// last key. A sequence of `queries` and `keys` has its first query at keys - queries, which is
// negative where there are more queries than keys: such a query stands before every key.
struct AttentionMask {
    enum class Kind {
        causal,        // key <= query
        block_causal,  // key's block <= query's block, blocks of `block` positions
        full,          // all keys of the sequence so far
    };
    Kind kind = Kind::causal;
    std::int32_t block = 1;
    std::int32_t window = 0;  // > 0: only keys with query - key < window
    std::int32_t sinks = 0;   // the first keys that the window leaves visible; `kind` still holds

    bool operator==(const AttentionMask&) const = default;
};

// What scores are multiplied with where nobody says otherwise: 1 / sqrt(head_dim), in f32, as the
// models compute it (one ulp from the rounded quotient at some sizes, 96 among them).
inline float default_scale(std::int64_t head_dim) {
    return 1 / std::sqrt(static_cast<float>(head_dim));
}

// What a query sees: keys [0, sinks) and [lo, hi), and sinks < lo unless it is 0.
struct VisibleKeys {
    std::int32_t sinks = 0;
    std::int32_t lo = 0, hi = 0;
    std::int32_t count() const { return sinks + (hi - lo); }
};

// For the query at position `query` of a sequence with keys [0, keys).
inline VisibleKeys visible_keys(const AttentionMask& mask, std::int32_t query, std::int32_t keys) {
    std::int64_t hi = keys;
    if (mask.kind == AttentionMask::Kind::causal) {
        hi = std::int64_t{query} + 1;
    } else if (mask.kind == AttentionMask::Kind::block_causal) {
        hi = query < 0 ? 0 : (std::int64_t{query} / mask.block + 1) * mask.block;
    }
    VisibleKeys out;
    out.hi = static_cast<std::int32_t>(std::clamp<std::int64_t>(hi, 0, keys));
    if (mask.window > 0) {
        const std::int64_t lo = std::int64_t{query} - mask.window + 1;
        out.lo = static_cast<std::int32_t>(std::clamp<std::int64_t>(lo, 0, out.hi));
    }
    if (mask.sinks >= out.lo) {
        out.lo = 0;  // the window still reaches the sinks: one range
    } else {
        out.sinks = mask.sinks;
    }
    return out;
}

}  // namespace mr::ops
