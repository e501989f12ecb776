// The backward on the GPU: its scratch, the choice of kernels, and the launches of the one-pass
// backward.
#include "core/cuda/device.h"
#include "ops/attention/flash/backward/backward.cuh"
#include "ops/attention/flash/backward/dispatch.cuh"

namespace mr::cuda {
namespace {

using namespace flash;

std::size_t padded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

// The parts of the scratch, in order.
struct Parts {
    std::size_t lse2, delta, dq, turns, end;
    Parts(std::int64_t heads, std::int64_t tiles, int head_dim) {
        const auto all = static_cast<std::size_t>(tiles * heads);
        const auto numbers = all * static_cast<std::size_t>(backward_rows(head_dim));
        lse2 = 0;
        delta = lse2 + padded(numbers * sizeof(float));
        dq = delta + padded(numbers * sizeof(float));
        turns =
            dq + padded(numbers * static_cast<std::size_t>(backward_dim(head_dim)) * sizeof(float));
        end = turns + padded((all + 1) * sizeof(unsigned));
    }
};

}  // namespace

std::size_t flash_backward_scratch_bytes(const ops::HeadRows& q, const FlashBatch& batch) {
    MR_CHECK(q.head_dim() >= 8 && q.head_dim() % 8 == 0 && q.head_dim() <= kFlashBackwardMaxDim,
             "head_dim is a multiple of 8, from 8 to 128 backward on the GPU");
    MR_CHECK(q.heads() > 0 && q.tokens() >= 0 && batch.sequences >= 0,
             "there are heads, and no negative number of tokens or sequences");
    const int dim = static_cast<int>(q.head_dim());
    // In two passes only delta is needed.
    if (q.tensor.dtype == DType::f32) {
        return static_cast<std::size_t>(q.heads() * q.tokens()) * sizeof(float) + 256;
    }
    const int sequences = !batch.cu_q && batch.sequences == 0 ? 1 : batch.sequences;
    return Parts(q.heads(), row_tiles(q.tokens(), sequences, backward_rows(dim)), dim).end + 256;
}

BackwardArgs flash::backward_args(const Context& ctx, const Problem& p, const BackwardViews& views,
                                  BackwardBlocks blocks) {
    BackwardArgs args;
    args.p = p;
    args.views = views;
    args.tiles = row_tiles(p.tokens_q, p.sequences, backward_rows(p.head_dim));
    // The number of blocks that follow one another along the queries of a pair. Each finds the
    // queries in L2, but starts one step after the previous one, which costs short causal walks too
    // much. Measured.
    const bool causal = p.mask.kind != Mask::Kind::full;
    const int walk = (p.max_queries + backward_rows(p.head_dim) - 1) / backward_rows(p.head_dim);
    const int chain = causal ? std::clamp(walk / 16, 4, 8) : 8;
    const int key_tiles = (p.max_keys + kBackwardKeys - 1) / kBackwardKeys;
    const std::int64_t pairs = std::int64_t{p.sequences} * p.kv_heads;
    MR_CHECK(pairs * std::max(1, key_tiles) < (std::int64_t{1} << 31),
             "attention's backward takes less than 2^31 tiles of 128 keys, of all kv heads");
    // Blocks with whole pairs wait for no other block and begin once, but all take equally long,
    // and the sums of dq of all of them have to fit into L2. Measured: faster up to 1,024 keys, or
    // 512 with a full mask, where the last round of blocks leaves little of the device idle.
    const std::int64_t at_once = this_gpu().multiprocessors;
    const std::int64_t rounds = (pairs + at_once - 1) / at_once;
    bool whole = std::max(key_tiles, walk * p.group) <= (causal ? 8 : 4) &&
                 10 * pairs >= 7 * rounds * at_once;
    if (blocks != BackwardBlocks::chosen) whole = blocks == BackwardBlocks::pairs;
    whole = whole && backward_dim(p.head_dim) == 64 && p.mask.every_key_is_seen();
    args.fold = whole;
    if (whole) {
        args.sums_policy = kEvictLast;
        args.end_policy = kEvictFirst;
        if (key_tiles > 4) args.read_policy = kEvictFirst;  // otherwise L2 has room for all
    }
    args.order = BackwardWorkOrder(static_cast<int>(pairs), key_tiles,
                                   std::max(1, this_gpu().multiprocessors / chain), whole);
    const Parts parts(p.heads, args.tiles, p.head_dim);
    auto* begin =
        reinterpret_cast<std::byte*>(padded(reinterpret_cast<std::uintptr_t>(ctx.scratch.data())));
    args.lse2 = reinterpret_cast<float*>(begin + parts.lse2);
    args.delta = reinterpret_cast<float*>(begin + parts.delta);
    args.dq = reinterpret_cast<float*>(begin + parts.dq);
    args.turns = reinterpret_cast<unsigned*>(begin + parts.turns);
    args.tickets = args.turns + args.tiles * p.heads;
    return args;
}

void flash_backward(const Context& ctx, const ops::FlashGradients& gradients,
                    const ops::HeadRows& dout, const ops::HeadRows& q, const ops::HeadRows& k,
                    const ops::HeadRows& v, const ops::HeadRows& out, Tensor lse,
                    const FlashBatch& batch, const ops::AttentionMask& mask, float scale) {
    BackwardViews views;
    const Problem p = checked_backward(ctx, gradients, dout, q, k, v, out, lse, batch, mask, scale,
                                       flash_backward_scratch_bytes(q, batch), views);
    if (p.sequences == 0) return;
    // Five products; every operand and result once. Counted only on request: counting takes as long
    // as a part of the launch.
    const Amount a = ctx.ledger || ctx.timeline ? amount_of(p) : Amount{};
    Stamp* stamp = account(ctx, OpKind::attention, "attention backward",
                           {1, 3 * a.q_bytes + 2 * a.k_bytes + a.lse_bytes,
                            a.q_bytes + 2 * a.k_bytes, 5 * a.product_flops, 0});
    const int sm = this_gpu().sm;
    if (p.dtype == DType::f32 || sm < 80) return backward_plain(ctx, p, views, stamp);
    if (sm == 90) return backward_hopper(ctx, p, views, stamp);
    backward_mma(ctx, p, views, stamp);
}

void flash::backward_hopper(const Context& ctx, const Problem& p, const BackwardViews& views,
                            Stamp* stamp, BackwardBlocks blocks) {
    BackwardArgs args = backward_args(ctx, p, views, blocks);
    args.stamp = stamp;
    prepare_backward(ctx, args);
    if (p.max_keys > 0) {
        p.dtype == DType::bf16 ? backward_on_warp_groups_bf16(ctx, args)
                               : backward_on_warp_groups_f16(ctx, args);
    }
    // With equal sequences in which every query sees a key, dq is complete by now.
    if (!(args.fold && !p.cu_q && p.max_keys > 0 &&
          (p.mask.kind == Mask::Kind::full || p.max_keys >= p.max_queries))) {
        finish_backward(ctx, args);
    }
}

}  // namespace mr::cuda
