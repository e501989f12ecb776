// Attention of short blocks over their own keys, on the GPU, as one part of attention over more
// keys. Training diffusion models (model/train/diffusion_attention.h) has thousands of blocks of 4
// to 64 rows, each of which would be a separate sequence and tile for flash_forward(). Here a row
// takes a few lanes, and the result of the other part is merged in the same pass.
// docs/notebook/training.md has the lower bound and the design.
//
// Rows [b * block, (b + 1) * block) of q, k and v are block b; its rows see all keys of the block.
// Heads are bf16 as in flash_cuda.h, the log-sum-exps f32 [heads, tokens]; sums are f32. There are
// no atomic additions: the bits of a block depend on its own rows alone.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/attention/flash/flash.h"

namespace mr::cuda {

inline constexpr int kMostOwnBlock = 64;
// Whether there is a kernel: blocks of at most kMostOwnBlock tokens, heads of at most 128 elements,
// and few enough query heads per kv head that the backward's data of their rows fits into shared
// memory.
bool takes_own_blocks(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, int block);

// Whether it is faster. Its work grows with the square of a block and with the head size, while for
// flash_forward() and flash_backward() a block is a tile, full or not. Estimated from instruction
// counts, not measured: some 1.3 cycles of a multiprocessor for each lane of each row and key, and
// some 10,000 for the tiles of a block and head.
constexpr bool own_blocks_pay(std::int64_t head_dim, int block) {
    return std::int64_t{block} * block * head_dim / 8 <= 8192;
}

// On entry out and lse hold attention over other keys (-infinity: nothing, and out is not read); on
// return over these keys as well: as flash_forward() of the blocks, then merge_attention().
void own_blocks_forward(const Context& ctx, const ops::HeadRows& out, Tensor lse,
                        const ops::HeadRows& q, const ops::HeadRows& k, const ops::HeadRows& v,
                        int block, float scale);

// From out and lse over all keys, as the forward left them: writes dk and dv of these keys, and
// adds to dq.
void own_blocks_backward(const Context& ctx, const ops::FlashGradients& gradients,
                         const ops::HeadRows& dout, const ops::HeadRows& q, const ops::HeadRows& k,
                         const ops::HeadRows& v, const ops::HeadRows& out, Tensor lse, int block,
                         float scale);

}  // namespace mr::cuda
