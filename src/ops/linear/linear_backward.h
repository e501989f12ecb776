// The backward of linear(): two products and a sum over tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::ops {

// dx = dy · w, or dx += where `accumulate`. All f32: dx [tokens, k], dy [tokens, n], w [n, k].
// The bits of dx[t, :] depend on dy[t, :], w and what dx[t, :] was: not on threads or other tokens.
void linear_backward_input(const Context& ctx, Tensor dx, Tensor dy, Tensor w,
                           bool accumulate = false);

// dw += dyᵀ · x, and dbias += the sum of dy over tokens. All f32: dw [n, k], dbias [n] or none,
// dy [tokens, n], x [tokens, k]. Tokens are summed in one order, whatever the threads.
void linear_backward_weight(const Context& ctx, Tensor dw, Tensor dbias, Tensor dy, Tensor x);

// Of ctx.scratch, for either.
std::size_t linear_backward_scratch_bytes(std::int64_t max_tokens, std::int64_t max_n,
                                          std::int64_t max_k, int threads);

}  // namespace mr::ops
