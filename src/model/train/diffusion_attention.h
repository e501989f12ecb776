// Attention of a training pass of a model that fills in blocks: rows are the noisy half, then the
// clean one (TrainShape::block). A noisy row sees its own noisy block and the clean blocks before
// it, a clean row the clean blocks up to its own. No mask of one call says that, since a clean key
// is seen from two ranges of rows; three calls do:
//   clean rows over clean keys    block_causal
//   noisy rows over clean keys    block_before   } merged by their log-sum-exps
//   noisy rows over noisy keys    full, a block is a sequence
// The backwards of the last two get the merged result, so that each has its share of the softmax;
// what both give for the noisy queries is added, and so is what the first two give for clean keys.
#pragma once

#include "model/train/train_ops.h"

namespace mr::model {

// Rows of q | k | v (the first two normed and turned), as the pass has them.
struct QkvHeads {
    ops::HeadRows q, k, v;
};

// out [tokens, heads, head_dim], lse f32 [heads, tokens], of which the first half is that of noisy
// rows, [heads, half], and the second that of clean ones. Work: `own` as a half of out, own_lse f32
// [heads, half].
struct DiffusionForward {
    ops::HeadRows out;
    Tensor lse;
    ops::HeadRows own;
    Tensor own_lse;
};
void diffusion_attention(TrainOps& ops, const TrainShape& shape, const DiffusionForward& to,
                         const QkvHeads& x, const ops::AttentionMask& mask, float scale);

// d: the gradients of q, k and v. Work: `part`, as a half of d.
void diffusion_attention_backward(TrainOps& ops, const TrainShape& shape, const QkvHeads& d,
                                  const QkvHeads& part, const ops::HeadRows& dout,
                                  const QkvHeads& x, const ops::HeadRows& out, Tensor lse,
                                  const ops::AttentionMask& mask, float scale);

}  // namespace mr::model
