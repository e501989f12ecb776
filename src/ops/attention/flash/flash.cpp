#include "ops/attention/flash/flash.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/attention/flash/flash_kernels.h"
#include "ops/attention/paged/rows.h"

namespace mr::ops {
namespace {

// One sequence of the batch.
struct Sequence {
    std::int64_t q = 0, k = 0;  // first query and first key, as tokens of the tensors
    std::int32_t queries = 0, keys = 0;
    std::int32_t position(std::int64_t query) const {
        return static_cast<std::int32_t>(keys - queries + query);
    }
};

std::size_t sequences_of(const PackedBatch& batch) {
    return batch.cu_q.empty() ? 1 : batch.cu_q.size() - 1;
}

struct Problem {
    HeadRows q, k, v;
    PackedBatch batch;
    AttentionMask mask;
    float scale = 0;
    std::int64_t heads = 0, kv_heads = 0, group = 0;
    int head_dim = 0;

    std::size_t sequences() const { return sequences_of(batch); }
    Sequence sequence(std::size_t i) const {
        if (batch.cu_q.empty()) {
            return {0, 0, static_cast<std::int32_t>(q.tokens()),
                    static_cast<std::int32_t>(k.tokens())};
        }
        return {batch.cu_q[i], batch.cu_k[i], batch.cu_q[i + 1] - batch.cu_q[i],
                batch.cu_k[i + 1] - batch.cu_k[i]};
    }
    VisibleKeys visible(const Sequence& seq, std::int64_t query) const {
        return visible_keys(mask, seq.position(query), seq.keys);
    }
    // Keys [key, ...) of a tile of a sequence and kv head.
    KeyTile tile(const Sequence& seq, std::int64_t kv_head, std::int64_t key) const {
        const std::int64_t first = key / kTileKeys * kTileKeys;
        return {first, std::min<std::int64_t>(first + kTileKeys, seq.keys),
                k.f32(seq.k + first, kv_head), v.f32(seq.k + first, kv_head)};
    }
};

void check_rows(const HeadRows& x) {
    MR_CHECK(x.tensor.shape.rank == 3 && x.tensor.dtype == DType::f32,
             "attention's tensors are f32 [tokens, heads, head_dim] on the CPU");
    MR_CHECK(x.tokens() >= 0 && x.tokens() < KeyMask::kNever,
             "attention's tensors have less than 2^30 tokens");
    MR_CHECK(x.token_stride >= x.heads() * x.head_dim(),
             "a token's stride is no less than heads * head_dim");
    MR_CHECK(x.tensor.data || x.tokens() == 0, "attention's tensors have memory: no null pointers");
    MR_CHECK(reinterpret_cast<std::uintptr_t>(x.tensor.data) % alignof(float) == 0,
             "attention's tensors begin at a multiple of their element's size");
}

void check_like(const HeadRows& x, const HeadRows& model) {
    check_rows(x);
    MR_CHECK(x.tensor.shape == model.tensor.shape,
             "out, dout and dq have the shape of q; v, dk and dv have the shape of k");
}

void check_lengths(std::span<const std::int32_t> cu, std::int64_t tokens) {
    MR_CHECK(cu.front() == 0, "cumulative lengths begin with 0");
    for (std::size_t i = 1; i < cu.size(); ++i) {
        MR_CHECK(cu[i - 1] <= cu[i], "cumulative lengths never fall");
    }
    MR_CHECK(cu.back() <= tokens, "cumulative lengths end inside the tensor");
}

Problem checked(const Context& ctx, const HeadRows& q, const HeadRows& k, const HeadRows& v,
                const Tensor& lse, const PackedBatch& batch, const AttentionMask& mask,
                float scale) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    check_rows(q);
    check_rows(k);
    check_like(v, k);
    MR_CHECK(q.head_dim() == k.head_dim(), "q, k and v have one head_dim");
    MR_CHECK(q.head_dim() >= 8 && q.head_dim() % 8 == 0 && q.head_dim() <= kFlashMaxDim,
             "head_dim is a multiple of 8, from 8 to 256");
    MR_CHECK(q.heads() > 0 && k.heads() > 0 && q.heads() % k.heads() == 0,
             "heads is a multiple of kv_heads");
    MR_CHECK(lse.dtype == DType::f32 && lse.shape == (Shape{q.heads(), q.tokens()}),
             "the log-sum-exp is f32 [heads, tokens_q]");
    MR_CHECK(lse.data || q.tokens() == 0, "the log-sum-exp has memory: no null pointers");
    MR_CHECK(batch.cu_q.size() == batch.cu_k.size(),
             "cu_q and cu_k are for the same sequences: as many entries, or none in both");
    if (!batch.cu_q.empty()) {
        check_lengths(batch.cu_q, q.tokens());
        check_lengths(batch.cu_k, k.tokens());
    }
    MR_CHECK(mask.block >= 1 && mask.window >= 0 && mask.sinks >= 0,
             "the mask has a block of at least 1, a window and sinks of at least 0");
    MR_CHECK(scale > 0 && std::isfinite(scale), "the scale is positive and finite");
    return {q,
            k,
            v,
            batch,
            mask,
            scale,
            q.heads(),
            k.heads(),
            q.heads() / k.heads(),
            static_cast<int>(q.head_dim())};
}

// The amounts for the ledger: tokens that belong to a sequence, and (query, key) pairs of one head
// that the mask leaves.
struct Amount {
    std::uint64_t q_bytes, k_bytes, lse_bytes;  // bytes of q or out, of k or v, and of lse
    std::uint64_t product_flops;                // of one product over all (query, key) pairs
};

Amount amount_of(const Problem& p) {
    std::uint64_t queries = 0, keys = 0, pairs = 0;
    for (std::size_t i = 0; i < p.sequences(); ++i) {
        const Sequence seq = p.sequence(i);
        queries += static_cast<std::uint64_t>(seq.queries);
        keys += static_cast<std::uint64_t>(seq.keys);
        for (std::int32_t t = 0; t < seq.queries; ++t) {
            pairs += static_cast<std::uint64_t>(p.visible(seq, t).count());
        }
    }
    const auto heads = static_cast<std::uint64_t>(p.heads);
    const auto kv_heads = static_cast<std::uint64_t>(p.kv_heads);
    const auto dim = static_cast<std::uint64_t>(p.head_dim);
    return {queries * heads * dim * 4, keys * kv_heads * dim * 4, queries * heads * 4,
            2 * pairs * heads * dim};
}

std::byte* aligned_begin(std::span<std::byte> scratch) {
    return reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(scratch.data()) + 63) /
                                        64 * 64);
}

