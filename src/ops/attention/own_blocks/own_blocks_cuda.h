// Attention of short blocks over their own keys, on the GPU, as a part of attention over more:
// training of models that fill in blocks (model/train/diffusion_attention.h) has thousands of
// blocks of 4 to 64 rows, of which each would be a sequence, and a tile, of its own for
// flash_forward(). Here a row is a few lanes, and what the other part gave is taken up in the same
// pass. docs/notebook/training.md has the floor and the design.
//
// Rows [b * block, (b + 1) * block) of q, k and v are block b; all of them see all keys of theirs.
// Heads are bf16 as flash_cuda.h has them, the log-sum-exps f32 [heads, tokens]; sums are f32.
// Nothing is added atomically: the bits of a block depend on its own rows alone.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/attention/flash/flash.h"

namespace mr::cuda {

inline constexpr int kMostOwnBlock = 64;
// Whether there is a kernel: blocks of at most kMostOwnBlock tokens, heads of at most 128 elements,
// and few enough heads to a key's that what the backward keeps of their rows fits into shared
// memory.
bool takes_own_blocks(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, int block);

// Whether it is the faster way. Its work grows with the square of a block and with the size of a
// head, while to flash_forward() and flash_backward() a block is a tile, full or not. By a count of
// instructions, not by a measurement: some 1.3 cycles of a multiprocessor for each lane of each row
// and key, and some 10,000 for the tiles of a block and head.
constexpr bool own_blocks_pay(std::int64_t head_dim, int block) {
    return std::int64_t{block} * block * head_dim / 8 <= 8192;
}

// out and lse hold what attention over other keys gave (-infinity: nothing, and out is not read),
// and become those over these keys as well: flash_forward() of the blocks, and merge_attention().
void own_blocks_forward(const Context& ctx, const ops::HeadRows& out, Tensor lse,
                        const ops::HeadRows& q, const ops::HeadRows& k, const ops::HeadRows& v,
                        int block, float scale);

// From out and lse over all keys, as the forward left them: dk and dv of these keys are written,
// dq is added to what it holds.
void own_blocks_backward(const Context& ctx, const ops::FlashGradients& gradients,
                         const ops::HeadRows& dout, const ops::HeadRows& q, const ops::HeadRows& k,
                         const ops::HeadRows& v, const ops::HeadRows& out, Tensor lse, int block,
                         float scale);

}  // namespace mr::cuda
