// Attention on plain tensors on the GPU: checks, and the choice of the kernel.
#include "ops/attention/flash/flash_cuda.h"

#include "core/cuda/device.h"
#include "ops/attention/flash/dispatch.cuh"

namespace mr::cuda {

void flash_forward(const Context& ctx, const ops::HeadRows& out, Tensor lse, const ops::HeadRows& q,
                   const ops::HeadRows& k, const ops::HeadRows& v, const FlashBatch& batch,
                   const ops::AttentionMask& mask, float scale) {
    const flash::Problem p = flash::checked_forward(ctx, out, lse, q, k, v, batch, mask, scale);
    if (p.sequences == 0 || p.max_queries == 0) return;
    // Two products; every operand once. Counted only on request: counting takes as long as a part
    // of the launch.
    const flash::Amount a = ctx.ledger || ctx.timeline ? flash::amount_of(p) : flash::Amount{};
    Stamp* stamp =
        account(ctx, OpKind::attention, "attention",
                {1, a.q_bytes + 2 * a.k_bytes, a.q_bytes + a.lse_bytes, 2 * a.product_flops, 0});
    const Gpu& gpu = this_gpu();
    if (p.dtype == DType::f32 || gpu.sm < 80 ||
        !flash::mma_fits(p.head_dim, gpu.shared_per_block)) {
        return flash::forward_plain(ctx, p, stamp);
    }
    if (gpu.sm == 90) return flash::forward_hopper(ctx, p, stamp);
    flash::forward_mma(ctx, p, stamp);
}

}  // namespace mr::cuda