// Rows are (query, head of the group), queries outermost: rows of a block share keys and values.
struct Row {
    std::int64_t query = 0, head = 0;
};
Row row_of(const Problem& p, std::int64_t kv_head, std::int64_t row) {
    return {row / p.group, kv_head * p.group + row % p.group};
}

void forward_rows(const Problem& p, const Sequence& seq, std::int64_t kv_head, std::int64_t begin,
                  std::int64_t end, std::byte* scratch, const HeadRows& out, const Tensor& lse) {
    RowBlock block(scratch, p.head_dim);
    for (std::int64_t i = begin; i < end; ++i) {
        const Row row = row_of(p, kv_head, i);
        block.add(p.q.f32(seq.q + row.query, row.head), p.scale, p.visible(seq, row.query));
    }
    block.attend(MR_DISPATCH(attention_tile_f32), p.k.token_stride, p.v.token_stride,
                 [&](std::int64_t key) { return p.tile(seq, kv_head, key); });
    for (std::int64_t i = begin; i < end; ++i) {
        const Row row = row_of(p, kv_head, i);
        const int r = static_cast<int>(i - begin);
        block.store(r, out.f32(seq.q + row.query, row.head));
        lse.f32(row.head)[seq.q + row.query] = block.log_sum_exp(r);
    }
}

