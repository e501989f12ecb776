// AdamW on the GPU, and the sums it needs. Semantics as in adamw.h; tensors, sums and scratch are
// in device memory, so that no step waits for the host.
#pragma once

#include <cstddef>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/optimizer/adamw.h"

namespace mr::cuda {

// Scratch for either sum and any count.
std::size_t sum_scratch_bytes();
// *sum += the sum of x, f32, in f64 and in an order that depends on the count alone.
void add_sum(const Context& ctx, double* sum, Tensor x);
// *sum = the sum of x[0 .. count), in such an order.
void sum_parts(const Context& ctx, double* sum, const double* x, std::int64_t count);
// ops::block_squares() and ops::sum_of(); squares and cuts, [blocks + 1], are in device memory.
void block_squares(const Context& ctx, double* squares, Tensor x, const std::int64_t* cuts,
                   std::int64_t blocks);
void sum_of(const Context& ctx, Tensor to, Tensor a, Tensor b);

// ops::adamw() over params, grads, m, v f32 [count]; in the same pass `copy` (may be none) gets the
// parameters in bf16, and the gradients become 0, also in a skipped step. With bf16_masters the
// first `decayed` parameters exist only in `copy`, and params is f32 [count - decayed] with the
// others, whose part of `copy` is unchanged.
void adamw(const Context& ctx, const ops::AdamW& with, Tensor params, Tensor copy, Tensor grads,
           Tensor m, Tensor v, std::int64_t decayed, const double* grad_square_sum);

// to = from rounded to bf16; from is f32 with the same number of elements.
void round_to_bf16(const Context& ctx, Tensor to, Tensor from);

}  // namespace mr::cuda
