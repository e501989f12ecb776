// linear() and its backward for training on the GPU: all tensors are on the device; x, w and dy are
// bf16, sums are f32. Unlike gemm() (gemm_cuda.h) it takes the best algorithm for the number of
// tokens, so a row's bits may depend on the number of other rows. A call's bits depend on its
// tensors alone: sums over parts have one order, and there are no atomic additions.
//
// Rows of out and dy may be longer than n, so that a vocabulary can be padded to a size that suits
// the products: the columns beyond are neither read nor written.
//
// cuBLASLt if it can be opened and accepts the shape, else a plain kernel of our own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::cuda {

struct TrainGemmOptions {
    OpKind kind = OpKind::linear;
    bool own_kernel = false;  // do not use cuBLASLt
    // The first call of a shape times the library's algorithms and waits for them; among those with
    // the bits of the library's first choice it takes the fastest. Not while a stream is captured.
    bool timed = false;
};

// out = x · wᵀ (+ bias) (+ residual). out [tokens, n or more] bf16 or f32, x [tokens, k], w [n, k];
// bias f32 [n] or none, rounded to out's type; residual of out's shape and type, or none; may be
// out.
void linear_forward(const Context& ctx, Tensor out, Tensor x, Tensor w, Tensor bias = {},
                    Tensor residual = {}, const TrainGemmOptions& options = {});

// dx = dy · w, or dx += dy · w if `accumulate`. dx [tokens, k] bf16 or f32, dy [tokens, n or more].
void linear_backward_input(const Context& ctx, Tensor dx, Tensor dy, Tensor w,
                           bool accumulate = false, const TrainGemmOptions& options = {});

// dw += dyᵀ · x, dbias += the sum of dy over tokens. dw f32 [n, k], dbias f32 [n] or none,
// dy [tokens, n or more], x [tokens, k].
void linear_backward_weight(const Context& ctx, Tensor dw, Tensor dbias, Tensor dy, Tensor x,
                            const TrainGemmOptions& options = {});

// Only dbias += the sum of dy over tokens; tensors as above.
void bias_gradient(const Context& ctx, Tensor dbias, Tensor dy);

// Scratch that suffices for each of these.
std::size_t linear_train_scratch_bytes(std::int64_t max_n);

}  // namespace mr::cuda