// A thread's part of the backward's scratch: q, dout and dq [kBlockRows, padded], lse and delta
// [kBlockRows].
std::size_t backward_bytes_per_thread(int head_dim) {
    const auto floats = static_cast<std::size_t>(kBlockRows) *
                        (3 * static_cast<std::size_t>(padded_dim(head_dim)) + 2);
    return (floats * sizeof(float) + 63) / 64 * 64;
}

struct BackwardTensors {
    FlashGradients gradients;
    HeadRows dout, out;
    Tensor lse;
};

// One whole sequence and kv head: one thread adds to its dk and dv, in row order.
void backward_sequence(const Problem& p, const BackwardTensors& t, const Sequence& seq,
                       std::int64_t kv_head, std::byte* scratch) {
    const HeadRows &dk = t.gradients.dk, &dv = t.gradients.dv;
    const int dim = p.head_dim, stride = padded_dim(dim);
    for (std::int64_t j = 0; j < seq.keys; ++j) {
        std::fill_n(dk.f32(seq.k + j, kv_head), dim, 0.0f);
        std::fill_n(dv.f32(seq.k + j, kv_head), dim, 0.0f);
    }
    auto* q = reinterpret_cast<float*>(scratch);
    float* dout = q + std::ptrdiff_t{kBlockRows} * stride;
    float* dq = dout + std::ptrdiff_t{kBlockRows} * stride;
    float* lse = dq + std::ptrdiff_t{kBlockRows} * stride;
    float* delta = lse + kBlockRows;
    const auto kernel = MR_DISPATCH(flash_backward_tile);

    const std::int64_t total = seq.queries * p.group;
    for (std::int64_t begin = 0; begin < total; begin += kBlockRows) {
        const int rows = static_cast<int>(std::min<std::int64_t>(kBlockRows, total - begin));
        VisibleKeys visible[kBlockRows];
        std::fill_n(q, 3 * std::ptrdiff_t{kBlockRows} * stride, 0.0f);
        for (int r = 0; r < rows; ++r) {
            const Row row = row_of(p, kv_head, begin + r);
            const std::int64_t token = seq.q + row.query;
            lse[r] = t.lse.f32(row.head)[token];
            if (lse[r] == -std::numeric_limits<float>::infinity()) continue;  // sees nothing
            visible[r] = p.visible(seq, row.query);
            const float* q_row = p.q.f32(token, row.head);
            const float* dout_row = t.dout.f32(token, row.head);
            const float* out_row = t.out.f32(token, row.head);
            double dot = 0;
            for (int d = 0; d < dim; ++d) {
                q[r * stride + d] = q_row[d] * p.scale;
                dout[r * stride + d] = dout_row[d];
                dot += double{dout_row[d]} * out_row[d];
            }
            delta[r] = static_cast<float>(dot);
        }
        FlashBackwardTile tile;
        tile.rows = rows;
        tile.head_dim = dim;
        tile.stride = stride;
        tile.q = q;
        tile.dout = dout;
        tile.dq = dq;
        tile.lse = lse;
        tile.delta = delta;
        tile.key_stride = p.k.token_stride;
        tile.value_stride = p.v.token_stride;
        tile.dk_stride = dk.token_stride;
        tile.dv_stride = dv.token_stride;
        for_each_tile(
            {visible, static_cast<std::size_t>(rows)},
            [&](std::int64_t key) { return p.tile(seq, kv_head, key); },
            [&](const KeyTile& keys, const std::int32_t* lo, const std::int32_t* hi, bool) {
                FlashBackwardTile some = tile;
                some.lo = lo;
                some.hi = hi;
                some.keys = static_cast<const float*>(keys.keys);
                some.values = static_cast<const float*>(keys.values);
                some.dk = dk.f32(seq.k + keys.first, kv_head);
                some.dv = dv.f32(seq.k + keys.first, kv_head);
                kernel(some);
            });
        for (int r = 0; r < rows; ++r) {
            const Row row = row_of(p, kv_head, begin + r);
            float* to = t.gradients.dq.f32(seq.q + row.query, row.head);
            for (int d = 0; d < dim; ++d) to[d] = dq[r * stride + d] * p.scale;
        }
    }
}

}  // namespace

