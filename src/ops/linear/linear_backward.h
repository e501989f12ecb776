// linear() for training, all f32 and made for many tokens: its forward, and its backward, which is
// two products and a sum over tokens. Matrices are packed into panels in the order in which the
// registers need them (packed_kernels.h), transposed or not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::ops {

// out = x · wᵀ (+ residual) (+ bias). out, residual [tokens, n] (residual may be out), x [tokens,
// k], w [n, k], bias [n]. The bits of out[t, :] depend on row t of the operands, w and bias: not on
// threads or other tokens. They differ from those of linear(), which sums in another order.
void linear_train(const Context& ctx, Tensor out, Tensor x, Tensor w, Tensor bias = {},
                  Tensor residual = {}, OpKind kind = OpKind::linear);

// dx = dy · w, or dx += if `accumulate`. All f32: dx [tokens, k], dy [tokens, n], w [n, k]. The
// bits of dx[t, :] depend on dy[t, :], w and the old dx[t, :]: not on threads or other tokens.
void linear_backward_input(const Context& ctx, Tensor dx, Tensor dy, Tensor w,
                           bool accumulate = false, OpKind kind = OpKind::linear);

// dw += dyᵀ · x, and dbias += the sum of dy over tokens. All f32: dw [n, k], dbias [n] or none, dy
// [tokens, n], x [tokens, k]. Tokens are summed in one order, for any number of threads.
void linear_backward_weight(const Context& ctx, Tensor dw, Tensor dbias, Tensor dy, Tensor x,
                            OpKind kind = OpKind::linear);

// Scratch that suffices for each of the three.
std::size_t linear_backward_scratch_bytes(std::int64_t max_tokens, std::int64_t max_n,
                                          std::int64_t max_k, int threads);

}  // namespace mr::ops
