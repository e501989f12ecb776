#include "model/train/train_pass.h"

#include <algorithm>

#include "core/error.h"
#include "model/train/diffusion_attention.h"
#include "ops/rope/rope.h"

namespace mr::model {

// What a layer's forward leaves for its backward. Buffers that are not kept are the same for all.
struct TrainPass::Layer {
    LayerSpec of;
    Tensor x;     // [tokens, dim] f32, the layer's input
    Tensor h1;    // [tokens, dim]
    Tensor qkv;   // [tokens, q_dim + 2 kv_dim], turned in place unless there is qk
    Tensor qk;    // [tokens, q_dim + kv_dim]: normed and turned, where heads are normed
    Tensor attn;  // [tokens, q_dim]
    Tensor lse;   // [heads, tokens] f32
    Tensor x1;    // [tokens, dim] f32, between attention and MLP; none where parallel
    Tensor h2;    // [tokens, dim]
    Tensor gu;    // [tokens, 2 hidden], or [tokens, hidden] where not gated
    Tensor a;     // [tokens, hidden]
};

struct TrainPass::Buffers {
    std::vector<Layer> layers;
    Tensor x_out;    // [tokens, dim] f32, the last layer's output
    Tensor cos_sin;  // [tokens, rotary/2, 2] f32
    Tensor losses;   // [half] f32: of a pass with one half, all tokens
    // The backward's.
    Tensor dx;   // [tokens, dim] f32, the gradient of the residual stream
    Tensor dxc;  // ... in the compute type, for products; dx itself where that is f32
    Tensor dh;   // [tokens, dim], the gradient of a norm's output
    Tensor dh2;  // ... of the other one, where parallel
    // Of these, no two groups at a time: one memory.
    Tensor hf, dhf, logits;  // [head_rows, dim] twice, [head_rows, logit_columns()]
    Tensor xm, dxm;        // [head_rows, dim] f32: rows of unknown tokens, where these alone count
    Tensor da;             // [tokens, hidden]
    Tensor dattn, dqkv;    // [tokens, q_dim], [tokens, q_dim + 2 kv_dim]
    Tensor part, own_lse;  // [half, q_dim + 2 kv_dim], [heads, half] f32: where there are halves
};

namespace {

std::size_t padded_bytes(DType dtype, const Shape& shape) {
    const std::size_t bytes = dtype_bytes(dtype, static_cast<std::size_t>(shape.count()));
    return TrainOps::padded(bytes);
}

// Heads [first, first + count) of every token of x [tokens, row].
ops::HeadRows heads_of(Tensor x, std::int64_t first, std::int64_t count, std::int64_t head_dim) {
    const std::size_t skip = dtype_bytes(x.dtype, static_cast<std::size_t>(first * head_dim));
    return {Tensor(static_cast<std::byte*>(x.data) + skip, x.dtype, {x.dim(0), count, head_dim}),
            x.dim(1)};
}

enum class Part { kept, work, head, mlp, attention };

}  // namespace

std::string train_takes(const LayerSpec& layer, const LayerSpec& common) {
    // Every member by its name: one that is added has to be handled before this compiles again.
    // Masks, scales, norms and activations are those of the layer, forward and backward.
    const auto& [mask, rope, scale, softcap, norm, norm_eps, qk_norm, activation, gated] = layer;
    if (softcap != 0) return "a softcap of scores";
    // One table of positions, and buffers and joined matrices of one shape, serve all layers.
    if (rope != common.rope) return "rotary positions that differ by layer";
    if (qk_norm != common.qk_norm) return "norms of q and k in some layers only";
    if (gated != common.gated) return "MLPs with and without a gate in one model";
    return {};
}

const char* recompute_name(Recompute recompute) {
    switch (recompute) {
        case Recompute::none:
            return "none";
        case Recompute::light:
            return "light";
        case Recompute::full:
            return "full";
    }
    return "";
}

std::optional<Recompute> recompute_of(std::string_view name) {
    for (const Recompute r : {Recompute::none, Recompute::light, Recompute::full}) {
        if (name == recompute_name(r)) return r;
    }
    return std::nullopt;
}

std::int64_t default_head_rows(const ModelSpec& spec, std::int64_t tokens, DType compute) {
    // A GPU wants few large products; a CPU wants what it just made to be near. 576 MiB are 5,504
    // rows of GPT-2: their gradient has 129 tiles of 128 x 256, all but three for the 132
    // multiprocessors of an H200 at once.
    const std::int64_t bytes = std::int64_t{compute == DType::f32 ? 16 : 576} << 20;
    const auto row = static_cast<std::int64_t>(dtype_bytes(compute, 1)) * spec.vocab;
    const std::int64_t most = std::max<std::int64_t>(bytes / row / 64 * 64, 64);
    // As many pieces as it takes, all of one size: a small one at the end would be a slow one.
    const std::int64_t pieces = (tokens + most - 1) / most;
    const std::int64_t rows = (tokens + pieces - 1) / pieces;
    return std::min((rows + 63) / 64 * 64, tokens);
}

// Products in 16 bits like whole numbers of 128 bytes. The columns behind the vocabulary take no
// part in the loss and have no gradient, and so the head's rows that make them have none.
static std::int64_t logit_columns(const ModelSpec& spec, DType compute) {
    return compute == DType::f32 ? spec.vocab : head_rows(spec);
}

template <typename Take>
void TrainPass::for_each_buffer(const ModelSpec& spec, const TrainShape& shape, Recompute recompute,
                                DType compute, Buffers& b, Take&& take) {
    const std::int64_t tokens = shape.tokens();
    const std::int64_t rows = shape.head_rows;
    const std::int64_t dim = spec.dim, q = spec.q_dim(), kv = spec.kv_dim(), hidden = spec.hidden;
    const bool parallel = spec.residual == Residual::parallel;
    b.layers.resize(static_cast<std::size_t>(spec.layers));
    Layer shared;
    const auto of_layer = [&](Layer& l, bool inputs, bool middle, bool cheap) {
        if (inputs) take(l.x, DType::f32, Shape{tokens, dim}, Part::kept);
        if (middle) {
            take(l.qkv, compute, Shape{tokens, q + 2 * kv}, Part::kept);
            if (spec.qk_norm) take(l.qk, compute, Shape{tokens, q + kv}, Part::kept);
            take(l.attn, compute, Shape{tokens, q}, Part::kept);
            take(l.lse, DType::f32, Shape{spec.heads, tokens}, Part::kept);
            if (!parallel) take(l.x1, DType::f32, Shape{tokens, dim}, Part::kept);
            take(l.gu, compute, Shape{tokens, (spec.gated ? 2 : 1) * hidden}, Part::kept);
        }
        if (cheap) {
            take(l.h1, compute, Shape{tokens, dim}, Part::kept);
            take(l.h2, compute, Shape{tokens, dim}, Part::kept);
            take(l.a, compute, Shape{tokens, hidden}, Part::kept);
        }
    };
    const bool keep_middle = recompute != Recompute::full;
    const bool keep_cheap = recompute == Recompute::none;
    of_layer(shared, false, !keep_middle, !keep_cheap);
    for (Layer& layer : b.layers) {
        layer = shared;
        of_layer(layer, true, keep_middle, keep_cheap);
    }
    take(b.x_out, DType::f32, Shape{tokens, dim}, Part::kept);
    if (spec.rope.rotary > 0) {
        take(b.cos_sin, DType::f32, Shape{tokens, spec.rope.rotary / 2, 2}, Part::work);
    }
    take(b.losses, DType::f32, Shape{shape.half()}, Part::work);
    take(b.dx, DType::f32, Shape{tokens, dim}, Part::work);
    b.dxc = b.dx;
    if (compute != DType::f32) take(b.dxc, compute, Shape{tokens, dim}, Part::work);
    take(b.dh, compute, Shape{tokens, dim}, Part::work);
    if (parallel) take(b.dh2, compute, Shape{tokens, dim}, Part::work);
    take(b.hf, compute, Shape{rows, dim}, Part::head);
    take(b.dhf, compute, Shape{rows, dim}, Part::head);
    take(b.logits, compute, Shape{rows, logit_columns(spec, compute)}, Part::head);
    if (shape.block > 0) {
        take(b.xm, DType::f32, Shape{rows, dim}, Part::head);
        take(b.dxm, DType::f32, Shape{rows, dim}, Part::head);
    }
    take(b.da, compute, Shape{tokens, hidden}, Part::mlp);
    take(b.dattn, compute, Shape{tokens, q}, Part::attention);
    take(b.dqkv, compute, Shape{tokens, q + 2 * kv}, Part::attention);
    if (shape.block > 0) {
        take(b.part, compute, Shape{shape.half(), q + 2 * kv}, Part::attention);
        take(b.own_lse, DType::f32, Shape{spec.heads, shape.half()}, Part::attention);
    }
}

MemoryPlan TrainPass::plan(const ModelSpec& spec, const TrainShape& shape, Recompute recompute,
                           DType compute) {
    std::size_t bytes[5] = {};
    Buffers unused;
    for_each_buffer(spec, shape, recompute, compute, unused,
                    [&](Tensor&, DType dtype, Shape dims, Part part) {
                        bytes[static_cast<int>(part)] += padded_bytes(dtype, dims);
                    });
    MemoryPlan plan;
    plan.add("activations", bytes[0]);
    plan.add("workspace", bytes[1] + std::max({bytes[2], bytes[3], bytes[4]}));
    return plan;
}

TrainPass::TrainPass(const ParamLayout& layout, const TrainShape& shape, Recompute recompute,
                     TrainOps& ops)
    : spec_(layout.spec),
      shape_(shape),
      recompute_(recompute),
      ops_(ops),
      b_(std::make_unique<Buffers>()) {
    const MemoryPlan memory = plan(spec_, shape_, recompute_, ops_.compute_type());
    std::byte* next[5];
    next[0] = static_cast<std::byte*>(ops_.allocate("activations", memory.items()[0].bytes));
    next[1] = static_cast<std::byte*>(ops_.allocate("workspace", memory.items()[1].bytes));
    bool split = false;
    for_each_buffer(spec_, shape_, recompute_, ops_.compute_type(), *b_,
                    [&](Tensor& tensor, DType dtype, Shape dims, Part part) {
                        if (part >= Part::head && !split) {  // behind what they do not share
                            next[2] = next[3] = next[4] = next[1];
                            split = true;
                        }
                        std::byte*& at = next[static_cast<int>(part)];
                        tensor = Tensor(at, dtype, dims);
                        at += padded_bytes(dtype, dims);
                    });
    for (int i = 0; i < spec_.layers; ++i) {
        b_->layers[static_cast<std::size_t>(i)].of = spec_.layer(i);
    }
    if (b_->cos_sin) make_rope_table();
}

TrainPass::~TrainPass() = default;

Tensor TrainPass::losses() const { return b_->losses; }

void TrainPass::make_rope_table() {
    const RopeFrequencies rope = rope_frequencies(spec_.rope);
    std::vector<std::int32_t> positions;
    for (std::int64_t t = 0; t < shape_.tokens(); ++t) {
        positions.push_back(static_cast<std::int32_t>(t % shape_.seq));
    }
    std::vector<float> host(static_cast<std::size_t>(b_->cos_sin.shape.count()));
    Context ctx;
    ctx.pool = &ops_.pool();
    ops::rope_table(ctx, Tensor(host.data(), DType::f32, b_->cos_sin.shape), positions,
                    rope.inv_freq, rope.magnitude);
    ops_.write(b_->cos_sin.data, host.data(), b_->cos_sin.bytes());
}

void TrainPass::norm(const LayerSpec& of, Tensor out, Tensor x, Tensor weight, Tensor bias) {
    ops_.norm(of.norm, of.norm_eps, out, x, weight, bias);
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
    if (b_->cos_sin) {  // queries and keys lie side by side and turn alike
        ops_.rope(heads_of(qk, 0, heads + kv, size), b_->cos_sin, a.of.rope.style, false);
    }
    const QkvHeads x_heads{heads_of(qk, 0, heads, size), heads_of(qk, heads, kv, size),
                           heads_of(a.qkv, heads + kv, kv, size)};
    const ops::HeadRows attn = heads_of(a.attn, 0, heads, size);
    if (shape_.block > 0) {
        diffusion_attention(ops_, shape_,
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

// `out` none: all but the layer's output, for a backward that kept nothing else.
void TrainPass::forward_layer(const LayerWeights& w, const Layer& a, Tensor out) {
    norm(a.of, a.h1, a.x, w.attn_norm, w.attn_norm_bias);
    if (spec_.residual == Residual::parallel) {
        norm(a.of, a.h2, a.x, w.mlp_norm, w.mlp_norm_bias);
        forward_mlp(w, a, a.x, out);
        forward_attention(w, a, out, out);
    } else {
        forward_attention(w, a, a.x, a.x1);
        norm(a.of, a.h2, a.x1, w.mlp_norm, w.mlp_norm_bias);
        forward_mlp(w, a, a.x1, out);
    }
}

void TrainPass::forward(const Weights& weights, int slot) {
    ops_.at(-1);
    std::vector<Layer>& layers = b_->layers;
    ops_.embed(layers.front().x, weights.embedding, weights.positions, slot);
    for (std::size_t i = 0; i < layers.size(); ++i) {
        ops_.at(static_cast<int>(i));
        forward_layer(weights.layers[i], layers[i],
                      i + 1 < layers.size() ? layers[i + 1].x : b_->x_out);
    }
    ops_.at(-1);
}

// Rows of the last layer's output through the head, some at a time: losses, and with `grads` the
// gradients of the head, of the final norm, and of the residual stream. Of a pass with two halves
// these are the rows of unknown tokens: no other is computed, and no other has a gradient.
void TrainPass::head(const Weights& weights, const Weights* grads, int slot, float scale,
                     std::int64_t counted) {
    const Buffers& b = *b_;
    const bool some = shape_.block > 0, copy = b.dxc.data != b.dx.data;
    if (some && grads) {
        ops_.zero(b.dx);
        if (copy) ops_.zero(b.dxc);
    }
    // A bias has no room behind it.
    const bool wide = b.logits.dim(1) > spec_.vocab && !weights.head_bias;
    const Tensor head = wide ? head_matrix(spec_, weights) : weights.head;
    for (std::int64_t first = 0; first < counted; first += shape_.head_rows) {
        const std::int64_t rows = std::min(shape_.head_rows, counted - first);
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
        if (some) ops_.scatter_rows(b.dx, copy ? b.dxc : Tensor(), dx, slot, first);
    }
}

bool TrainPass::norm_backward(const LayerSpec& of, Tensor dy, Tensor x, Tensor weight,
                              Tensor dweight, Tensor dbias, bool copy, Tensor dsum) {
    const Buffers& b = *b_;
    copy = copy && b.dxc.data != b.dx.data;
    return ops_.norm_backward({.kind = of.norm,
                               .eps = of.norm_eps,
                               .dx = b.dx,
                               .copy = copy ? b.dxc : Tensor(),
                               .residual = b.dx,
                               .dweight = dweight,
                               .dbias = dbias,
                               .dsum = dsum,
                               .dy = dy,
                               .x = x,
                               .weight = weight});
}

// What a layer did not keep. The same operations on the same values: the same bits.
void TrainPass::remake(const LayerWeights& w, const Layer& a) {
    if (recompute_ == Recompute::none) return;
    if (recompute_ == Recompute::full) {
        if (spec_.residual == Residual::parallel) {
            norm(a.of, a.h1, a.x, w.attn_norm, w.attn_norm_bias);
            norm(a.of, a.h2, a.x, w.mlp_norm, w.mlp_norm_bias);
            forward_mlp(w, a, {}, {});
            forward_attention(w, a, {}, {});
        } else {
            forward_layer(w, a, {});
        }
        return;
    }
    norm(a.of, a.h1, a.x, w.attn_norm, w.attn_norm_bias);
    norm(a.of, a.h2, spec_.residual == Residual::parallel ? a.x : a.x1, w.mlp_norm,
         w.mlp_norm_bias);
    ops_.activation(a.a, a.gu, left_to_activation(a, w.up_bias), a.of.activation, a.of.gated);
}

// dh = the gradient of h2, from that of the MLP's output, dxc.
void TrainPass::backward_mlp(const LayerWeights& w, const LayerWeights& g, const Layer& a,
                             Tensor dh, Tensor down_bias) {
    const Buffers& b = *b_;
    ops_.linear_input(b.da, b.dxc, w.down);
    ops_.linear_weight(g.down, down_bias, b.dxc, a.a);
    const bool with_bias = ops_.activation_backward(
        a.gu, g.up_bias, b.da, a.gu, left_to_activation(a, w.up_bias), a.of.activation, a.of.gated);
    ops_.linear_input(dh, a.gu, gate_up_matrix(spec_, w));
    ops_.linear_weight(gate_up_matrix(spec_, g), with_bias ? Tensor() : g.up_bias, a.gu, a.h2);
}

// dh = the gradient of h1, from that of attention's output, dxc.
void TrainPass::backward_attention(const LayerWeights& w, const LayerWeights& g, const Layer& a,
                                   Tensor o_bias) {
    const Buffers& b = *b_;
    const std::int64_t heads = spec_.heads, kv = spec_.kv_heads, size = spec_.head_dim;
    ops_.linear_input(b.dattn, b.dxc, w.o);
    ops_.linear_weight(g.o, o_bias, b.dxc, a.attn);
    const Tensor qk = a.of.qk_norm ? a.qk : a.qkv;
    const ops::HeadRows dq = heads_of(b.dqkv, 0, heads, size);
    const ops::HeadRows dk = heads_of(b.dqkv, heads, kv, size);
    const ops::HeadRows dv = heads_of(b.dqkv, heads + kv, kv, size);
    const QkvHeads x{heads_of(qk, 0, heads, size), heads_of(qk, heads, kv, size),
                     heads_of(a.qkv, heads + kv, kv, size)};
    const ops::HeadRows dout = heads_of(b.dattn, 0, heads, size);
    const ops::HeadRows out = heads_of(a.attn, 0, heads, size);
    if (shape_.block > 0) {
        const QkvHeads part{heads_of(b.part, 0, heads, size), heads_of(b.part, heads, kv, size),
                            heads_of(b.part, heads + kv, kv, size)};
        diffusion_attention_backward(ops_, shape_, {dq, dk, dv}, part, dout, x, out, a.lse,
                                     a.of.mask, a.of.scale);
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

// dx, the gradient of the layer's output, becomes that of its input. What a norm adds to dx last is
// what the next bias down the stream has as its gradient, summed over tokens.
bool TrainPass::backward_layer(const LayerWeights& w, const LayerWeights& g, const Layer& a,
                               Tensor down_bias, Tensor below) {
    const Buffers& b = *b_;
    remake(w, a);
    if (spec_.residual == Residual::parallel) {
        // Both branches read dxc, so both are done before either norm adds to it.
        backward_mlp(w, g, a, b.dh2, down_bias);
        backward_attention(w, g, a, g.o_bias);
        norm_backward(a.of, b.dh2, a.x, w.mlp_norm, g.mlp_norm, g.mlp_norm_bias, false, {});
    } else {
        backward_mlp(w, g, a, b.dh, down_bias);
        const bool taken = norm_backward(a.of, b.dh, a.x1, w.mlp_norm, g.mlp_norm, g.mlp_norm_bias,
                                         true, g.o_bias);
        backward_attention(w, g, a, taken ? Tensor() : g.o_bias);
    }
    return norm_backward(a.of, b.dh, a.x, w.attn_norm, g.attn_norm, g.attn_norm_bias, true, below);
}

void TrainPass::step(const Weights& weights, const Weights& grads, int slot, float scale,
                     std::int64_t counted) {
    forward(weights, slot);
    head(weights, &grads, slot, scale, counted);
    bool taken = false;  // the layer's down_bias, by the layer above
    for (std::size_t i = b_->layers.size(); i-- > 0;) {
        ops_.at(static_cast<int>(i));
        const LayerWeights& g = grads.layers[i];
        taken = backward_layer(weights.layers[i], g, b_->layers[i], taken ? Tensor() : g.down_bias,
                               i > 0 ? grads.layers[i - 1].down_bias : Tensor());
    }
    ops_.at(-1);
    ops_.embed_backward(grads.embedding, grads.positions, b_->dx, slot);
    ops_.done(slot);
}

void TrainPass::evaluate(const Weights& weights, int slot, std::int64_t counted) {
    forward(weights, slot);
    head(weights, nullptr, slot, 0, counted);
    ops_.done(slot);
}

}  // namespace mr::model