std::size_t flash_forward_scratch_bytes(int head_dim, int threads) {
    return RowBlock::scratch_bytes(head_dim) * static_cast<std::size_t>(threads) + 64;
}

std::size_t flash_backward_scratch_bytes(int head_dim, int threads) {
    return backward_bytes_per_thread(head_dim) * static_cast<std::size_t>(threads) + 64;
}

void flash_forward(const Context& ctx, const HeadRows& out, Tensor lse, const HeadRows& q,
                   const HeadRows& k, const HeadRows& v, const PackedBatch& batch,
                   const AttentionMask& mask, float scale) {
    const Problem p = checked(ctx, q, k, v, lse, batch, mask, scale);
    check_like(out, q);
    MR_CHECK(ctx.scratch.size() >= flash_forward_scratch_bytes(p.head_dim, ctx.pool->size()),
             "attention is given flash_forward_scratch_bytes()");
    // Two products; every operand once.
    const Amount a = amount_of(p);
    const LedgerEntry entry(ctx.ledger, OpKind::attention, a.q_bytes + 2 * a.k_bytes,
                            a.q_bytes + a.lse_bytes, 2 * a.product_flops);

    std::byte* scratch = aligned_begin(ctx.scratch);
    const std::size_t per_thread = RowBlock::scratch_bytes(p.head_dim);
    for (std::size_t i = 0; i < p.sequences(); ++i) {
        const Sequence seq = p.sequence(i);
        const std::int64_t rows = seq.queries * p.group;
        const std::int64_t blocks = (rows + kBlockRows - 1) / kBlockRows;
        ctx.pool->parallel_for(
            blocks * p.kv_heads, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
                for (std::int64_t task = begin; task < end; ++task) {
                    // Late rows see most keys and go first, so that no thread ends with a long one.
                    const std::int64_t row = (blocks - 1 - task / p.kv_heads) * kBlockRows;
                    forward_rows(p, seq, task % p.kv_heads, row, std::min(row + kBlockRows, rows),
                                 scratch + static_cast<std::size_t>(thread) * per_thread, out, lse);
                }
            });
    }
}

void flash_backward(const Context& ctx, const FlashGradients& gradients, const HeadRows& dout,
                    const HeadRows& q, const HeadRows& k, const HeadRows& v, const HeadRows& out,
                    Tensor lse, const PackedBatch& batch, const AttentionMask& mask, float scale) {
    const Problem p = checked(ctx, q, k, v, lse, batch, mask, scale);
    check_like(out, q);
    check_like(dout, q);
    check_like(gradients.dq, q);
    check_like(gradients.dk, k);
    check_like(gradients.dv, k);
    MR_CHECK(ctx.scratch.size() >= flash_backward_scratch_bytes(p.head_dim, ctx.pool->size()),
             "attention's backward is given flash_backward_scratch_bytes()");
    // Five products: scores again, dP, dQ, dK and dV.
    const Amount a = amount_of(p);
    const LedgerEntry entry(ctx.ledger, OpKind::attention,
                            3 * a.q_bytes + 2 * a.k_bytes + a.lse_bytes, a.q_bytes + 2 * a.k_bytes,
                            5 * a.product_flops);

    const BackwardTensors tensors{gradients, dout, out, lse};
    std::byte* scratch = aligned_begin(ctx.scratch);
    const std::size_t per_thread = backward_bytes_per_thread(p.head_dim);
    const auto tasks = static_cast<std::int64_t>(p.sequences()) * p.kv_heads;
    ctx.pool->parallel_for(tasks, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
        for (std::int64_t task = begin; task < end; ++task) {
            backward_sequence(p, tensors, p.sequence(static_cast<std::size_t>(task / p.kv_heads)),
                              task % p.kv_heads,
                              scratch + static_cast<std::size_t>(thread) * per_thread);
        }
    });
}

}  // namespace mr::ops
