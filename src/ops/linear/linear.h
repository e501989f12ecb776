#pragma once

#include <cstddef>
#include <span>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::ops {

// One product of a group that shares its input.
struct LinearOut {
    Tensor w;              // [n, k] f32, f16, bf16, q8_0 or q4_0 (GGUF's block layout, unaligned)
    Tensor out;            // [tokens, n] f32
    Tensor bias = {};      // [n] f32, or none
    Tensor residual = {};  // [tokens, n] f32, or none; may be `out` itself
};

// For every output of the group: out = x · wᵀ (+ bias) (+ residual).   x f32 [tokens, k].
//
// Weights of 8 and 4 bits meet activations quantised to 8 bits in blocks of 32; all other weights
// meet them in f32. The bits of out[t, :] depend on x[t, :] and w alone: not on the number of
// tokens, the threads, or the other members of the group (one order of summation everywhere).
//
// Scratch: linear_scratch_bytes() of ctx.scratch.
void linear(const Context& ctx, Tensor x, std::span<const LinearOut> group,
            OpKind kind = OpKind::linear);
inline void linear(const Context& ctx, Tensor x, const LinearOut& out,
                   OpKind kind = OpKind::linear) {
    linear(ctx, x, std::span<const LinearOut>(&out, 1), kind);
}

std::size_t linear_scratch_bytes(std::int64_t max_tokens, std::int64_t max_k, int threads);

}  // namespace mr::ops
