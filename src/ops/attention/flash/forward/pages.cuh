// How the Hopper forward's producer copies tiles of keys that lie in the pages of a cache.
#pragma once

#include "core/cuda/tma.cuh"
#include "ops/attention/flash/forward/plan.h"

namespace mr::cuda::flash::forward {

// Where the pages of a tile of keys lie in a cache, as rows of [pages * kv_heads * 32, head_dim]. A
// page of which nobody sees a key is not followed: it lies before the cache's first row, where TMA
// reads nothing and gives zeros, and the entry that is read in its place is another one's.
template <typename S>
struct PageRows {
    int row[S::kPages];
    // `table`: of the sequence, from paged.table on; [lo, hi): what is seen besides the sinks.
    __device__ __forceinline__ PageRows(const PagedKeys& paged, const Problem& p, int table,
                                        int kv_head, int n, int lo, int hi) {
        constexpr int kPage = PagedKeys::kPage;
#pragma unroll
        for (int i = 0; i < S::kPages; ++i) {
            const int key = n + i * kPage, at = PagedKeys::or_seen(p.mask, key, lo, hi);
            const int page = (paged.table[table + at / kPage] * p.kv_heads + kv_head) * kPage;
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
