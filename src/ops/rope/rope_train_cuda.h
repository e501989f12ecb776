// Queries and keys between their projection and attention on the GPU, in place inside of the fused
// projection [tokens, heads + 2 kv_heads, head_dim], forward and backward. Semantics as in
// rope_train.h; heads are bf16 in device memory, arithmetic is f32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/attention/flash/flash.h"
#include "ops/rope/rope.h"

namespace mr::cuda {

// Rotates the first 2 * cos_sin.dim(1) elements of every head; `backward`: by the negative angle.
// cos_sin f32 [positions, rotary/2, 2]: token t uses row t % positions, so that consecutive
// sequences of equal length share the rows.
void rope_heads(const Context& ctx, const ops::HeadRows& x, Tensor cos_sin, ops::RopeStyle style,
                bool backward = false);

// out = rmsnorm of every head of x, weight f32 [head_dim]. out may be x. head_dim <= 256.
void rmsnorm_heads(const Context& ctx, const ops::HeadRows& out, const ops::HeadRows& x,
                   Tensor weight, float eps);
// dx from dy (dx may be dy); dweight f32 += the sum over tokens and heads, in an order that depends
// on their numbers alone. Scratch: rmsnorm_heads_scratch_bytes() of ctx.scratch.
void rmsnorm_heads_backward(const Context& ctx, const ops::HeadRows& dx, Tensor dweight,
                            const ops::HeadRows& dy, const ops::HeadRows& x, Tensor weight,
                            float eps);
std::size_t rmsnorm_heads_scratch_bytes();

}  // namespace mr::cuda
