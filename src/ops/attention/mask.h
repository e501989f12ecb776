// Which keys a query sees: the one definition, from which every attention op on the CPU and the GPU
// takes its bounds. All of it is constexpr and needs no CUDA header, so both g++ and nvcc compile
// it and kernels can call it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace mr::ops {

// Queries and keys have positions in their sequence: keys 0, 1, ... and the last query that of the
// last key. A sequence of `queries` and `keys` has its first query at keys - queries, which is
// negative if there are more queries than keys: such a query is before every key.
struct AttentionMask {
    enum class Kind {
        causal,        // key <= query
        block_causal,  // key's block <= query's block, blocks of `block` positions from `origin`
        full,          // all keys of the sequence so far
        // key's block < query's block, blocks of `block` positions from 0: the known part of a text
        // whose blocks are filled in one after another (model/train/diffusion_attention.cpp). A
        // query of the first block sees nothing. Only for plain tensors (flash/).
        block_before,
    };
    Kind kind = Kind::causal;
    std::int32_t block = 1;
    std::int32_t window = 0;  // > 0: only keys with query - key < window
    std::int32_t sinks = 0;   // the first keys, seen in spite of the window; `kind` still applies
    // Where blocks are counted from: position p lies in block floor((p - origin) / block). It is
    // taken modulo `block`, so the first block, which begins at position 0, may be shorter. Blocks
    // that follow a prompt of any length have its end as their origin.
    std::int32_t origin = 0;

    bool operator==(const AttentionMask&) const = default;
};

// The default factor of the scores: 1 / sqrt(head_dim), in f32, as the models compute it (one ulp
// from the rounded quotient at some sizes, 96 among them).
inline float default_scale(std::int64_t head_dim) {
    return 1 / std::sqrt(static_cast<float>(head_dim));
}

// The definition. Position p sees key j if j < hi(p) and (j >= lo(p) or j < sinks). hi and lo never
// decrease with p. The fields are those of an AttentionMask; without a window `window` is kNever
// and there are no sinks, so that lo() needs no special case. Positions are below 2^30, blocks,
// windows and sinks at most 2^30: ints hold their sums.
struct KeyMask {
    // AttentionMask numbers its kinds in another order. The kernels over pages compare with those
    // numbers, the flash kernels with these: one numbering would change measured machine code.
    // block_before is a block_causal whose `ahead` is 0: kernels need no case for it.
    enum class Kind : std::int32_t { full, causal, block_causal };
    static constexpr int kNever = 1 << 30;

    Kind kind = Kind::full;
    int block = 1;
    int window = kNever;
    int sinks = 0;
    int origin = 0;  // in [0, block): end of the first block if it is shorter
    // Blocks: hi(p) is the begin of the block of p + ahead. With ahead = block - origin (blocks
    // counted from the origin) that is the end of p's own block.
    int ahead = 1;

    constexpr KeyMask() = default;
    constexpr explicit KeyMask(const AttentionMask& m)
        : kind(m.kind == AttentionMask::Kind::causal ? Kind::causal
               : m.kind == AttentionMask::Kind::full ? Kind::full
                                                     : Kind::block_causal),
          block(std::min(m.block, kNever)),
          window(m.window > 0 ? std::min(m.window, kNever) : kNever),
          sinks(m.window > 0 ? std::min(m.sinks, kNever) : 0),
          origin(origin_of(m)),
          ahead(m.kind == AttentionMask::Kind::block_before ? 0 : block - origin) {}

    // No position reaches an origin of kNever: then all lie in one block.
    static constexpr int origin_of(const AttentionMask& m) {
        if (m.kind != AttentionMask::Kind::block_causal || m.block < 1) return 0;
        const int rest = m.origin % m.block, in = rest < 0 ? rest + m.block : rest;
        return in < kNever ? in : 0;
    }

    constexpr int hi(int p, int keys) const {
        if (kind == Kind::full) return keys;
        if (p < 0) return 0;
        const int end = kind == Kind::causal ? p + 1 : (p + ahead) / block * block + origin;
        return std::min(end, keys);
    }
    // Whether every key is seen by some query, in a sequence that has queries: the last query sees
    // all.
    constexpr bool every_key_is_seen() const {
        return window == kNever && (kind != Kind::block_causal || ahead > 0);
    }
    constexpr int lo(int p) const { return std::max(0, p - window + 1); }
    constexpr bool sees(int p, int j, int keys) const {
        return j < hi(p, keys) && (j >= lo(p) || j < sinks);
    }
};

// The keys that a query sees as two ranges that do not overlap: [0, sinks) and [lo, hi), with sinks
// < lo or sinks == 0.
struct VisibleKeys {
    std::int32_t sinks = 0;
    std::int32_t lo = 0, hi = 0;
    constexpr std::int32_t count() const { return sinks + (hi - lo); }
};

// For the query at position `query` of a sequence with keys [0, keys).
constexpr VisibleKeys visible_keys(const AttentionMask& mask, std::int32_t query,
                                   std::int32_t keys) {
    const KeyMask m(mask);
    const std::int32_t hi = m.hi(query, keys), lo = std::min(m.lo(query), hi);
    if (m.sinks >= lo) return {0, 0, hi};  // the window reaches the sinks: one range
    return {m.sinks, lo, hi};
}

}  // namespace mr::ops
