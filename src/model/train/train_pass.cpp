#include "model/train/train_pass.h"

#include <algorithm>

#include "core/error.h"
#include "model/train/diffusion_attention.h"
#include "model/train/train_buffers.h"

namespace mr::model {
namespace {

// Heads [first, first + count) of every token of x [tokens, row].
ops::HeadRows heads_of(Tensor x, std::int64_t first, std::int64_t count, std::int64_t head_dim) {
    const std::size_t skip = dtype_bytes(x.dtype, static_cast<std::size_t>(first * head_dim));
    return {Tensor(static_cast<std::byte*>(x.data) + skip, x.dtype, {x.dim(0), count, head_dim}),
            x.dim(1)};
}

}  // namespace

void TrainPass::norm(const LayerSpec& of, Tensor out, Tensor x, Tensor weight, Tensor bias) {
    ops_.norm(of.norm, of.norm_eps, out, x, weight, bias);
}

// Which rows' output the layer's attention computes, in a pass with two halves.
Rows TrainPass::rows_of(const Layer& a) const {
    return a.rows < shape_.tokens() ? Rows::noisy : Rows::both;
}

// out = x + o(attention(h1))
void TrainPass::forward_attention(const LayerWeights& w, const Layer& a, Tensor x, Tensor out) {
    const std::int64_t heads = spec_.heads, kv = spec_.kv_heads, size = spec_.head_dim;
    ops_.linear(a.qkv, a.h1, qkv_matrix(spec_, w), qkv_bias(spec_, w), {});
    Tensor qk = a.qkv;
    if (a.of.qk_norm) {
        qk = a.qk;
        ops_.norm_heads(heads_of(qk, 0, heads, size), heads_of(a.qkv, 0, heads, size), w.q_norm,
                        a.of.norm_eps);
        ops_.norm_heads(heads_of(qk, heads, kv, size), heads_of(a.qkv, heads, kv, size), w.k_norm,
                        a.of.norm_eps);
    }
    if (b_->cos_sin) {  // queries and keys are adjacent and rotate alike
        ops_.rope(heads_of(qk, 0, heads + kv, size), b_->cos_sin, a.of.rope.style, false);
    }
    const QkvHeads x_heads{heads_of(qk, 0, heads, size), heads_of(qk, heads, kv, size),
                           heads_of(a.qkv, heads + kv, kv, size)};
    const ops::HeadRows attn = heads_of(a.attn, 0, heads, size);
    if (shape_.block > 0) {
        diffusion_attention(ops_, shape_, rows_of(a),
                            {attn, a.lse, heads_of(b_->part, 0, heads, size), b_->own_lse}, x_heads,
                            a.of.mask, a.of.scale);
    } else {
        ops_.attention(attn, a.lse, x_heads.q, x_heads.k, x_heads.v, a.of.mask, a.of.scale,
                       shape_.seq);
    }
    if (out) ops_.linear(out, a.attn, w.o, w.o_bias, x);
}

// The bias of `up` where the activation adds it, else none.
Tensor TrainPass::left_to_activation(const Layer& a, Tensor up_bias) const {
    return a.of.gated || !ops_.activation_adds_bias() ? Tensor() : up_bias;
}

// out = x + down(act(up(h2)))
void TrainPass::forward_mlp(const LayerWeights& w, const Layer& a, Tensor x, Tensor out) {
    const Tensor later = left_to_activation(a, w.up_bias);
    ops_.linear(a.gu, a.h2, gate_up_matrix(spec_, w), later ? Tensor() : w.up_bias, {});
    ops_.activation(a.a, a.gu, later, a.of.activation, a.of.gated);
    if (out) ops_.linear(out, a.a, w.down, w.down_bias, x);
}

// `out` none: everything but the layer's output, for a backward that kept only the layer's input.
void TrainPass::forward_layer(const LayerWeights& w, const Layer& a, Tensor out) {
    norm(a.of, a.h1, a.x, w.attn_norm, w.attn_norm_bias);
    if (spec_.residual == Residual::parallel) {
        norm(a.of, a.h2, a.x_rows(), w.mlp_norm, w.mlp_norm_bias);
        forward_mlp(w, a, a.x_rows(), out);
        forward_attention(w, a, out, out);
    } else {
        forward_attention(w, a, a.x_rows(), a.x1);
        norm(a.of, a.h2, a.x1, w.mlp_norm, w.mlp_norm_bias);
        forward_mlp(w, a, a.x1, out);
    }
}

void TrainPass::forward(const Weights& weights, int slot, int number, const PassHooks& hooks) {
    const auto enter = [&](int unit) {
        if (hooks.enter) hooks.enter(unit, false);
    };
    std::vector<Layer>& layers = layers_of(number);
    layers.front().x = input(number);
    if (stage_.layers.first()) {
        ops_.at(-1);
        enter(0);
        ops_.embed(layers.front().x, weights.embedding, weights.positions, slot);
    }
    for (std::size_t i = 0; i < layers.size(); ++i) {
        const int layer = stage_.layers.begin + static_cast<int>(i);
        ops_.at(layer);
        enter(layer + 1);
        forward_layer(weights.layers[static_cast<std::size_t>(layer)], layers[i],
                      i + 1 < layers.size() ? layers[i + 1].x : output(number));
    }
    ops_.at(-1);
}

// Sends rows of the last layer's output through the head, in chunks: losses, and with `grads` the
// gradients of the head, the final norm, and the residual stream. In a pass with two halves only
// rows of unknown tokens are computed and have gradients.
void TrainPass::head(const Weights& weights, const Weights* grads, int slot, float scale,
                     std::int64_t counted) {
    const Buffers& b = *b_;
    const bool some = shape_.block > 0, copy = b.dxc.data != b.dx.data;
    if (some && grads) {
        ops_.zero(b.dx);
        if (copy) ops_.zero(b.dxc.slice_rows(0, shape_.half()));  // the last layer reads it
    }
    // A bias has no padding.
    const bool wide = b.logits.dim(1) > spec_.vocab && !weights.head_bias;
    const Tensor head = wide ? head_matrix(spec_, weights) : weights.head;
    for (std::int64_t first = 0; first < counted; first += shape_.head_rows) {
        // The last ones may be rows that do not count and have no gradient.
        const std::int64_t real = std::min(shape_.head_rows, counted - first);
        const std::int64_t whole = (real + shape_.head_step - 1) / shape_.head_step;
        const std::int64_t rows =
            std::min({whole * shape_.head_step, shape_.head_rows, shape_.half() - first});
        const Tensor x = some ? b.xm.slice_rows(0, rows) : b.x_out.slice_rows(first, rows);
        if (some) ops_.gather_rows(x, b.x_out, slot, first);
        const Tensor hf = b.hf.slice_rows(0, rows);
        const Tensor logits = b.logits.slice_rows(0, rows);
        norm(spec_, hf, x, weights.final_norm, weights.final_norm_bias);
        ops_.linear(logits, hf, head, weights.head_bias, {}, OpKind::lm_head);
        ops_.loss(static_cast<float*>(b.losses.data) + first, logits, slot, first, scale,
                  grads != nullptr);
        if (!grads) continue;
        const Tensor dhf = b.dhf.slice_rows(0, rows);
        ops_.linear_input(dhf, logits, head, OpKind::lm_head);
        ops_.linear_weight(wide ? head_matrix(spec_, *grads) : grads->head, grads->head_bias,
                           logits, hf, OpKind::lm_head);
        const Tensor dx = some ? b.dxm.slice_rows(0, rows) : b.dx.slice_rows(first, rows);
        ops_.norm_backward({.kind = spec_.norm,
                            .eps = spec_.norm_eps,
                            .dx = dx,
                            .copy = copy && !some ? b.dxc.slice_rows(first, rows) : Tensor(),
                            .residual = {},
                            .dweight = grads->final_norm,
                            .dbias = grads->final_norm_bias,
                            .dsum = {},
                            .dy = dhf,
                            .x = x,
                            .weight = weights.final_norm});
        if (some) {
            ops_.scatter_rows(b.dx, copy ? b.dxc : Tensor(), dx.slice_rows(0, real), slot, first);
        }
    }
}

bool TrainPass::norm_backward(const LayerSpec& of, Tensor dy, Tensor x, Tensor weight,
                              Tensor dweight, Tensor dbias, bool copy, Tensor dsum) {
    const Buffers& b = *b_;
    copy = copy && b.dxc.data != b.dx.data;
    const Tensor dx = b.dx.slice_rows(0, dy.dim(0));
    return ops_.norm_backward({.kind = of.norm,
                               .eps = of.norm_eps,
                               .dx = dx,
                               .copy = copy ? b.dxc.slice_rows(0, dy.dim(0)) : Tensor(),
                               .residual = dx,
                               .dweight = dweight,
                               .dbias = dbias,
                               .dsum = dsum,
                               .dy = dy,
                               .x = x,
                               .weight = weight});
}

// Recomputes what a layer did not keep. The same operations on the same values: the same bits.
void TrainPass::remake(const LayerWeights& w, const Layer& a) {
    if (recompute_ == Recompute::none) return;
    if (recompute_ == Recompute::full) {
        if (spec_.residual == Residual::parallel) {
            norm(a.of, a.h1, a.x, w.attn_norm, w.attn_norm_bias);
            norm(a.of, a.h2, a.x_rows(), w.mlp_norm, w.mlp_norm_bias);
            forward_mlp(w, a, {}, {});
            forward_attention(w, a, {}, {});
        } else {
            forward_layer(w, a, {});
        }
        return;
    }
    norm(a.of, a.h1, a.x, w.attn_norm, w.attn_norm_bias);
    norm(a.of, a.h2, spec_.residual == Residual::parallel ? a.x_rows() : a.x1, w.mlp_norm,
         w.mlp_norm_bias);
    ops_.activation(a.a, a.gu, left_to_activation(a, w.up_bias), a.of.activation, a.of.gated);
}

// dh = the gradient of h2, from that of the MLP's output, dxc.
void TrainPass::backward_mlp(const LayerWeights& w, const LayerWeights& g, const Layer& a,
                             Tensor dh, Tensor down_bias) {
    const Tensor da = b_->da.slice_rows(0, a.rows), dxc = b_->dxc.slice_rows(0, a.rows);
    ops_.linear_input(da, dxc, w.down);
    ops_.linear_weight(g.down, down_bias, dxc, a.a);
    const bool with_bias = ops_.activation_backward(
        a.gu, g.up_bias, da, a.gu, left_to_activation(a, w.up_bias), a.of.activation, a.of.gated);
    ops_.linear_input(dh, a.gu, gate_up_matrix(spec_, w));
    ops_.linear_weight(gate_up_matrix(spec_, g), with_bias ? Tensor() : g.up_bias, a.gu, a.h2);
}

// dh = the gradient of h1, from that of attention's output, dxc.
void TrainPass::backward_attention(const LayerWeights& w, const LayerWeights& g, const Layer& a,
                                   Tensor o_bias) {
    const Buffers& b = *b_;
    const std::int64_t heads = spec_.heads, kv = spec_.kv_heads, size = spec_.head_dim;
    const Tensor dattn = b.dattn.slice_rows(0, a.rows), dxc = b.dxc.slice_rows(0, a.rows);
    ops_.linear_input(dattn, dxc, w.o);
    ops_.linear_weight(g.o, o_bias, dxc, a.attn);
    const Tensor qk = a.of.qk_norm ? a.qk : a.qkv;
    const ops::HeadRows dq = heads_of(b.dqkv, 0, heads, size);
    const ops::HeadRows dk = heads_of(b.dqkv, heads, kv, size);
    const ops::HeadRows dv = heads_of(b.dqkv, heads + kv, kv, size);
    const QkvHeads x{heads_of(qk, 0, heads, size), heads_of(qk, heads, kv, size),
                     heads_of(a.qkv, heads + kv, kv, size)};
    const ops::HeadRows dout = heads_of(dattn, 0, heads, size);
    const ops::HeadRows out = heads_of(a.attn, 0, heads, size);
    if (shape_.block > 0) {
        const QkvHeads part{heads_of(b.part, 0, heads, size), heads_of(b.part, heads, kv, size),
                            heads_of(b.part, heads + kv, kv, size)};
        // Keys and values are written below; unused queries have no gradient.
        if (a.rows < shape_.tokens()) ops_.zero(b.dqkv.slice_rows(shape_.half(), shape_.half()));
        diffusion_attention_backward(ops_, shape_, rows_of(a), {dq, dk, dv}, part, dout, x, out,
                                     a.lse, a.of.mask, a.of.scale);
    } else {
        ops_.attention_backward({dq, dk, dv}, dout, x.q, x.k, x.v, out, a.lse, a.of.mask,
                                a.of.scale, shape_.seq);
    }
    if (b.cos_sin) {
        ops_.rope(heads_of(b.dqkv, 0, heads + kv, size), b.cos_sin, a.of.rope.style, true);
    }
    if (a.of.qk_norm) {
        ops_.norm_heads_backward(dq, g.q_norm, dq, heads_of(a.qkv, 0, heads, size), w.q_norm,
                                 a.of.norm_eps);
        ops_.norm_heads_backward(dk, g.k_norm, dk, heads_of(a.qkv, heads, kv, size), w.k_norm,
                                 a.of.norm_eps);
    }
    ops_.linear_input(b.dh, b.dqkv, qkv_matrix(spec_, w));
    ops_.linear_weight(qkv_matrix(spec_, g), qkv_bias(spec_, g), b.dqkv, a.h1);
}

// dx, the gradient of the layer's output, becomes that of its input. The last norm's result in dx,
// summed over tokens, is the gradient of the next lower bias on the residual stream.
bool TrainPass::backward_layer(const LayerWeights& w, const LayerWeights& g, const Layer& a,
                               Tensor down_bias, Tensor below) {
    const Buffers& b = *b_;
    remake(w, a);
    if (spec_.residual == Residual::parallel) {
        // Both branches read dxc, so both are done before either norm adds to it.
        const Tensor dh2 = b.dh2.slice_rows(0, a.rows);
        backward_mlp(w, g, a, dh2, down_bias);
        backward_attention(w, g, a, g.o_bias);
        norm_backward(a.of, dh2, a.x_rows(), w.mlp_norm, g.mlp_norm, g.mlp_norm_bias, false, {});
    } else {
        const Tensor dh = b.dh.slice_rows(0, a.rows);
        backward_mlp(w, g, a, dh, down_bias);
        const bool taken =
            norm_backward(a.of, dh, a.x1, w.mlp_norm, g.mlp_norm, g.mlp_norm_bias, true, g.o_bias);
        backward_attention(w, g, a, taken ? Tensor() : g.o_bias);
    }
    return norm_backward(a.of, b.dh, a.x, w.attn_norm, g.attn_norm, g.attn_norm_bias, true, below);
}

void TrainPass::backward(const Weights& weights, const Weights& grads, int slot, float scale,
                         std::int64_t counted, int number, const PassHooks& hooks) {
    const auto enter = [&](int unit) {
        if (hooks.enter) hooks.enter(unit, true);
    };
    const auto done = [&](int unit) {
        if (hooks.done) hooks.done(unit);
    };
    Buffers& b = *b_;
    const bool copy = b.dxc.data != b.dx.data;
    b.dx = gradient(number);
    if (!copy) b.dxc = b.dx;
    if (stage_.layers.last(spec_)) {
        b.x_out = output(number);
        enter(spec_.layers + 1);
        head(weights, &grads, slot, scale, counted);
        done(spec_.layers + 1);
    } else if (copy) {
        ops_.refresh(b.dxc, b.dx);
    }
    const std::vector<Layer>& layers = layers_of(number);
    bool taken = false;  // the layer above took the gradient of down_bias
    for (std::size_t i = layers.size(); i-- > 0;) {
        const int layer = stage_.layers.begin + static_cast<int>(i);
        const auto at = static_cast<std::size_t>(layer);
        ops_.at(layer);
        enter(layer + 1);
        const LayerWeights& g = grads.layers[at];
        const bool takes = i > 0 && !stage_.apart;
        const bool took =
            backward_layer(weights.layers[at], g, layers[i], taken ? Tensor() : g.down_bias,
                           takes ? grads.layers[at - 1].down_bias : Tensor());
        taken = takes && took;
        done(layer + 1);
    }
    ops_.at(-1);
    if (stage_.layers.first()) {
        enter(0);
        ops_.embed_backward(grads.embedding, grads.positions, b.dx, slot);
        done(0);
    }
    ops_.done(slot);
}

void TrainPass::step(const Weights& weights, const Weights& grads, int slot, float scale,
                     std::int64_t counted, const PassHooks& hooks) {
    forward(weights, slot, 0, hooks);
    backward(weights, grads, slot, scale, counted, 0, hooks);
}

void TrainPass::losses_of(const Weights& weights, int slot, std::int64_t counted, int number,
                          const PassHooks& hooks) {
    if (stage_.layers.last(spec_)) {
        if (hooks.enter) hooks.enter(spec_.layers + 1, false);
        b_->x_out = output(number);
        head(weights, nullptr, slot, 0, counted);
    }
    ops_.done(slot);
}

void TrainPass::evaluate(const Weights& weights, int slot, std::int64_t counted,
                         const PassHooks& hooks) {
    forward(weights, slot, 0, hooks);
    losses_of(weights, slot, counted, 0, hooks);
}

}  // namespace mr::model
