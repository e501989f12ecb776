#include "model/train/diffusion_attention.h"

#include "core/error.h"

namespace mr::model {
namespace {

using ops::AttentionMask;
using ops::HeadRows;

// Rows of one half: 0 noisy, 1 clean.
HeadRows half_of(const HeadRows& x, const TrainShape& shape, int which) {
    const std::int64_t rows = shape.half();
    const std::size_t skip =
        dtype_bytes(x.tensor.dtype, static_cast<std::size_t>(which * rows * x.token_stride));
    return {Tensor(static_cast<std::byte*>(x.tensor.data) + skip, x.tensor.dtype,
                   {rows, x.heads(), x.head_dim()}),
            x.token_stride};
}
QkvHeads half_of(const QkvHeads& x, const TrainShape& shape, int which) {
    return {half_of(x.q, shape, which), half_of(x.k, shape, which), half_of(x.v, shape, which)};
}
Tensor half_of_lse(const Tensor& lse, const TrainShape& shape, int which) {
    const std::int64_t heads = lse.dim(0), rows = shape.half();
    return {lse.f32() + which * heads * rows, DType::f32, {heads, rows}};
}

// k and v as the heads of one tensor.
HeadRows keys_and_values(const QkvHeads& x) {
    const std::size_t width =
        dtype_bytes(x.k.tensor.dtype, static_cast<std::size_t>(x.k.heads() * x.k.head_dim()));
    MR_CHECK(static_cast<std::byte*>(x.k.tensor.data) + width == x.v.tensor.data &&
                 x.k.token_stride == x.v.token_stride,
             "a row's values lie behind its keys");
    return {
        Tensor(x.k.tensor.data, x.k.tensor.dtype, {x.k.tokens(), 2 * x.k.heads(), x.k.head_dim()}),
        x.k.token_stride};
}

struct Masks {
    AttentionMask clean, before, own;
};
Masks masks_of(const AttentionMask& layer, const TrainShape& shape) {
    MR_CHECK(layer.kind == AttentionMask::Kind::block_causal && layer.block == shape.block &&
                 layer.window == 0 && layer.origin == 0,
             "layers that fill in blocks are block_causal, without a window");
    return {layer, {AttentionMask::Kind::block_before, shape.block}, {AttentionMask::Kind::full}};
}

}  // namespace

void diffusion_attention(TrainOps& ops, const TrainShape& shape, Rows rows,
                         const DiffusionForward& to, const QkvHeads& x, const AttentionMask& mask,
                         float scale) {
    const Masks masks = masks_of(mask, shape);
    const QkvHeads noisy = half_of(x, shape, 0), clean = half_of(x, shape, 1);
    const HeadRows out = half_of(to.out, shape, 0);
    const Tensor lse = half_of_lse(to.lse, shape, 0);
    if (rows == Rows::both) {
        ops.attention(half_of(to.out, shape, 1), half_of_lse(to.lse, shape, 1), clean.q, clean.k,
                      clean.v, masks.clean, scale, shape.seq);
    }
    ops.attention(out, lse, noisy.q, clean.k, clean.v, masks.before, scale, shape.seq);
    if (ops.own_blocks(out, lse, noisy.q, noisy.k, noisy.v, scale, shape.block)) return;
    ops.attention(to.own, to.own_lse, noisy.q, noisy.k, noisy.v, masks.own, scale, shape.block);
    ops.merge_attention(out, lse, to.own, to.own_lse);
}

void diffusion_attention_backward(TrainOps& ops, const TrainShape& shape, Rows rows,
                                  const QkvHeads& d, const QkvHeads& part, const HeadRows& dout,
                                  const QkvHeads& x, const HeadRows& out, Tensor lse,
                                  const AttentionMask& mask, float scale) {
    const Masks masks = masks_of(mask, shape);
    const QkvHeads noisy = half_of(x, shape, 0), clean = half_of(x, shape, 1);
    const QkvHeads dnoisy = half_of(d, shape, 0), dclean = half_of(d, shape, 1);
    const bool both = rows == Rows::both;
    if (both) {
        ops.attention_backward({dclean.q, dclean.k, dclean.v}, half_of(dout, shape, 1), clean.q,
                               clean.k, clean.v, half_of(out, shape, 1), half_of_lse(lse, shape, 1),
                               masks.clean, scale, shape.seq);
    }
    const HeadRows dout_noisy = half_of(dout, shape, 0), out_noisy = half_of(out, shape, 0);
    const Tensor lse_noisy = half_of_lse(lse, shape, 0);
    ops.attention_backward({dnoisy.q, both ? part.k : dclean.k, both ? part.v : dclean.v},
                           dout_noisy, noisy.q, clean.k, clean.v, out_noisy, lse_noisy,
                           masks.before, scale, shape.seq);
    if (both) ops.add_heads(keys_and_values(dclean), keys_and_values(part));
    if (ops.own_blocks_backward({dnoisy.q, dnoisy.k, dnoisy.v}, dout_noisy, noisy.q, noisy.k,
                                noisy.v, out_noisy, lse_noisy, scale, shape.block)) {
        return;
    }
    ops.attention_backward({part.q, dnoisy.k, dnoisy.v}, dout_noisy, noisy.q, noisy.k, noisy.v,
                           out_noisy, lse_noisy, masks.own, scale, shape.block);
    ops.add_heads(dnoisy.q, part.q);
}

}  // namespace mr::model
