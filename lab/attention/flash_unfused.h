// Textbook attention: the score matrix is in memory, written by one GEMM and read by the next. Only
// benchmarks use it, to show what the fused version saves.
#pragma once

#include <cstddef>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::cuda {

// One sequence, one head, causal: q, k, v, out and the gradients are [tokens, head_dim], all f32,
// f16 or bf16. `memory` has unfused_bytes(); the backward reads what the forward left there.
// ctx.scratch: unfused_scratch_bytes(), for the GEMMs.
struct UnfusedTensors {
    Tensor q, k, v, out;
    Tensor dout = {}, dq = {}, dk = {}, dv = {};  // only for the backward
};

std::size_t unfused_bytes(std::int64_t tokens, std::int64_t head_dim, DType dtype, bool backward);
std::size_t unfused_scratch_bytes(std::int64_t tokens, std::int64_t head_dim, DType dtype);
void unfused_forward(const Context& ctx, const UnfusedTensors& tensors, void* memory, float scale);
void unfused_backward(const Context& ctx, const UnfusedTensors& tensors, void* memory, float scale);

}  // namespace mr::cuda
