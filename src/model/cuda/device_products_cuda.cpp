#include "model/cuda/device_products.h"

namespace mr::model {

Tensor rows_as(Tensor buffer, DType type, std::int64_t first, std::int64_t rows,
               std::int64_t cols) {
    std::byte* data =
        static_cast<std::byte*>(buffer.data) + static_cast<std::size_t>(first) * buffer.row_bytes();
    return {data, type, {rows, cols}};
}

Tensor DeviceProducts::rope(std::int64_t first, std::int64_t rows) const {
    const Tensor& all = buffers_.rope;
    if (!all || !by_row_) return all;
    const std::int64_t pairs = all.dim(1);
    return {static_cast<float*>(all.data) + first * pairs * 2, all.dtype, {rows, pairs, 2}};
}

Tensor DeviceProducts::rope_sinks(int view, std::int64_t first, std::int64_t rows) const {
    const Tensor& all = buffers_.rope_sinks;
    const std::int64_t pairs = all.dim(2);
    return {static_cast<float*>(all.data) + (view * all.dim(1) + first) * pairs * 2,
            all.dtype,
            {rows, pairs, 2}};
}

Tensor DeviceProducts::q_sinks(int i, std::int64_t first, std::int64_t rows) const {
    if (views_.of_layer.empty() || views_.of_layer[static_cast<std::size_t>(i)] < 0) return {};
    Tensor q =
        rows_as(buffers_.q_sinks, cuda::compute_type(layer(i).o.dtype), first, rows, spec_.q_dim());
    q.shape = {rows, spec_.heads, spec_.head_dim};
    return q;
}

cuda::LinearIn DeviceProducts::qkv(const ops::DeviceBatch& batch, std::int64_t first, int i,
                                   const ops::PagedKv& kv) const {
    const LayerWeights& w = layer(i);
    const DeviceLayer& joined = weights_.layers[static_cast<std::size_t>(i)];
    const std::int64_t rows = batch.tokens;
    Tensor q = rows_as(buffers_.q, cuda::compute_type(w.o.dtype), first, rows, spec_.q_dim());
    q.shape = {rows, spec_.heads, spec_.head_dim};
    cuda::LinearIn in = qkv_sums(rows, first, i);
    in.bias = joined.qkv_bias;
    in.finish = cuda::Finish::qkv;
    in.qkv = {q, kv, rope(first, rows), layer_spec(i).rope.rotary, spec_.heads};
    in.qkv.rope_by_row = by_row_;
    in.qkv.q_sinks = q_sinks(i, first, rows);
    if (in.qkv.q_sinks) {
        in.qkv.rope_sinks = rope_sinks(views_.of_layer[static_cast<std::size_t>(i)], first, rows);
    }
    in.batch = &batch;
    return in;
}

cuda::LinearIn DeviceProducts::qkv_sums(std::int64_t rows, std::int64_t first, int i) const {
    const LayerWeights& w = layer(i);
    cuda::LinearIn in;
    in.x = rows_as(buffers_.x, DType::f32, first, rows, spec_.dim);
    in.norm = norm(layer_spec(i), w.attn_norm, w.attn_norm_bias);
    in.w = weights_.layers[static_cast<std::size_t>(i)].qkv;
    in.name = "qkv";
    return in;
}

cuda::LinearIn DeviceProducts::out(std::int64_t rows, std::int64_t first, int i) const {
    const LayerWeights& w = layer(i);
    cuda::LinearIn in;
    in.x = rows_as(buffers_.attn, cuda::compute_type(w.o.dtype), first, rows, spec_.q_dim());
    in.w = w.o;
    in.bias = w.o_bias;
    in.finish = cuda::Finish::add;
    in.out = rows_as(buffers_.x, DType::f32, first, rows, spec_.dim);
    in.name = "out";
    return in;
}

cuda::LinearIn DeviceProducts::up(std::int64_t rows, std::int64_t first, int i) const {
    const LayerWeights& w = layer(i);
    const LayerSpec& of = layer_spec(i);
    cuda::LinearIn in;
    in.x = rows_as(buffers_.x, DType::f32, first, rows, spec_.dim);
    in.norm = norm(of, w.mlp_norm, w.mlp_norm_bias);
    in.w = of.gated ? weights_.layers[static_cast<std::size_t>(i)].gate_up : w.up;
    in.bias = w.up_bias;
    in.finish = of.gated ? cuda::Finish::gate : cuda::Finish::activate;
    in.activation = of.activation;
    in.out = rows_as(buffers_.up, cuda::compute_type(w.down.dtype), first, rows, spec_.hidden);
    in.name = "mlp up";
    return in;
}

cuda::LinearIn DeviceProducts::down(std::int64_t rows, std::int64_t first, int i) const {
    const LayerWeights& w = layer(i);
    cuda::LinearIn in;
    in.x = rows_as(buffers_.up, cuda::compute_type(w.down.dtype), first, rows, spec_.hidden);
    in.w = w.down;
    in.bias = w.down_bias;
    in.finish = cuda::Finish::add;
    in.out = rows_as(buffers_.x, DType::f32, first, rows, spec_.dim);
    in.name = "down";
    return in;
}

cuda::LinearIn DeviceProducts::head(Tensor x, Tensor logits) const {
    const Weights& w = weights_.weights;
    cuda::LinearIn in;
    in.x = x;
    in.norm = norm(spec_, w.final_norm, w.final_norm_bias);
    in.w = w.head;
    in.bias = w.head_bias;
    in.out = logits;
    in.kind = OpKind::lm_head;
    in.name = "head";
    return in;
}

cuda::LinearIn DeviceProducts::head(Tensor x, const cuda::RecordsOut& records,
                                    Tensor logits) const {
    cuda::LinearIn in = head(x, logits);
    in.finish = cuda::Finish::records;
    in.records = records;
    return in;
}

cuda::StepModel DeviceProducts::step(const ops::DeviceBatch& batch, KvCache& cache,
                                     Tensor logits) const {
    const std::int64_t rows = batch.tokens;
    cuda::StepModel model;
    for (int i = 0; i < spec_.layers; ++i) {
        const ops::PagedKv kv = cache.layer(i);
        model.layers.push_back(
            {qkv(batch, 0, i, kv), out(rows, 0, i), up(rows, 0, i), down(rows, 0, i), kv});
    }
    const DType compute = cuda::compute_type(layer(0).o.dtype);
    model.q = rows_as(buffers_.q, compute, 0, rows, spec_.q_dim());
    model.attn = rows_as(buffers_.attn, compute, 0, rows, spec_.q_dim());
    model.q.shape = model.attn.shape = {rows, spec_.heads, spec_.head_dim};
    model.q_sinks = q_sinks(0, 0, rows);  // all layers share a mask, and so a view
    model.streams = by_row_;
    model.parallel = spec_.residual == Residual::parallel;
    // The same for all layers (step_takes_layer).
    model.mask = layers_.front().mask;
    model.scale = layers_.front().scale;
    if (weights_.weights.head.dtype == layer(0).o.dtype) {
        model.head = head(rows_as(buffers_.x, DType::f32, 0, rows, spec_.dim),
                          rows_as(logits, DType::f32, 0, rows, spec_.vocab));
    }
    return model;
}

}  // namespace mr::model
