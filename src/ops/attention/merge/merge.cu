#include "core/cuda/vec8.cuh"
#include "ops/attention/merge/merge_cuda.h"

namespace mr::cuda {
namespace {

using ops::HeadRows;

constexpr int kMergeThreads = 128;

struct Heads {
    bf16* data;
    std::int64_t stride;  // elements from one token to the next
};

__device__ __forceinline__ float log_of_sum(float a, float b) {
    const float top = fmaxf(a, b), low = fminf(a, b);
    if (top == -__int_as_float(0x7f800000)) return top;
    return top + log1pf(expf(low - top));
}
// 0 if a part has no weight, also if neither part has any.
__device__ __forceinline__ float weight_of(float part, float sum) {
    return part == -__int_as_float(0x7f800000) ? 0.0f : expf(part - sum);
}

// One block per token; a thread takes eight elements of a head at a time.
__global__ void __launch_bounds__(kMergeThreads)
    merge_parts(Heads out, float* lse, Heads other, const float* other_lse, std::int64_t tokens,
                int heads, int dim, Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    const std::int64_t token = blockIdx.x;
    bf16* to = out.data + token * out.stride;
    const bf16* from = other.data + token * other.stride;
    const int pieces = dim / 8;
    for (int unit = static_cast<int>(threadIdx.x); unit < heads * pieces; unit += kMergeThreads) {
        const std::int64_t at = unit / pieces * tokens + token;
        const float a = lse[at], b = other_lse[at], sum = log_of_sum(a, b);
        const float x = weight_of(a, sum), y = weight_of(b, sum);
        float v[8], w[8];
        load_wide<8>(to + 8 * unit, v);
        load_wide<8>(from + 8 * unit, w);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            v[i] = (x > 0 ? x * v[i] : 0.0f) + (y > 0 ? y * w[i] : 0.0f);
        }
        store_wide<8>(to + 8 * unit, v);
    }
    __syncthreads();  // all threads have read lse
    for (int h = static_cast<int>(threadIdx.x); h < heads; h += kMergeThreads) {
        const std::int64_t at = h * tokens + token;
        lse[at] = log_of_sum(lse[at], other_lse[at]);
    }
}

__global__ void __launch_bounds__(kMergeThreads)
    add_head_parts(Heads to, Heads from, int pieces, Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    const std::int64_t token = blockIdx.x;
    for (int unit = static_cast<int>(threadIdx.x); unit < pieces; unit += kMergeThreads) {
        bf16* a = to.data + token * to.stride + 8 * unit;
        float v[8], w[8];
        load_wide<8>(a, v);
        load_wide<8>(from.data + token * from.stride + 8 * unit, w);
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] += w[i];
        store_wide<8>(a, v);
    }
}

Heads heads_of(const HeadRows& x) { return {static_cast<bf16*>(x.tensor.data), x.token_stride}; }

void check_alike(const Context& ctx, const HeadRows& a, const HeadRows& b) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    for (const HeadRows* x : {&a, &b}) {
        MR_CHECK(x->tensor && x->tensor.dtype == DType::bf16 && x->tensor.shape.rank == 3,
                 "heads are bf16 [tokens, heads, head_dim]");
        MR_CHECK(in_eights(x->tensor.data, x->token_stride) && x->head_dim() % 8 == 0,
                 "heads lie in pieces of 8 elements, at multiples of 16 bytes");
        MR_CHECK(x->token_stride >= x->heads() * x->head_dim(),
                 "a token's stride is no less than heads * head_dim");
    }
    MR_CHECK(a.tensor.shape == b.tensor.shape, "both parts have one shape");
}

}  // namespace

void merge_attention(const Context& ctx, const HeadRows& out, Tensor lse, const HeadRows& other,
                     Tensor other_lse) {
    check_alike(ctx, out, other);
    for (const Tensor* l : {&lse, &other_lse}) {
        MR_CHECK(*l && l->dtype == DType::f32 && l->shape == (Shape{out.heads(), out.tokens()}),
                 "the log-sum-exps are f32 [heads, tokens]");
    }
    if (out.tokens() == 0) return;
    Stamp* stamp =
        account(ctx, OpKind::attention, "attention merge",
                {1, 2 * (out.tensor.bytes() + lse.bytes()), out.tensor.bytes() + lse.bytes(),
                 3 * static_cast<std::uint64_t>(out.tensor.shape.count()), 0});
    launch(ctx, dim3(static_cast<unsigned>(out.tokens())), dim3(kMergeThreads), 0, merge_parts,
           heads_of(out), lse.f32(), heads_of(other), static_cast<const float*>(other_lse.f32()),
           out.tokens(), static_cast<int>(out.heads()), static_cast<int>(out.head_dim()), stamp);
}

void add_heads(const Context& ctx, const HeadRows& to, const HeadRows& from) {
    check_alike(ctx, to, from);
    if (to.tokens() == 0) return;
    const std::uint64_t bytes = to.tensor.bytes();
    Stamp* stamp = account(ctx, OpKind::add, "add heads", {1, 2 * bytes, bytes, bytes / 2, 0});
    launch(ctx, dim3(static_cast<unsigned>(to.tokens())), dim3(kMergeThreads), 0, add_head_parts,
           heads_of(to), heads_of(from), static_cast<int>(to.heads() * to.head_dim() / 8), stamp);
}

}  // namespace mr::cuda
