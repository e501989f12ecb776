// Attention of a training pass of a model that fills in blocks: rows are the noisy half, then the
// clean one (TrainShape::block). A noisy row sees its own noisy block and the clean blocks before
// it, a clean row the clean blocks up to its own. No mask of one call says that, since a clean key
// is seen from two ranges of rows; three calls do:
//   clean rows over clean keys    block_causal
//   noisy rows over clean keys    block_before   } merged by their log-sum-exps
//   noisy rows over noisy keys    full, a block is a sequence
// The backwards of the last two get the merged result, so that each has its share of the softmax;
// what both give for the noisy queries is added, and so is what the first two give for clean keys.
// Where the device has an operation for the last one and the merging (TrainOps::own_blocks), that
// does both in one pass, and in the backward it adds its dq to the other part's.
//
// Rows::noisy: clean rows are wanted for their keys and values alone, as in the last layer, behind
// which no row of theirs is read. Then the first call is left out, and clean queries have no
// gradient.
#pragma once

#include "model/train/train_ops.h"

namespace mr::model {

// Rows of q | k | v (the first two normed and turned), as the pass has them.
struct QkvHeads {
    ops::HeadRows q, k, v;
};

enum class Rows { both, noisy };

// out [tokens, heads, head_dim], lse f32 [heads, tokens], of which the first half is that of noisy
// rows, [heads, half], and the second that of clean ones, which is not there for Rows::noisy. Work:
// `own` as a half of out, own_lse f32 [heads, half].
struct DiffusionForward {
    ops::HeadRows out;
    Tensor lse;
    ops::HeadRows own;
    Tensor own_lse;
};
void diffusion_attention(TrainOps& ops, const TrainShape& shape, Rows rows,
                         const DiffusionForward& to, const QkvHeads& x,
                         const ops::AttentionMask& mask, float scale);

// d: the gradients of q, k and v, of which those of k and v lie side by side. For Rows::noisy the
// gradient of clean queries is left as it is. Work: `part`, as a half of d.
void diffusion_attention_backward(TrainOps& ops, const TrainShape& shape, Rows rows,
                                  const QkvHeads& d, const QkvHeads& part,
                                  const ops::HeadRows& dout, const QkvHeads& x,
                                  const ops::HeadRows& out, Tensor lse,
                                  const ops::AttentionMask& mask, float scale);

}  // namespace mr::model
