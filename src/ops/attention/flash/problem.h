// A checked call of attention on the GPU: kernels get a Problem and trust it. The file compiles
// with and without CUDA, so that the contract is tested without a GPU.
#pragma once

#include <cstdint>

#include "ops/attention/flash/flash_cuda.h"
#include "ops/attention/flash/mask.h"

namespace mr::cuda::flash {

inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// [tokens, heads, head_dim], 16-byte aligned; `stride` elements from token to token (% 8 == 0, or
// % 4 for f32), head_dim from head to head.
struct View {
    void* data = nullptr;
    std::int64_t stride = 0;
    template <typename T>
    constexpr T* row(std::int64_t token, int head, int head_dim) const {
        return static_cast<T*>(data) + token * stride + std::int64_t{head} * head_dim;
    }
};

struct Problem {
    View q, k, v, out;
    float* lse = nullptr;  // [heads, tokens_q]
    const std::int32_t* cu_q = nullptr;
    const std::int32_t* cu_k = nullptr;
    int sequences = 1, max_queries = 0, max_keys = 0;
    int tokens_q = 0, tokens_k = 0;
    int heads = 1, kv_heads = 1, group = 1, head_dim = 0;
    Mask mask;
    float scale = 1;
    DType dtype = DType::bf16;

    // On the device only, where cu_q and cu_k can be read.
    constexpr Sequence sequence(int i) const {
        if (!cu_q) {
            return {i * max_queries, i * max_keys, max_queries, max_keys};
        }
        const int q_begin = clamp_to(cu_q[i], tokens_q), k_begin = clamp_to(cu_k[i], tokens_k);
        return {q_begin, k_begin, clamp_to(clamp_to(cu_q[i + 1], tokens_q) - q_begin, max_queries),
                clamp_to(clamp_to(cu_k[i + 1], tokens_k) - k_begin, max_keys)};
    }

  private:
    static constexpr int clamp_to(int x, int most) { return x < 0 ? 0 : x > most ? most : x; }
};

// Throws ContractError. Empty problems (no token, no sequence) are allowed; the caller launches
// nothing if there is no query.
Problem checked_forward(const Context& ctx, const ops::HeadRows& out, const Tensor& lse,
                        const ops::HeadRows& q, const ops::HeadRows& k, const ops::HeadRows& v,
                        const FlashBatch& batch, const ops::AttentionMask& mask, float scale);
// The same for the backward: `out` and `lse` are inputs, and dout, dq are like q, dk, dv like k.
// ctx.scratch is checked against `scratch_bytes`.
struct BackwardViews {
    View dout, dq, dk, dv;
};
Problem checked_backward(const Context& ctx, const ops::FlashGradients& gradients,
                         const ops::HeadRows& dout, const ops::HeadRows& q, const ops::HeadRows& k,
                         const ops::HeadRows& v, const ops::HeadRows& out, const Tensor& lse,
                         const FlashBatch& batch, const ops::AttentionMask& mask, float scale,
                         std::size_t scratch_bytes, BackwardViews& views);

// One product (queries x keys that the mask leaves x head_dim, all heads) in FLOPs and the bytes of
// q (or out), k (or v) and lse, for the ledger: if only the device knows the lengths, as if all
// sequences were equally long.
struct Amount {
    std::uint64_t q_bytes = 0, k_bytes = 0, lse_bytes = 0, product_flops = 0;
};
Amount amount_of(const Problem& p);

}  // namespace mr::cuda::flash
