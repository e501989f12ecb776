// Where the forward finds keys and values that lie in the pages of a cache.
#pragma once

#include <algorithm>

#include "ops/attention/flash/problem.h"
#include "ops/attention/paged/attention.h"

namespace mr::cuda::flash {

// Keys and values that lie in the pages of a cache, [pages, kv_heads, 32, head_dim], instead of
// plain tensors: Problem::k and v are the caches then, cu_q says which queries are a sequence's,
// and its keys are those up to the position of its last query, at most max_keys. Queries and keys
// that nobody has are not read, nor pages of which nobody sees a key, nor their entries followed.
struct PagedKeys {
    static constexpr int kPage = ops::kPageTokens;
    static constexpr int kAnyToken = Mask::kNever - 1;  // Problem::tokens_k: pages have no order

    const std::int32_t* table = nullptr;      // [sequences, max_pages]; null: plain tensors
    const std::int32_t* positions = nullptr;  // [tokens_q]
    int max_pages = 0;
    std::int64_t pages = 0;  // of the cache

    // `key`, where a page begins, if somebody sees a key of that page, where all together see
    // [lo, hi) and what there is of the sinks before hi > 0; else another key before hi. Two limits
    // and not a question: with a branch the kernel that calls this keeps fewer addresses in the
    // registers of its warps, and all of its products wait (docs/attention.md).
    static constexpr int or_seen(const Mask& mask, int key, int lo, int hi) {
        if (key + kPage <= lo && key >= mask.sinks) key = lo;
        return key < hi ? key : hi - 1;
    }

    // What of a tile's keys is worth copying, as one range: all that somebody sees, nothing of a
    // page that nobody does, nothing behind hi.
    struct Part {
        int from;
        unsigned count;
        constexpr bool holds(unsigned key) const {
            return key - static_cast<unsigned>(from) < count;
        }
    };
    // Of the kTile keys from n on, where all together see what or_seen() says.
    template <int kTile>
    static constexpr Part part(const Mask& mask, int n, int lo, int hi) {
        static_assert(kTile <= 2 * kPage, "between sinks and window a third page would be copied");
        const int from = n < mask.sinks ? 0 : std::max(0, lo - n);
        const int end = (n + kTile > lo ? hi : mask.sinks) - n;
        return {from, static_cast<unsigned>(std::max(0, end - from))};
    }

    // As Problem::sequence(), of a batch that need not begin with the first query.
    constexpr Sequence sequence(const Problem& p, int i) const {
        if (!table) return p.sequence(i);
        const int q = p.cu_q[i], queries = p.cu_q[i + 1] - q;
        if (queries <= 0) return {};
        const int keys = positions[q + queries - 1] + 1;
        return {q, 0, queries, keys < p.max_keys ? (keys < 0 ? 0 : keys) : p.max_keys};
    }
};

}  // namespace mr::cuda::flash
