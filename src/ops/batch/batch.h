// A ragged batch as kernels on the GPU read it: everything about positions, tokens and pages lies
// in device memory, so that a captured step can be replayed without the host saying anything.
#pragma once

#include <cstdint>

namespace mr::ops {

struct DeviceBatch {
    int tokens = 0;     // rows of the pass
    int sequences = 0;  // each a run of rows: those of sequence s are [first[s], first[s + 1])
    int max_count = 1;  // no sequence has more rows than this: what grids are sized for
    int max_keys = 0;   // no sequence has more keys than this after the pass
    // Keys of all sequences together, for the account alone; -1: as if all had max_keys.
    std::int64_t total_keys = -1;

    // All in device memory. A sub-batch shares the rows' arrays and moves `first` and `pages`.
    const std::int32_t* ids = nullptr;        // [tokens]
    const std::int32_t* positions = nullptr;  // [tokens]     in their sequence
    const std::int32_t* sequence = nullptr;   // [tokens]     whose row, counted from `first`
    const std::int32_t* first = nullptr;      // [sequences + 1]
    const std::int32_t* pages = nullptr;      // [sequences, max_pages], as ops::BatchSeq::pages
    int max_pages = 0;                        // entries of a table, a power of two

    // Sequences that stream: [sequences, 2] sinks and window of each, 0 and 0 of one that does not;
    // none: no sequence streams. max_keys counts the others alone.
    const std::int32_t* streams = nullptr;
    // [sequences, max_fronts] pages of the positions below the sinks: their entries in `pages` may
    // have been taken by later ones. None: the entries in `pages`.
    const std::int32_t* fronts = nullptr;
    int max_fronts = 0;
    int max_sinks = 0, max_window = 0;  // no sequence has more
};

}  // namespace mr::ops
