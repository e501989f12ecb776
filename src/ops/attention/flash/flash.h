// Attention on plain tensors, forward and backward: for training, and for prefill without a cache.
// docs/attention.md derives both. attention.h is for the paged cache; the masks are the same.
#pragma once

#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/attention/mask.h"

namespace mr::ops {

// [tokens, heads, head_dim], the heads of a token contiguous; tokens are `token_stride` elements
// apart, so that q, k and v may be parts of one fused projection.
struct HeadRows {
    HeadRows() = default;
    HeadRows(Tensor tensor_)  // NOLINT(google-explicit-constructor): a whole tensor converts
        : tensor(tensor_), token_stride(tensor_.dim(1) * tensor_.dim(2)) {}
    HeadRows(Tensor tensor_, std::int64_t stride) : tensor(tensor_), token_stride(stride) {}

    std::int64_t tokens() const { return tensor.dim(0); }
    std::int64_t heads() const { return tensor.dim(1); }
    std::int64_t head_dim() const { return tensor.dim(2); }
    float* f32(std::int64_t token, std::int64_t head) const {
        return static_cast<float*>(tensor.data) + token * token_stride + head * head_dim();
    }

    Tensor tensor;
    std::int64_t token_stride = 0;
};

// A packed batch: sequence i has queries [cu_q[i], cu_q[i + 1]) and keys [cu_k[i], cu_k[i + 1]).
// Both begin with 0, never fall, have one more entry than there are sequences, and end inside the
// tensors. Both empty: one sequence, all queries and all keys. If there are more keys than queries,
// or fewer, the last query is at the last key's position, as in a chunk of prefill: query i of n is
// at position keys - n + i (AttentionMask).
struct PackedBatch {
    std::span<const std::int32_t> cu_q = {};
    std::span<const std::int32_t> cu_k = {};
};

// head_dim is a multiple of 8 up to this.
inline constexpr std::int64_t kFlashMaxDim = 256;

// For each sequence, query i and head h, with kv head h / (heads / kv_heads):
//   s[j]      = scale * q[i, h] · k[j]                for the keys j that the mask allows
//   lse[h, i] = log(sum over j of exp(s[j]))
//   out[i, h] = sum over j of exp(s[j] - lse[h, i]) * v[j]
// q, out [tokens_q, heads, head_dim]; k, v [tokens_k, kv_heads, head_dim]; lse [heads, tokens_q].
// On the CPU all are f32. heads is a multiple of kv_heads, scale > 0. Outputs overlap nothing else.
//
// A row that sees no key, or whose scores are all -infinity, has out = 0 and lse = -infinity.
// No more than a tile of scores exists at a time. The bits of a row depend on its own query and its
// sequence's keys and values alone: not on threads, neighbours or repetition. Tokens that belong to
// no sequence are left as they are. Scratch: flash_forward_scratch_bytes() for ctx.pool's threads.
void flash_forward(const Context& ctx, const HeadRows& out, Tensor lse, const HeadRows& q,
                   const HeadRows& k, const HeadRows& v, const PackedBatch& batch,
                   const AttentionMask& mask, float scale);

// The gradients of a loss by q, k and v, from its gradient `dout` by out and the
// forward's results. Shapes: dq and dout as q, dk and dv as k. They are
// overwritten, not added to. All inputs must be finite except lse: a row of
// -infinity (no weight) contributes no gradient. Deterministic: bits depend on a
// sequence's own tensors alone, as above. Scratch: flash_backward_scratch_bytes().
struct FlashGradients {
    HeadRows dq, dk, dv;
};
void flash_backward(const Context& ctx, const FlashGradients& gradients, const HeadRows& dout,
                    const HeadRows& q, const HeadRows& k, const HeadRows& v, const HeadRows& out,
                    Tensor lse, const PackedBatch& batch, const AttentionMask& mask, float scale);

std::size_t flash_forward_scratch_bytes(int head_dim, int threads);
std::size_t flash_backward_scratch_bytes(int head_dim, int threads);

}  // namespace mr::ops
