// Attention on plain tensors on the GPU, forward and backward. The meaning is that of flash.h; the
// tensors, the lengths and the scratch lie in device memory. docs/attention.md derives the kernels.
//
// q, k, v, out and their gradients are all f32, all f16 or all bf16; sums are f32. head_dim is a
// multiple of 8, forward up to 256 and backward up to 128. Every tensor is 16-byte aligned, and its
// tokens are a multiple of 16 bytes apart. Limits: include/millrace/attention.h. A call that breaks
// this throws ContractError with the sentence it broke.
//
// Fast on tensor cores for f16 and bf16: wgmma and TMA on sm_90a, mma.sync from sm_80 on; plain
// kernels for f32 and before sm_80.
//
// Nothing is allocated, copied to the host or waited for: calls can be captured in a graph.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/attention/flash/flash.h"

namespace mr::cuda {

// A packed batch: sequence i has queries [cu_q[i], cu_q[i + 1]) and keys [cu_k[i], cu_k[i + 1]), as
// in ops::PackedBatch, but the lengths are read from DEVICE memory when the kernels run; the host
// knows only bounds. Both null: `sequences` sequences of max_queries queries and max_keys keys, one
// after the other (0 sequences: one, all queries and all keys).
// Lengths beyond the maxima or the tensors are cut to them.
struct FlashBatch {
    const std::int32_t* cu_q = nullptr;  // [sequences + 1], from 0, never falling
    const std::int32_t* cu_k = nullptr;
    int sequences = 0;
    int max_queries = 0, max_keys = 0;  // of any sequence
};

inline constexpr int kFlashForwardMaxDim = 256;
inline constexpr int kFlashBackwardMaxDim = 128;

// out and lse [heads, tokens_q] f32 as ops::flash_forward. Needs no scratch. Different calls may
// run concurrently, but not two replays of one captured call: they would write the same tensors.
// The bits of a row depend on its own query and its sequence's keys and values alone.
void flash_forward(const Context& ctx, const ops::HeadRows& out, Tensor lse, const ops::HeadRows& q,
                   const ops::HeadRows& k, const ops::HeadRows& v, const FlashBatch& batch,
                   const ops::AttentionMask& mask, float scale);

// dq, dk and dv as ops::flash_backward, in the tensors' own type. Deterministic: bits depend on a
// sequence's own tensors alone. ctx.scratch: flash_backward_scratch_bytes(), not shared with other
// calls while it runs.
void flash_backward(const Context& ctx, const ops::FlashGradients& gradients,
                    const ops::HeadRows& dout, const ops::HeadRows& q, const ops::HeadRows& k,
                    const ops::HeadRows& v, const ops::HeadRows& out, Tensor lse,
                    const FlashBatch& batch, const ops::AttentionMask& mask, float scale);

// Scratch for queries of this type and shape; `batch` gives the number of sequences. O(tokens),
// plus a tile for every sequence and head. Independent of the keys.
std::size_t flash_backward_scratch_bytes(const ops::HeadRows& q, const FlashBatch& batch);

}  // namespace mr::cuda
