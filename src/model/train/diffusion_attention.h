// Attention in a training pass of a block diffusion model: rows are the noisy half, then the clean
// one (TrainShape::block). A noisy row sees its own noisy block and the clean blocks before it, a
// clean row the clean blocks up to its own. One call cannot do that, since a clean key is seen from
// two ranges of rows; three calls can:
//   clean rows over clean keys    block_causal
//   noisy rows over clean keys    block_before   } merged by their log-sum-exps
//   noisy rows over noisy keys    full, a block is a sequence
// The backwards of the last two get the merged result, so that each has its share of the softmax.
// Their gradients of the noisy queries are added, and so are the first two calls' gradients of
// clean keys. If the device has one operation for the last call and the merge
// (TrainOps::own_blocks), it does both in one pass, and its backward adds its dq to the other
// part's.
//
// Rows::noisy: clean rows are needed only for their keys and values, as in the last layer, after
// which no clean row is read. Then the first call is left out, and clean queries have no
// gradient.
#pragma once

#include "model/train/train_ops.h"

namespace mr::model {

// Rows of q | k | v (the first two normed and rotated), as the pass holds them.
struct QkvHeads {
    ops::HeadRows q, k, v;
};

enum class Rows { both, noisy };

// out [tokens, heads, head_dim], lse f32 [heads, tokens]: first the noisy rows' part, [heads,
// half], then the clean rows', which is absent for Rows::noisy. Workspace: `own` like a half of
// out, own_lse f32 [heads, half].
struct DiffusionForward {
    ops::HeadRows out;
    Tensor lse;
    ops::HeadRows own;
    Tensor own_lse;
};
void diffusion_attention(TrainOps& ops, const TrainShape& shape, Rows rows,
                         const DiffusionForward& to, const QkvHeads& x,
                         const ops::AttentionMask& mask, float scale);

// d: the gradients of q, k and v; those of k and v are adjacent. For Rows::noisy the gradient of
// clean queries is not written. Workspace: `part`, like a half of d.
void diffusion_attention_backward(TrainOps& ops, const TrainShape& shape, Rows rows,
                                  const QkvHeads& d, const QkvHeads& part,
                                  const ops::HeadRows& dout, const QkvHeads& x,
                                  const ops::HeadRows& out, Tensor lse,
                                  const ops::AttentionMask& mask, float scale);

}  // namespace mr::model
