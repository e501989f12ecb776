// The kernels that flash_backward() chooses between (backward.cu). All take a checked Problem with
// at least one sequence and ctx.scratch of flash_backward_scratch_bytes(), and leave the ledger to
// the caller.
#pragma once

#include "core/cuda/kernel.cuh"
#include "ops/attention/flash/problem.h"

namespace mr::cuda::flash {

// sm_90a, f16 and bf16: one pass with wgmma and TMA, additions to dq in turns. A block has one tile
// of keys, or all tiles of a pair of sequence and kv head, which requires a mask without a window
// and a head size up to 64. Both give the same bits.
enum class BackwardBlocks { chosen, tiles, pairs };
void backward_hopper(const Context& ctx, const Problem& p, const BackwardViews& views, Stamp* stamp,
                     BackwardBlocks blocks = BackwardBlocks::chosen);
// sm_80 and up, f16 and bf16: two passes with mma.sync and cp.async.
void backward_mma(const Context& ctx, const Problem& p, const BackwardViews& views, Stamp* stamp);
// Any type, any device: two passes.
void backward_plain(const Context& ctx, const Problem& p, const BackwardViews& views, Stamp* stamp);

}  // namespace mr::cuda::flash
