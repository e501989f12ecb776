// Queries and keys between their projection and attention, in place inside of the fused projection
// [tokens, heads + 2 kv_heads, head_dim]; forward and backward.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/attention/flash/flash.h"
#include "ops/rope/rope.h"

namespace mr::ops {

// rope() of every head of x, whose tokens may be strided. `backward`: rotates by the negative
// angle, which is the gradient. Token t has row t % positions of cos_sin [positions, rotary/2, 2],
// so that one sequence's table serves a batch of its length.
void rope_heads(const Context& ctx, const HeadRows& x, Tensor cos_sin, RopeStyle style,
                bool backward = false);

// out = rmsnorm of every head of x, weight [head_dim] (Qwen3). out may be x.
void rmsnorm_heads(const Context& ctx, const HeadRows& out, const HeadRows& x, Tensor weight,
                   float eps);
// dx from dy (dx may be dy); dweight += the sum over tokens and heads, in one order.
void rmsnorm_heads_backward(const Context& ctx, const HeadRows& dx, Tensor dweight,
                            const HeadRows& dy, const HeadRows& x, Tensor weight, float eps);

}  // namespace mr::ops
