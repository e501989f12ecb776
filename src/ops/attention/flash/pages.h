// Where the forward finds keys and values that lie in the pages of a cache.
#pragma once

#include <algorithm>
#include <cstddef>

#include "ops/attention/flash/problem.h"
#include "ops/attention/paged/attention.h"

namespace mr::cuda::flash {

// Head sizes that mma.sync takes over pages: those as long as its tiles are wide.
constexpr bool mma_takes_pages(int head_dim) {
    return head_dim == 64 || head_dim == 80 || head_dim == 96 || head_dim == 128 || head_dim == 256;
}

// Whether a block of mma.sync's forward has the shared memory it wants. Heads
// over 128 want 133 KB; compute capability 8.6, 8.9 and 12.0 give a block 99 KB.
constexpr bool mma_fits(int head_dim, std::size_t shared_per_block) {
    return head_dim <= 128 || shared_per_block >= 133 * 1024;
}

// Keys and values that lie in the pages of a cache, [pages, kv_heads, 32, head_dim], instead of
// plain tensors: Problem::k and v are the caches then, cu_q says which queries are a sequence's,
// and its keys are those up to the position of its last query, at most max_keys. Queries and keys
// of no sequence are not read, and neither are pages without a visible key, nor their entries in
// the table followed.
struct PagedKeys {
    static constexpr int kPage = ops::kPageTokens;
    static constexpr int kAnyToken = Mask::kNever - 1;  // Problem::tokens_k: pages have no order

    // [sequences, max_pages], circular (paged/page_table.h); null: plain tensors.
    const std::int32_t* table = nullptr;
    const std::int32_t* positions = nullptr;  // [tokens_q]
    int max_pages = 0;                        // a power of two
    std::int64_t pages = 0;                   // of the cache

    // For the first key of a page: `key` itself if some query sees a key of that page, else another
    // key below hi. [lo, hi), hi > 0, is what all queries see together besides the sinks. It is
    // written as two limits without a branch: with one, the calling kernel keeps fewer descriptors
    // in uniform registers, and all of its products wait (docs/attention.md).
    static constexpr int or_seen(const Mask& mask, int key, int lo, int hi) {
        if (key + kPage <= lo && key >= mask.sinks) key = lo;
        return key < hi ? key : hi - 1;
    }

    // The keys of a tile to copy, as one range: it holds all visible keys, none of a page without a
    // visible key, and none behind hi.
    struct Part {
        int from;
        unsigned count;
        constexpr bool holds(unsigned key) const {
            return key - static_cast<unsigned>(from) < count;
        }
    };
    // Of the kTile keys from n on; lo and hi as for or_seen().
    template <int kTile>
    static constexpr Part part(const Mask& mask, int n, int lo, int hi) {
        static_assert(kTile <= 2 * kPage, "between sinks and window a third page would be copied");
        const int from = n < mask.sinks ? 0 : std::max(0, lo - n);
        const int end = (n + kTile > lo ? hi : mask.sinks) - n;
        return {from, static_cast<unsigned>(std::max(0, end - from))};
    }

    // As Problem::sequence(), for a batch that need not begin with the first query.
    constexpr Sequence sequence(const Problem& p, int i) const {
        if (!table) return p.sequence(i);
        const int q = p.cu_q[i], queries = p.cu_q[i + 1] - q;
        if (queries <= 0) return {};
        const int keys = positions[q + queries - 1] + 1;
        return {q, 0, queries, keys < p.max_keys ? (keys < 0 ? 0 : keys) : p.max_keys};
    }
};

}  // namespace mr::cuda::flash
