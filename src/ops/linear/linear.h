#pragma once

#include <cstddef>
#include <span>

#include "core/context.h"
#include "core/tensor.h"

namespace mr::ops {

// One product of a group that shares an input.
struct LinearOut {
    Tensor w;              // [n, k] f32, f16, bf16, q8_0 or q4_0 (GGUF's block layout, unaligned),
                           // or as linear_repack() makes it
    Tensor out;            // [tokens, n] f32
    Tensor bias = {};      // [n] f32, or none
    Tensor residual = {};  // [tokens, n] f32, or none; may be `out` itself
};

// For every output of the group: out = x · wᵀ (+ bias) (+ residual).   x f32 [tokens, k].
//
// Weights of 8 and 4 bits are multiplied with activations quantised to 8 bits in blocks of 32, all
// other weights with activations in f32. The bits of out[t, :] depend on x[t, :] and w alone: not
// on the number of tokens, the threads, or the other members of the group (one order of summation
// everywhere).
//
// Scratch: linear_scratch_bytes() of ctx.scratch.
void linear(const Context& ctx, Tensor x, std::span<const LinearOut> group,
            OpKind kind = OpKind::linear);
inline void linear(const Context& ctx, Tensor x, const LinearOut& out,
                   OpKind kind = OpKind::linear) {
    linear(ctx, x, std::span<const LinearOut>(&out, 1), kind);
}

// The type in which linear() reads weights [n, ...] of `type` fastest on this instruction path:
// q8_0x4 or q4_0x4 if it reads 4 interleaved rows, else `type` itself. The bits of the results are
// the same for both.
DType linear_fastest_type(DType type, std::int64_t n);

// Converts w to the type that linear_fastest_type() gives. to [n, k], of the same size in bytes.
//   4 rows, one block of 32 columns: for j = 0, 1, ...: bytes 4j..4j+3 of each row's quants, row
//   after row; then the 4 scales. Blocks follow in order of columns, then the next 4 rows.
// One token is then multiplied with 4 rows per instruction, without sums across lanes, reading a
// single stream of memory.
void linear_repack(ThreadPool& pool, Tensor to, Tensor w);

std::size_t linear_scratch_bytes(std::int64_t max_tokens, std::int64_t max_k, int threads);

}  // namespace mr::ops
