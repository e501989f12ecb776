// How the producer of the Hopper forward copies tiles of keys from the pages of a cache.
#pragma once

#include "core/cuda/tma.cuh"
#include "ops/attention/flash/forward/plan.h"

namespace mr::cuda::flash::forward {

// The pages of a tile of keys as rows of the cache [pages * kv_heads * 32, head_dim]. The entry of
// a page without a visible key is not followed: another entry is read in its place, and the page
// gets a row before the cache's first, where TMA reads nothing and gives zeros.
template <typename S>
struct PageRows {
    int row[S::kPages];
    // `table` is the offset of the sequence in paged.table; [lo, hi) is visible besides the sinks.
    __device__ __forceinline__ PageRows(const PagedKeys& paged, const Problem& p, int table,
                                        int kv_head, int n, int lo, int hi) {
        constexpr int kPage = PagedKeys::kPage;
#pragma unroll
        for (int i = 0; i < S::kPages; ++i) {
            const int key = n + i * kPage, at = PagedKeys::or_seen(p.mask, key, lo, hi);
            const int entry = ops::table_entry(at / kPage, paged.max_pages);
            const int page = (paged.table[table + entry] * p.kv_heads + kv_head) * kPage;
            row[i] = at == key ? page : -kPage;
        }
    }
    __device__ __forceinline__ void copy(unsigned to, const CUtensorMap& map,
                                         unsigned barrier) const {
#pragma unroll
        for (int j = 0; j < S::kPanels; ++j) {
#pragma unroll
            for (int i = 0; i < S::kPages; ++i) {
                copy_box(to + (j * S::kKeys + i * PagedKeys::kPage) * 128, map, 64 * j, 0, row[i],
                         barrier);
            }
        }
    }
};

}  // namespace mr::cuda::flash::forward
