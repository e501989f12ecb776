#pragma once

#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/attention/mask.h"
#include "ops/attention/paged/page_table.h"

namespace mr::ops {

// One layer's share of the paged KV cache. A page holds `page_tokens` positions of one sequence:
//   keys   [pages, kv_heads, page_tokens, head_dim]
//   values [pages, kv_heads, page_tokens, head_dim]
// so that the keys of one head in one page are contiguous.
struct PagedKv {
    Tensor keys;    // f32 or f16; on the GPU (attention_cuda.h) bf16, too
    Tensor values;  // as keys
    int page_tokens() const { return static_cast<int>(keys.dim(2)); }
    int kv_heads() const { return static_cast<int>(keys.dim(1)); }
    int head_dim() const { return static_cast<int>(keys.dim(3)); }
};

// One sequence of a ragged batch: tokens [first, first + count) of the batch have positions
// [position, position + count) in the sequence. Its pages hold the positions from `base` on.
struct BatchSeq {
    std::int32_t first = 0;
    std::int32_t count = 0;
    std::int32_t position = 0;
    std::span<const std::int32_t> pages;    // circular table (page_table.h), size a power of two
    std::int32_t base = 0;                  // a multiple of page_tokens; earlier pages are gone
    std::span<const std::int32_t> front{};  // ... except the first pages of the sequence
};

// Stores k and v [tokens, kv_heads, head_dim] f32 of each sequence at its positions.
void kv_write(const Context& ctx, const PagedKv& kv, Tensor k, Tensor v,
              std::span<const BatchSeq> seqs);

// out = softmax(q · Kᵀ * scale, masked) · V for every token of every sequence, with keys already in
// the cache (positions [base, position + count) and those of `front`; queries see no others). q and
// out f32 [tokens, heads, head_dim]; heads is a multiple of kv_heads. Never forms more than a tile
// of scores. The bits of a token's output depend on its own query and on its sequence's keys and
// values alone, not on how the batch was cut. A row without any weight gives zeros. Tokens of no
// sequence are unchanged. Scratch: attention_scratch_bytes() for the threads of ctx.pool.
//
// `q_sinks`, as q: the queries for sinks that lie before the window (VisibleKeys::sinks), rotated
// to another position, so that they see the sinks at another distance. None: q.
void attention(const Context& ctx, Tensor out, Tensor q, const PagedKv& kv,
               std::span<const BatchSeq> seqs, const AttentionMask& mask, float scale,
               Tensor q_sinks = {});

std::size_t attention_scratch_bytes(int head_dim, int threads);

}  // namespace mr::ops
