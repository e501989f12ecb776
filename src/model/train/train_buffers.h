// Buffers of a training pass (train_pass.h): internal to its two files.
#pragma once

#include <vector>

#include "model/train/train_pass.h"

namespace mr::model {

// What a layer's forward leaves for its backward. Buffers that are not kept are shared by all
// layers. `rows` of them continue after the keys and values: all tokens, but in the last layer of a
// pass with two halves only the noisy ones. No clean row of its output is read, so none has a
// gradient.
struct TrainPass::Layer {
    LayerSpec of;
    std::int64_t rows = 0;
    Tensor x;     // [tokens, dim] f32, the layer's input
    Tensor h1;    // [tokens, dim]
    Tensor qkv;   // [tokens, q_dim + 2 kv_dim], rotated in place unless there is qk
    Tensor qk;    // [tokens, q_dim + kv_dim]: normed and rotated, if heads are normed
    Tensor attn;  // [rows, q_dim]
    Tensor lse;   // [heads, rows] f32
    Tensor x1;    // [rows, dim] f32, between attention and MLP; none where parallel
    Tensor h2;    // [rows, dim]
    Tensor gu;    // [rows, 2 hidden], or [rows, hidden] where not gated
    Tensor a;     // [rows, hidden]

    Tensor x_rows() const { return x.slice_rows(0, rows); }
};

struct TrainPass::Buffers {
    std::vector<std::vector<Layer>> passes;  // in flight: the stage's layers of each pass
    // The first layer's inputs, [tokens, dim] f32; the last one's outputs, [rows, dim] f32; the
    // gradients of both, [tokens, dim] f32.
    std::vector<Tensor> inputs, outputs, gradients;
    Tensor x_out;    // the output that goes through the head
    Tensor cos_sin;  // [tokens, rotary/2, 2] f32
    Tensor losses;   // [half] f32: all tokens in a pass without halves
    // For the backward.
    Tensor dx;   // [tokens, dim] f32, the gradient of the residual stream: one of the gradients
    Tensor dxc;  // ... in the compute type, for products; dx itself where that is f32
    Tensor dh;   // [tokens, dim], the gradient of a norm's output
    Tensor dh2;  // the other norm's, where parallel
    // Only one of these groups is in use at a time: they share memory.
    Tensor hf, dhf, logits;  // [head_rows, dim] twice, [head_rows, logit_columns()]
    Tensor xm, dxm;        // [head_rows, dim] f32: rows of unknown tokens, where these alone count
    Tensor da;             // [tokens, hidden]
    Tensor dattn, dqkv;    // [tokens, q_dim], [tokens, q_dim + 2 kv_dim]
    Tensor part, own_lse;  // [half, q_dim + 2 kv_dim], [heads, half] f32: where there are halves
};

}  // namespace mr::model
