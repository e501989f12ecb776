// How fast this machine's memory can be read: the upper limit of a decode step.
#pragma once

#include <cstddef>
#include <limits>

#include "core/thread_pool.h"

namespace mr::observe {

struct Bandwidth {
    double best = 0;    // bytes per second in the fastest pass; utilisation is relative to this
    double median = 0;  // ... in the median pass
    int passes = 0;
    std::size_t buffer_bytes = 0;
    int threads = 0;
};

// Sums a buffer of `bytes` (0: read_buffer_bytes()) over and over for about `seconds`, at least
// three times, with every thread of the pool, or one for each core if the pool has more: those
// would wait for each other, not for the memory. Plain wide loads; no prefetch or non-temporal
// hints.
// If `bytes` is 0: at most `most` bytes, and a result of zeros if there is no memory for a buffer
// larger than the caches.
Bandwidth measure_read_bandwidth(ThreadPool& pool, std::size_t bytes = 0, double seconds = 0.5,
                                 std::size_t most = std::numeric_limits<std::size_t>::max());

// Buffer limit for a quick look at the machine; a real measurement takes more where caches are
// large. If the last-level cache is about this size or larger, it holds the buffer, and the figure
// is the cache's speed rather than the memory's.
inline constexpr std::size_t kQuickLookBytes = std::size_t{128} << 20;

// A buffer no cache can hold: four times the last-level cache, at least 64 MiB (256 if the cache
// size is unknown), at most an eighth of the memory.
std::size_t read_buffer_bytes();

// Bytes of the largest cache that the first core sees; 0 if unknown.
std::size_t last_level_cache_bytes();

}  // namespace mr::observe
