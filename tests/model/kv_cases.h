// For tests of the page bookkeeping: a model with one small layer, tokens, and a sequence of them.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "model/kv_cache.h"

namespace mr::test {

inline constexpr int kPage = model::KvCache::kPageTokens;

inline model::ModelSpec one_layer() {
    model::ModelSpec spec;
    spec.layers = 1;
    spec.kv_heads = 1;
    spec.head_dim = 8;
    return spec;
}

inline std::vector<std::int32_t> counted(int tokens, int first = 0) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
    std::iota(ids.begin(), ids.end(), first);
    return ids;
}

// A sequence whose tokens were computed.
inline model::SeqId computed(model::KvCache& cache, const std::vector<std::int32_t>& tokens) {
    const model::SeqId seq = cache.open();
    cache.reserve(seq, static_cast<std::int64_t>(tokens.size()));
    cache.advance(seq, static_cast<std::int64_t>(tokens.size()));
    return seq;
}

}  // namespace mr::test
