// Fed rows on the device: how they advance from step to step, and how one is removed.
#pragma once

#include <cstdint>

#include "core/cuda/kernel.cuh"
#include "model/kv_cache.h"
#include "ops/sample/sample_cuda.h"

namespace mr::model::rows {

// The state that advances. A row with a ring of pages that enters a new page takes the table entry
// of the page that leaves the window (KvCache::try_reserve follows the same rule).
struct Rows {
    std::int32_t* positions;  // [rows]
    std::int32_t* pages;      // [rows, max_pages]
    int2* circles;            // [rows]
    int max_pages;
    // Null if no sequence streams.
    int2* streams;         // [rows]
    std::int32_t* fronts;  // [rows, max_fronts], or none
    int max_fronts;
};

inline __global__ void advance_kernel(const Rows rows, const cuda::SampleRow* sample, int count) {
    cuda::wait_for_previous();
    cuda::let_next_start();
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= count || !sample[i].active) return;
    const int position = rows.positions[i] + 1, page = position / KvCache::kPageTokens;
    const int2 circle = rows.circles[i];
    rows.positions[i] = position;
    if (page < circle.x || position % KvCache::kPageTokens != 0) return;
    std::int32_t* const table = rows.pages + static_cast<std::int64_t>(i) * rows.max_pages;
    table[ops::table_entry(page, rows.max_pages)] =
        table[ops::table_entry(page - circle.y, rows.max_pages)];
}

// Moves position and pages of row `last` to row `hole`; row `last` becomes idle: one key, in the
// spare page.
inline __global__ void leave_kernel(const Rows rows, int hole, int last, std::int32_t spare) {
    cuda::wait_for_previous();
    std::int32_t* const from = rows.pages + static_cast<std::int64_t>(last) * rows.max_pages;
    std::int32_t* const to = rows.pages + static_cast<std::int64_t>(hole) * rows.max_pages;
    if (hole != last) {
        for (int i = static_cast<int>(threadIdx.x); i < rows.max_pages;
             i += static_cast<int>(blockDim.x)) {
            to[i] = from[i];
        }
        for (int i = static_cast<int>(threadIdx.x); i < rows.max_fronts;
             i += static_cast<int>(blockDim.x)) {
            rows.fronts[static_cast<std::int64_t>(hole) * rows.max_fronts + i] =
                rows.fronts[static_cast<std::int64_t>(last) * rows.max_fronts + i];
        }
        if (threadIdx.x == 0) {
            rows.positions[hole] = rows.positions[last];
            rows.circles[hole] = rows.circles[last];
            if (rows.streams) rows.streams[hole] = rows.streams[last];
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        rows.positions[last] = 0;
        if (rows.streams) rows.streams[last] = int2{0, 0};
        from[0] = spare;
    }
}

}  // namespace mr::model::rows
