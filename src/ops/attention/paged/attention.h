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
// so that the keys of one head in one page lie together.
struct PagedKv {
    Tensor keys;    // f32 or f16; on the GPU (attention_cuda.h) bf16, too
    Tensor values;  // as keys
    int page_tokens() const { return static_cast<int>(keys.dim(2)); }
    int kv_heads() const { return static_cast<int>(keys.dim(1)); }
    int head_dim() const { return static_cast<int>(keys.dim(3)); }
};

// One sequence of a ragged batch: tokens [first, first + count) of the batch stand at positions
// [position, position + count) of the sequence. Its pages hold the positions from `base` on.
struct BatchSeq {
    std::int32_t first = 0;
    std::int32_t count = 0;
    std::int32_t position = 0;
    std::span<const std::int32_t> pages;    // the circular table (page_table.h), a power of two
    std::int32_t base = 0;                  // a multiple of page_tokens; what lies before is gone
    std::span<const std::int32_t> front{};  // ... but for the first pages, by number
};

// Stores k and v [tokens, kv_heads, head_dim] f32 of each sequence at its positions.
void kv_write(const Context& ctx, const PagedKv& kv, Tensor k, Tensor v,
              std::span<const BatchSeq> seqs);

// out = softmax(q · Kᵀ * scale, masked) · V for every token of every sequence, keys already in the
// cache (positions [base, position + count) and those of `front`, and no query sees another). q and
// out f32 [tokens, heads, head_dim]; heads is a multiple of kv_heads. Never forms more than a tile
// of scores. The bits of a token's output depend on its own query and on its sequence's keys and
// values alone, and not on how the batch was cut. A row without any weight gives zeros. Tokens of
// no sequence are left as they are. Scratch: attention_scratch_bytes() for the threads of ctx.pool.
//
// `q_sinks`, as q: what queries ask sinks with that lie before their window (VisibleKeys::sinks):
// rotated to another position, they see them at another distance. None: q.
void attention(const Context& ctx, Tensor out, Tensor q, const PagedKv& kv,
               std::span<const BatchSeq> seqs, const AttentionMask& mask, float scale,
               Tensor q_sinks = {});

std::size_t attention_scratch_bytes(int head_dim, int threads);

}  // namespace mr::ops
