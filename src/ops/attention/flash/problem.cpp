#include "ops/attention/flash/problem.h"

#include <algorithm>
#include <cmath>

namespace mr::cuda::flash {
namespace {

constexpr std::int64_t kMostTokens = Mask::kNever - 1;
constexpr std::int64_t kMostStride = std::int64_t{1} << 40;  // bytes: TMA's limit

void check_rows(const ops::HeadRows& x, DType dtype) {
    MR_CHECK(x.tensor.shape.rank == 3, "attention's tensors are [tokens, heads, head_dim]");
    MR_CHECK(x.tensor.dtype == dtype, "attention's tensors are all of one type");
    MR_CHECK(x.tokens() >= 0 && x.tokens() <= kMostTokens,
             "attention's tensors have less than 2^30 tokens");
    MR_CHECK(x.token_stride >= x.heads() * x.head_dim(),
             "a token's stride is no less than heads * head_dim");
    MR_CHECK(dtype_bytes(dtype, static_cast<std::size_t>(x.token_stride)) % 16 == 0,
             "tokens lie a multiple of 16 bytes apart on the GPU: a stride of 8 elements (f32: 4)");
    MR_CHECK(x.token_stride < kMostStride / 4, "a token's stride is less than 2^38 elements");
    MR_CHECK(x.tensor.data || x.tokens() == 0, "attention's tensors have memory: no null pointers");
    MR_CHECK(reinterpret_cast<std::uintptr_t>(x.tensor.data) % 16 == 0,
             "attention's tensors begin at a multiple of 16 bytes on the GPU");
}

void check_like(const ops::HeadRows& x, const ops::HeadRows& model) {
    check_rows(x, model.tensor.dtype);
    MR_CHECK(x.tensor.shape == model.tensor.shape,
             "out, dout and dq have the shape of q; v, dk and dv have the shape of k");
}

View view(const ops::HeadRows& x) { return {x.tensor.data, x.token_stride}; }

Problem checked(const Context& ctx, const ops::HeadRows& out, const Tensor& lse,
                const ops::HeadRows& q, const ops::HeadRows& k, const ops::HeadRows& v,
                const FlashBatch& batch, const ops::AttentionMask& mask, float scale, int max_dim) {
    MR_CHECK(ctx.cuda, "attention on the GPU is given a stream");
    const DType dtype = q.tensor.dtype;
    MR_CHECK(is_float(dtype), "attention's tensors are f32, f16 or bf16");
    check_rows(q, dtype);
    check_rows(k, dtype);
    check_like(v, k);
    check_like(out, q);
    MR_CHECK(q.head_dim() == k.head_dim(), "q, k and v have one head_dim");
    MR_CHECK(q.head_dim() >= 8 && q.head_dim() % 8 == 0 && q.head_dim() <= max_dim,
             "head_dim is a multiple of 8, from 8 to 256 forward and to 128 backward on the GPU");
    MR_CHECK(q.heads() > 0 && k.heads() > 0 && q.heads() % k.heads() == 0,
             "heads is a multiple of kv_heads");
    MR_CHECK(q.heads() <= 65535, "there are at most 65535 heads");
    MR_CHECK(lse.dtype == DType::f32 && lse.shape == (Shape{q.heads(), q.tokens()}),
             "the log-sum-exp is f32 [heads, tokens_q]");
    MR_CHECK(lse.data || q.tokens() == 0, "the log-sum-exp has memory: no null pointers");
    MR_CHECK(reinterpret_cast<std::uintptr_t>(lse.data) % alignof(float) == 0,
             "the log-sum-exp begins at a multiple of 4 bytes");
    MR_CHECK((batch.cu_q == nullptr) == (batch.cu_k == nullptr),
             "cu_q and cu_k are for the same sequences: both in device memory, or none");
    MR_CHECK(batch.sequences >= 0 && batch.max_queries >= 0 && batch.max_keys >= 0,
             "the batch has no negative number of sequences, queries or keys");
    MR_CHECK(
        !batch.cu_q || batch.sequences == 0 ||
            ((batch.max_queries > 0 || q.tokens() == 0) && (batch.max_keys > 0 || k.tokens() == 0)),
        "a batch with cu_q and cu_k says how many queries and keys a sequence has at most");
    MR_CHECK(mask.block >= 1 && mask.window >= 0 && mask.sinks >= 0,
             "the mask has a block of at least 1, a window and sinks of at least 0");
    MR_CHECK(scale > 0 && std::isfinite(scale), "the scale is positive and finite");

    Problem p;
    p.q = view(q);
    p.k = view(k);
    p.v = view(v);
    p.out = view(out);
    p.lse = static_cast<float*>(lse.data);
    p.cu_q = batch.cu_q;
    p.cu_k = batch.cu_k;
    p.tokens_q = static_cast<int>(q.tokens());
    p.tokens_k = static_cast<int>(k.tokens());
    p.sequences = batch.sequences;
    p.max_queries = std::min(batch.max_queries, p.tokens_q);
    p.max_keys = std::min(batch.max_keys, p.tokens_k);
    if (!batch.cu_q && batch.sequences == 0) {
        p.sequences = 1;
        p.max_queries = p.tokens_q;
        p.max_keys = p.tokens_k;
    } else if (!batch.cu_q) {
        MR_CHECK(std::int64_t{batch.sequences} * batch.max_queries <= p.tokens_q &&
                     std::int64_t{batch.sequences} * batch.max_keys <= p.tokens_k,
                 "the sequences of a batch without cu_q and cu_k lie inside the tensors");
    }
    MR_CHECK(p.sequences <= 65535, "a batch has at most 65535 sequences");
    p.heads = static_cast<int>(q.heads());
    // Kernels number tiles of 64 rows and more with an int.
    const auto tiles = [&](int tokens) {
        return (std::int64_t{std::max(tokens, 1)} + 63) / 64 * p.sequences * p.heads;
    };
    MR_CHECK(tiles(p.max_queries) < Mask::kNever && tiles(p.max_keys) < Mask::kNever,
             "sequences * heads * longest sequence / 64 is less than 2^30");
    p.kv_heads = static_cast<int>(k.heads());
    p.group = p.heads / p.kv_heads;
    p.head_dim = static_cast<int>(q.head_dim());
    p.mask = Mask(mask);
    p.scale = scale;
    p.dtype = dtype;
    return p;
}

}  // namespace

Problem checked_forward(const Context& ctx, const ops::HeadRows& out, const Tensor& lse,
                        const ops::HeadRows& q, const ops::HeadRows& k, const ops::HeadRows& v,
                        const FlashBatch& batch, const ops::AttentionMask& mask, float scale) {
    return checked(ctx, out, lse, q, k, v, batch, mask, scale, kFlashForwardMaxDim);
}

Problem checked_backward(const Context& ctx, const ops::FlashGradients& gradients,
                         const ops::HeadRows& dout, const ops::HeadRows& q, const ops::HeadRows& k,
                         const ops::HeadRows& v, const ops::HeadRows& out, const Tensor& lse,
                         const FlashBatch& batch, const ops::AttentionMask& mask, float scale,
                         std::size_t scratch_bytes, BackwardViews& views) {
    const Problem p = checked(ctx, out, lse, q, k, v, batch, mask, scale, kFlashBackwardMaxDim);
    check_like(dout, q);
    check_like(gradients.dq, q);
    check_like(gradients.dk, k);
    check_like(gradients.dv, k);
    MR_CHECK(scratch_bytes == 0 || (ctx.scratch.data() && ctx.scratch.size() >= scratch_bytes),
             "attention's backward is given flash_backward_scratch_bytes() of device memory");
    views = {view(dout), view(gradients.dq), view(gradients.dk), view(gradients.dv)};
    return p;
}

Amount amount_of(const Problem& p) {
    Amount a;
    if (p.sequences == 0) return a;
    // A sequence of mean length; with a full mask and equal lengths this is exact.
    const int queries = std::min(p.max_queries, (p.tokens_q + p.sequences - 1) / p.sequences);
    const int keys = std::min(p.max_keys, (p.tokens_k + p.sequences - 1) / p.sequences);
    std::uint64_t pairs = 0;
    // Some hundred rows represent all: the host must not count to a million in every call.
    const int step = std::max(1, queries / 256);
    int rows = 0;
    for (int i = step / 2; i < queries; i += step, ++rows) {
        const int position = keys - queries + i;
        const int hi = p.mask.hi(position, keys), lo = std::min(p.mask.lo(position), hi);
        pairs += static_cast<std::uint64_t>(hi - lo + std::min(p.mask.sinks, lo));
    }
    const auto sequences = static_cast<std::uint64_t>(p.sequences);
    if (rows > 0)
        pairs = pairs * static_cast<std::uint64_t>(queries) / static_cast<std::uint64_t>(rows);
    const auto heads = static_cast<std::uint64_t>(p.heads);
    const auto kv_heads = static_cast<std::uint64_t>(p.kv_heads);
    const auto dim = static_cast<std::uint64_t>(p.head_dim);
    const auto all_queries = sequences * static_cast<std::uint64_t>(queries);
    const auto all_keys = sequences * static_cast<std::uint64_t>(keys);
    a.q_bytes = dtype_bytes(p.dtype, all_queries * heads * dim);
    a.k_bytes = dtype_bytes(p.dtype, all_keys * kv_heads * dim);
    a.lse_bytes = all_queries * heads * 4;
    a.product_flops = 2 * sequences * pairs * heads * dim;
    return a;
}

}  // namespace mr::cuda::flash
