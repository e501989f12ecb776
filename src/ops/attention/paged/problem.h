// The checks of a call of attention over a paged cache on the GPU. The file compiles with and
// without CUDA, so that they are tested without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/attention/paged/attention.h"
#include "ops/batch/batch.h"

namespace mr::cuda::attn {

inline constexpr int kPageKeys = ops::kPageTokens;
inline constexpr int kMaxDim = 256;
// Positions, keys and rows are counted in ints, with room to add a window or a tile to one.
inline constexpr std::int64_t kMostCounted = std::int64_t{1} << 30;

// KeyMask::lo() and KeyMask::hi() for the kernels over pages, which hold an AttentionMask.
// seen_from() has a case for masks without a window. seen_to() has none for positions before the
// first key, where it may be negative. With the functions of KeyMask the decode kernel of head size
// 96 spills a register (nvcc 13.0). mask_test.cpp compares these with KeyMask. The mask comes from
// for_kernels(): a block of at most 2^30, an origin in [0, block).
constexpr ops::AttentionMask for_kernels(const ops::AttentionMask& mask) {
    const ops::KeyMask numbers(mask);
    ops::AttentionMask out = mask;
    out.block = numbers.block;
    out.origin = numbers.origin;
    out.sinks = mask.window > 0 ? mask.sinks : 0;  // without a window all is seen anyway
    return out;
}
constexpr int seen_from(int window, int first, int position) {  // no keys below `first`
    return window > 0 ? std::max(first, position - window + 1) : 0;
}
constexpr int seen_to(const ops::AttentionMask& mask, int keys, int position) {
    int end = keys;
    if (mask.kind == ops::AttentionMask::Kind::causal) {
        end = position + 1;
    } else if (mask.kind == ops::AttentionMask::Kind::block_causal) {
        end = (position - mask.origin + mask.block) / mask.block * mask.block + mask.origin;
    }
    return std::min(end, keys);
}

// The rows that a batch may have: a sub-batch shares its arrays with other rows.
inline std::int64_t rows_of(const ops::DeviceBatch& batch) {
    return std::min<std::int64_t>(batch.tokens, std::int64_t{batch.sequences} * batch.max_count);
}

// Throws ContractError with the sentence that was broken. The contents of the batch's arrays lie on
// the device and are trusted.
void check_call(const Context& ctx, const Tensor& out, const Tensor& q, const ops::PagedKv& kv,
                const ops::DeviceBatch& batch, const ops::AttentionMask& mask, float scale,
                const Tensor& q_sinks = {});

}  // namespace mr::cuda::attn
