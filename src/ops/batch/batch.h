// A ragged batch as GPU kernels read it: positions, tokens and pages are in device memory, so that
// a captured step can be replayed without any input from the host.
#pragma once

#include <cstdint>

namespace mr::ops {

struct DeviceBatch {
    int tokens = 0;     // rows of the pass
    int sequences = 0;  // each a range of rows: sequence s has rows [first[s], first[s + 1])
    int max_count = 1;  // most rows of a sequence; grids are sized by it
    int max_keys = 0;   // most keys of a sequence after the pass
    // Keys of all sequences together, for the ledger only; -1: as if all had max_keys.
    std::int64_t total_keys = -1;

    // All in device memory. A sub-batch shares the arrays by row, with its own `first` and `pages`.
    const std::int32_t* ids = nullptr;        // [tokens]
    const std::int32_t* positions = nullptr;  // [tokens]     in their sequence
    const std::int32_t* sequence = nullptr;   // [tokens]     row's sequence, from `first` on
    const std::int32_t* first = nullptr;      // [sequences + 1]
    const std::int32_t* pages = nullptr;      // [sequences, max_pages], as ops::BatchSeq::pages
    int max_pages = 0;                        // entries of a table, a power of two

    // Streaming sequences: [sequences, 2] sinks and window of each, 0 and 0 if it does not stream;
    // null: no sequence streams. max_keys is for the others only.
    const std::int32_t* streams = nullptr;
    // [sequences, max_fronts] pages of the positions below the sinks: their entries in `pages` may
    // have been overwritten by later pages. Null: use the entries in `pages`.
    const std::int32_t* fronts = nullptr;
    int max_fronts = 0;
    int max_sinks = 0, max_window = 0;  // the largest of any sequence
};

}  // namespace mr::ops
