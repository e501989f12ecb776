// The kernels that flash_forward() chooses between (flash_cuda.cpp), and for pages
// attention_prefill() (attention_cuda.cu). All take a checked Problem with at least one query and
// leave the ledger to the caller.
#pragma once

#include "core/cuda/kernel.cuh"
#include "ops/attention/flash/pages.h"

namespace mr::cuda::flash {

// sm_90a, f16 and bf16: wgmma and TMA. flash/forward/hopper.cu. Also over the pages of a cache up
// to kPagedMaxDim; Problem::lse may then be null.
inline constexpr int kPagedMaxDim = 128;
void forward_hopper(const Context& ctx, const Problem& p, Stamp* stamp,
                    const PagedKeys& paged = {});
int spare_counters();  // calls that can still be captured before they get slower; for tests
// sm_80 and up, f16 and bf16: mma.sync and cp.async. flash/forward/mma.cu. Also over pages, with
// lse or without, for head sizes of mma_takes_pages().
void forward_mma(const Context& ctx, const Problem& p, Stamp* stamp, const PagedKeys& paged = {});
// Any type, any device. flash/forward/plain.cu
void forward_plain(const Context& ctx, const Problem& p, Stamp* stamp);

}  // namespace mr::cuda::flash
