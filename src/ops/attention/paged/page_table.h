// Where the page of a position stands in the table of its sequence: the one rule, which the CPU's
// ops, the kernels and the books of the cache follow. No CUDA header is needed.
#pragma once

#include <cstdint>

namespace mr::ops {

// Tokens of a page of the model's caches. Kernels on a GPU take no other size.
inline constexpr int kPageTokens = 32;

// The table of a sequence is circular: page i of the sequence, which holds the positions
// [i * page_tokens, (i + 1) * page_tokens), has entry i modulo `entries`, a power of two. A
// sequence that has given back the pages before a window goes on for ever in a table of fixed size.
// One that holds all its pages has page i at entry i. Page numbers at other entries mean nothing.
template <typename Int>
constexpr Int table_entry(Int page, Int entries) {
    return page & (entries - 1);
}

// Pages that `positions` neighbouring positions lie in, at most.
constexpr std::int64_t pages_spanned(std::int64_t positions,
                                     std::int64_t page_tokens = kPageTokens) {
    return positions > 0 ? (positions - 2 + page_tokens) / page_tokens + 1 : 0;
}

}  // namespace mr::ops
