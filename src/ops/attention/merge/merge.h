// Merges attention over two sets of keys into one, from
// flash_forward()'s results for each, by their log-sum-exps. Used
// for training diffusion models (model/train/diffusion_attention.h).
#pragma once

#include "core/context.h"
#include "core/tensor.h"
#include "ops/attention/flash/flash.h"

namespace mr::ops {

// For every token i and head h, with a = lse[h, i] and b = other_lse[h, i]:
//   l         = log(exp(a) + exp(b))
//   out[i, h] = exp(a - l) * out[i, h] + exp(b - l) * other[i, h]
//   lse[h, i] = l
// out, other f32 [tokens, heads, head_dim], the lse [heads, tokens]. A part without weight (-inf)
// is ignored and may hold anything; a row without any has out = 0 and lse = -infinity.
void merge_attention(const Context& ctx, const HeadRows& out, Tensor lse, const HeadRows& other,
                     Tensor other_lse);

// to += from: adds the gradients of tensors that both parts read. f32 [tokens, heads, head_dim].
void add_heads(const Context& ctx, const HeadRows& to, const HeadRows& from);

}  // namespace mr::ops
