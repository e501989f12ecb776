// Attention on raw device pointers and a stream: forward and backward, without an engine, a model
// or a framework around it. Exact, deterministic, and never stores the matrix of scores: besides
// its results forward needs one number per row and head, backward head_dim + 2 more (each
// sequence's rows rounded up to tiles of 64 or 128).
//
// clang-format off
//   s[i, j]   = scale * q[i, h] · k[j, g]        for the keys j that query i sees; g = h / (heads / kv_heads)
//   lse[h, i] = log(sum over j of exp(s[i, j]))
//   out[i, h] = sum over j of exp(s[i, j] - lse[h, i]) * v[j, g]
// clang-format on
//
// All memory is on the current device, which must be the same in all calls of a process (kernels
// are chosen for the device of the first call). Calls return at once and can be captured in a
// graph. Every function throws std::exception with the sentence of this contract that was broken.
//
// Limits: 65,535 heads and as many sequences; less than 2^30 tokens, 2^38 elements from token to
// token, and 2^30 tiles of 64 tokens in all (sequences * heads * longest sequence / 64). Before
// Hopper (sm_90) a sequence has at most 4 million queries, backward as many keys; in the backward
// without tensor cores (f32, or before sm_80) 2 million of both.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace {

enum class AttentionType { f32, f16, bf16 };

// Which keys j a query at position p sees (the last query is at the last key's position):
enum class AttentionMask {
    full,          // all
    causal,        // j <= p
    block_causal,  // floor((j - origin) / block) <= floor((p - origin) / block)
};

struct Attention {
    AttentionType type = AttentionType::bf16;  // of all tensors except lse, which is f32
    int heads = 1, kv_heads = 1;               // heads is a multiple of kv_heads
    int head_dim = 64;                         // a multiple of 8, up to 256 (backward 128)
    float scale = 0;                           // 0: 1 / sqrt(head_dim)

    // [tokens, heads, head_dim]: q, out [tokens_q, heads, ...]; k, v [tokens_k, kv_heads, ...].
    // Tokens are `*_stride` elements apart (0: heads * head_dim, that is, no gaps). Pointers and
    // strides are multiples of 16 bytes.
    std::int64_t tokens_q = 0, tokens_k = 0;
    const void *q = nullptr, *k = nullptr, *v = nullptr;
    void* out = nullptr;
    float* lse = nullptr;  // [heads, tokens_q]
    std::int64_t q_stride = 0, k_stride = 0, v_stride = 0, out_stride = 0;

    // Sequence i has queries [cu_q[i], cu_q[i + 1]) and keys [cu_k[i], cu_k[i + 1]); both arrays
    // lie on the device, and no sequence exceeds the maxima. Both null: `sequences` of max_queries
    // queries and max_keys keys each, one after the other (0: one sequence of all tokens).
    const std::int32_t *cu_q = nullptr, *cu_k = nullptr;
    int sequences = 0, max_queries = 0, max_keys = 0;

    AttentionMask mask = AttentionMask::causal;
    int block = 1;   // block size of block_causal, in tokens
    int window = 0;  // > 0: only keys with p - j < window
    int sinks = 0;   // the first keys, visible in spite of a window
    int origin = 0;  // of block_causal: position where a block begins, modulo `block`
};

// Writes out and lse. `stream` is a cudaStream_t. Different calls may run concurrently, but not two
// replays of one captured call: they would write the same tensors.
void attention_forward(const Attention& call, void* stream);

// Gradients of a loss by q, k and v, from its gradient by out (`dout`) and the forward's q, k, v,
// out and lse. Each has its tensor's shape, without gaps between tokens.
struct AttentionGradients {
    const void* dout = nullptr;
    void *dq = nullptr, *dk = nullptr, *dv = nullptr;
    void* scratch = nullptr;  // of attention_backward_scratch_bytes(), on the device
    std::size_t scratch_bytes = 0;
};
std::size_t attention_backward_scratch_bytes(const Attention& call);
void attention_backward(const Attention& call, const AttentionGradients& gradients, void* stream);

}  // namespace millrace
