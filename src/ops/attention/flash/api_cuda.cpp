// include/millrace/attention.h: converts raw pointers to the ops' tensors and calls the ops.
#include <millrace/attention.h>

#include "core/cuda/device.h"
#include "ops/attention/flash/flash_cuda.h"

namespace millrace {
namespace {

using mr::ops::HeadRows;

mr::DType dtype_of(AttentionType type) {
    switch (type) {
        case AttentionType::f32:
            return mr::DType::f32;
        case AttentionType::f16:
            return mr::DType::f16;
        case AttentionType::bf16:
            return mr::DType::bf16;
    }
    MR_CHECK(false, "the type is AttentionType::f32, f16 or bf16");
}

mr::ops::AttentionMask::Kind kind_of(AttentionMask mask) {
    using Kind = mr::ops::AttentionMask::Kind;
    switch (mask) {
        case AttentionMask::full:
            return Kind::full;
        case AttentionMask::causal:
            return Kind::causal;
        case AttentionMask::block_causal:
            return Kind::block_causal;
    }
    MR_CHECK(false, "the mask is AttentionMask::full, causal or block_causal");
}

// The public call as arguments of the op.
struct Call {
    HeadRows q, k, v, out;
    mr::Tensor lse;
    mr::cuda::FlashBatch batch;
    mr::ops::AttentionMask mask;
    float scale;

    explicit Call(const Attention& a) {
        q = rows(a, a.q, a.tokens_q, a.heads, a.q_stride);
        k = rows(a, a.k, a.tokens_k, a.kv_heads, a.k_stride);
        v = rows(a, a.v, a.tokens_k, a.kv_heads, a.v_stride);
        out = rows(a, a.out, a.tokens_q, a.heads, a.out_stride);
        lse = {a.lse, mr::DType::f32, {a.heads, a.tokens_q}};
        batch = {a.cu_q, a.cu_k, a.sequences, a.max_queries, a.max_keys};
        mask.kind = kind_of(a.mask);
        mask.block = a.block;
        mask.window = a.window;
        mask.sinks = a.sinks;
        mask.origin = a.origin;
        scale = a.scale != 0 ? a.scale : mr::ops::default_scale(a.head_dim);
    }
    static HeadRows rows(const Attention& a, const void* data, std::int64_t tokens, int heads,
                         std::int64_t stride) {
        const mr::Tensor tensor(const_cast<void*>(data), dtype_of(a.type),
                                {tokens, heads, a.head_dim});
        return stride == 0 ? HeadRows(tensor) : HeadRows(tensor, stride);
    }
};

}  // namespace

void attention_forward(const Attention& attention, void* stream) {
    const Call c(attention);
    mr::cuda::Stream borrowed(static_cast<CUstream_st*>(stream));
    mr::Context ctx;
    ctx.cuda = &borrowed;
    ctx.dependent_launch = false;  // earlier kernels in the stream are the caller's
    mr::cuda::flash_forward(ctx, c.out, c.lse, c.q, c.k, c.v, c.batch, c.mask, c.scale);
}

std::size_t attention_backward_scratch_bytes(const Attention& attention) {
    const Call c(attention);
    return mr::cuda::flash_backward_scratch_bytes(c.q, c.batch);
}

void attention_backward(const Attention& attention, const AttentionGradients& g, void* stream) {
    const Call c(attention);
    mr::cuda::Stream borrowed(static_cast<CUstream_st*>(stream));
    mr::Context ctx;
    ctx.cuda = &borrowed;
    ctx.dependent_launch = false;
    ctx.scratch = {static_cast<std::byte*>(g.scratch), g.scratch_bytes};
    const auto like_q = [&](const void* data) {
        return Call::rows(attention, data, attention.tokens_q, attention.heads, 0);
    };
    const auto like_k = [&](const void* data) {
        return Call::rows(attention, data, attention.tokens_k, attention.kv_heads, 0);
    };
    mr::cuda::flash_backward(ctx, {like_q(g.dq), like_k(g.dk), like_k(g.dv)}, like_q(g.dout), c.q,
                             c.k, c.v, c.out, c.lse, c.batch, c.mask, c.scale);
}

}  // namespace millrace
