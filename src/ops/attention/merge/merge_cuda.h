// Merges attention over two sets of keys on the GPU. Semantics as in merge.h; heads are bf16, the
// log-sum-exps f32, all in device memory; arithmetic is f32. Eight elements at a time: heads are
// 16-byte aligned, and head_dim and strides are multiples of 8.
#pragma once

#include "core/context.h"
#include "core/tensor.h"
#include "ops/attention/flash/flash.h"

namespace mr::cuda {

void merge_attention(const Context& ctx, const ops::HeadRows& out, Tensor lse,
                     const ops::HeadRows& other, Tensor other_lse);
void add_heads(const Context& ctx, const ops::HeadRows& to, const ops::HeadRows& from);

}  // namespace mr::cuda
