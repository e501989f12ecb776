#include "ops/attention/paged/attention.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/half.h"
#include "ops/attention/paged/rows.h"
#include "ops/simd/pieces.h"

namespace mr::ops {
namespace {

// Page i of the sequence in the cache.
std::int32_t page_of(const BatchSeq& seq, std::int64_t i) {
    if (i < static_cast<std::int64_t>(seq.front.size())) {
        return seq.front[static_cast<std::size_t>(i)];
    }
    return seq.pages[table_entry(static_cast<std::size_t>(i), seq.pages.size())];
}

void check_cache(const Context& ctx, const PagedKv& kv, std::int64_t tokens,
                 std::span<const BatchSeq> seqs) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    MR_CHECK(kv.keys.shape.rank == 4 && kv.keys.shape == kv.values.shape &&
                 kv.keys.dtype == kv.values.dtype,
             "keys and values are [pages, kv_heads, page_tokens, head_dim], alike");
    MR_CHECK(kv.keys.dtype == DType::f32 || kv.keys.dtype == DType::f16, "the cache is f32 or f16");
    MR_CHECK(kv.page_tokens() > 0 && kv.kv_heads() > 0 && kv.head_dim() > 0,
             "the cache has a shape");
    for (const BatchSeq& seq : seqs) {
        MR_CHECK(seq.first >= 0 && seq.count >= 0 && seq.position >= 0 &&
                     std::int64_t{seq.first} + seq.count <= tokens,
                 "a sequence's tokens lie in the batch");
        const std::int64_t end = std::int64_t{seq.position} + seq.count;
        MR_CHECK(end < KeyMask::kNever, "a sequence has less than 2^30 positions");
        MR_CHECK(seq.base >= 0 && seq.base <= seq.position && seq.base % kv.page_tokens() == 0,
                 "the cache of a sequence begins with a page and not behind its tokens");
        const std::int64_t first = seq.base / kv.page_tokens();
        const std::int64_t pages = (end + kv.page_tokens() - 1) / kv.page_tokens();
        MR_CHECK(seq.pages.empty() || std::has_single_bit(seq.pages.size()),
                 "a table of pages has a power of two of entries");
        MR_CHECK(static_cast<std::int64_t>(seq.pages.size()) >= pages - first,
                 "a sequence has pages for all its positions");
        const auto front = static_cast<std::int64_t>(seq.front.size());
        MR_CHECK(front <= first, "the pages in front lie before the base");
        const auto check_page = [&](std::int64_t i) {
            const std::int32_t page = page_of(seq, i);
            MR_CHECK(page >= 0 && page < kv.keys.dim(0), "a page lies in the cache");
        };
        for (std::int64_t i = 0; i < front; ++i) check_page(i);
        for (std::int64_t i = first; i < pages; ++i) check_page(i);
    }
}

// One task: rows [begin, end) of one sequence and one kv head, a row being (token, head of the
// group), tokens outermost; or all heads of a sequence with one token.
struct Task {
    const BatchSeq* seq = nullptr;
    int kv_head = 0, kv_heads = 1;
    std::int64_t begin = 0, end = 0;
};

}  // namespace

std::size_t attention_scratch_bytes(int head_dim, int threads) {
    return RowBlock::scratch_bytes(head_dim) * static_cast<std::size_t>(threads) + 64;
}

void kv_write(const Context& ctx, const PagedKv& kv, Tensor k, Tensor v,
              std::span<const BatchSeq> seqs) {
    MR_CHECK(
        k.shape.rank == 3 && k.shape == v.shape && k.dtype == DType::f32 && v.dtype == DType::f32,
        "k and v are f32 [tokens, kv_heads, head_dim]");
    check_cache(ctx, kv, k.dim(0), seqs);
    const std::int64_t heads = kv.kv_heads(), dim = kv.head_dim(), page_tokens = kv.page_tokens();
    MR_CHECK(k.dim(1) == heads && k.dim(2) == dim, "k and v have the heads of the cache");
    std::uint64_t tokens = 0;
    for (const BatchSeq& seq : seqs) tokens += static_cast<std::uint64_t>(seq.count);
    const bool half = kv.keys.dtype == DType::f16;
    const std::uint64_t elements = 2 * tokens * static_cast<std::uint64_t>(heads * dim);
    const LedgerEntry entry(ctx.ledger, OpKind::kv_write, elements * 4, elements * (half ? 2 : 4),
                            0);

    const std::size_t element = half ? 2 : 4;
    const auto put = [&](const Tensor& cache, std::int64_t slot, const float* from) {
        std::byte* to =
            static_cast<std::byte*>(cache.data) + static_cast<std::size_t>(slot * dim) * element;
        if (!half) {
            std::memcpy(to, from, static_cast<std::size_t>(dim) * 4);
            return;
        }
        auto* bits = reinterpret_cast<std::uint16_t*>(to);
        for (std::int64_t d = 0; d < dim; ++d) bits[d] = f32_to_f16(from[d]);
    };
    for (const BatchSeq& seq : seqs) {
        ctx.pool->parallel_for(
            seq.count, rows_per_piece(2 * heads * dim),
            [&](std::int64_t begin, std::int64_t end, int) {
                for (std::int64_t t = begin; t < end; ++t) {
                    const std::int64_t position = seq.position + t;
                    const std::int64_t page = page_of(seq, position / page_tokens);
                    const std::int64_t row = (seq.first + t) * heads;
                    for (std::int64_t h = 0; h < heads; ++h) {
                        const std::int64_t slot =
                            (page * heads + h) * page_tokens + position % page_tokens;
                        put(kv.keys, slot, k.f32() + (row + h) * dim);
                        put(kv.values, slot, v.f32() + (row + h) * dim);
                    }
                }
            });
    }
}

void attention(const Context& ctx, Tensor out, Tensor q, const PagedKv& kv,
               std::span<const BatchSeq> seqs, const AttentionMask& mask, float scale,
               Tensor q_sinks) {
    MR_CHECK(q.dtype == DType::f32 && out.dtype == DType::f32 && q.shape.rank == 3 &&
                 out.shape == q.shape,
             "q and out are f32 [tokens, heads, head_dim]");
    MR_CHECK(!q_sinks || (q_sinks.dtype == DType::f32 && q_sinks.shape == q.shape),
             "what asks the sinks is as q");
    check_cache(ctx, kv, q.dim(0), seqs);
    const std::int64_t heads = q.dim(1), dim = q.dim(2), kv_heads = kv.kv_heads();
    MR_CHECK(dim == kv.head_dim(), "q has the head_dim of the cache");
    MR_CHECK(heads > 0 && heads % kv_heads == 0, "heads is a multiple of kv_heads");
    MR_CHECK(mask.kind != AttentionMask::Kind::block_before,
             "the mask is causal, block_causal or full: block_before is of plain tensors");
    MR_CHECK(mask.block >= 1 && mask.window >= 0 && mask.sinks >= 0,
             "the mask has a block, a window and sinks");
    const int head_dim = static_cast<int>(dim);
    const std::size_t per_thread = RowBlock::scratch_bytes(head_dim);
    MR_CHECK(ctx.scratch.size() >= attention_scratch_bytes(head_dim, ctx.pool->size()),
             "attention is given attention_scratch_bytes()");

    const std::int64_t group = heads / kv_heads;
    const std::uint64_t element = kv.keys.dtype == DType::f16 ? 2 : 4;
    std::uint64_t pairs = 0, keys_read = 0, tokens = 0;
    std::uint64_t ones = 0, longest = 0;  // sequences with one token, and the most keys of one
    std::int64_t total_rows = 0;
    for (const BatchSeq& seq : seqs) {
        const std::int32_t end = seq.position + seq.count;
        VisibleKeys all{0, end, 0};
        for (std::int32_t t = 0; t < seq.count; ++t) {
            const VisibleKeys keys = visible_keys(mask, seq.position + t, end);
            const std::int64_t front = static_cast<std::int64_t>(seq.front.size());
            MR_CHECK(
                seq.base == 0 || (keys.lo >= seq.base && (keys.sinks <= front * kv.page_tokens() ||
                                                          front * kv.page_tokens() == seq.base)),
                "no query sees a position whose page is gone");
            pairs += static_cast<std::uint64_t>(keys.count());
            all = {std::max(all.sinks, keys.sinks), std::min(all.lo, keys.lo),
                   std::max(all.hi, keys.hi)};
        }
        all.sinks = std::min(all.sinks, all.lo);
        const auto seen = static_cast<std::uint64_t>(std::max(0, all.count()));
        keys_read += seen;
        if (seq.count == 1) {
            longest = std::max(longest, seen);
            ++ones;
        }
        tokens += static_cast<std::uint64_t>(seq.count);
        total_rows += seq.count * group;
    }
    // Two products of 2 * head_dim operations per query, key and head; each key and value once.
    const auto row_bytes = tokens * static_cast<std::uint64_t>(heads * dim) * 4;
    const LedgerEntry entry(
        ctx.ledger, OpKind::attention,
        row_bytes + 2 * keys_read * static_cast<std::uint64_t>(kv_heads * dim) * element, row_bytes,
        4 * pairs * static_cast<std::uint64_t>(heads * dim));

    // Few rows (decode): smaller tasks, so that every thread has one, down to the rows that share
    // loads of keys and values.
    std::int64_t rows_per_task = kBlockRows;
    while (rows_per_task > 4 &&
           (total_rows + rows_per_task - 1) / rows_per_task * kv_heads < 2 * ctx.pool->size()) {
        rows_per_task /= 2;
    }
    // Many decoding sequences: all heads of one are a task, which reads its pages from end to end;
    // a small head's part of a page would end before hardware prefetch starts. Not if one sequence
    // is so long that its thread would finish last.
    const auto threads = static_cast<std::uint64_t>(ctx.pool->size());
    const bool many = heads <= kBlockRows && ones >= 2 * threads && longest * threads <= keys_read;
    const auto whole = [&](const BatchSeq& seq) { return many && seq.count == 1; };
    const auto tasks_of = [&](const BatchSeq& seq) {
        if (whole(seq)) return std::int64_t{1};
        return (seq.count * group + rows_per_task - 1) / rows_per_task * kv_heads;
    };
    std::int64_t task_count = 0;
    for (const BatchSeq& seq : seqs) task_count += tasks_of(seq);

    const auto kernel =
        element == 2 ? MR_DISPATCH(attention_tile_f16) : MR_DISPATCH(attention_tile_f32);
    const std::int64_t page_tokens = kv.page_tokens();
    auto* scratch_base = reinterpret_cast<std::byte*>(
        (reinterpret_cast<std::uintptr_t>(ctx.scratch.data()) + 63) / 64 * 64);

    const auto run_task = [&](const Task& task, int thread) {
        const BatchSeq& seq = *task.seq;
        const auto row_of = [&](const Tensor& x, std::int64_t row) {
            const std::int64_t of_task = task.kv_heads * group;  // rows per token
            const std::int64_t head = task.kv_head * group + row % of_task;
            return x.f32() + ((seq.first + row / of_task) * heads + head) * dim;
        };
        RowBlock block(scratch_base + static_cast<std::size_t>(thread) * per_thread, head_dim);
        for (std::int64_t row = task.begin; row < task.end; ++row) {
            const auto position =
                static_cast<std::int32_t>(seq.position + row / (task.kv_heads * group));
            const VisibleKeys keys = visible_keys(mask, position, seq.position + seq.count);
            block.add(row_of(q, row), scale, keys,
                      keys.sinks > 0 && q_sinks ? row_of(q_sinks, row) : nullptr);
        }
        // A tile begins at a multiple of kTileKeys inside its page.
        const auto locate = [&](std::int64_t key) {
            const std::int64_t offset = key % page_tokens / kTileKeys * kTileKeys;
            const std::int64_t first = key - key % page_tokens + offset;
            const std::int64_t page = page_of(seq, key / page_tokens);
            const std::size_t at =
                static_cast<std::size_t>(((page * kv_heads + task.kv_head) * page_tokens + offset) *
                                         dim) *
                element;
            return KeyTile{first, first + std::min<std::int64_t>(kTileKeys, page_tokens - offset),
                           static_cast<const std::byte*>(kv.keys.data) + at,
                           static_cast<const std::byte*>(kv.values.data) + at};
        };
        block.attend(kernel, dim, dim, locate, task.kv_heads,
                     static_cast<std::size_t>(page_tokens * dim) * element);
        for (std::int64_t row = task.begin; row < task.end; ++row) {
            block.store(static_cast<int>(row - task.begin), row_of(out, row));
        }
    };

    ctx.pool->parallel_for(task_count, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
        for (std::int64_t index = begin; index < end; ++index) {
            std::int64_t i = index;
            const BatchSeq* seq = seqs.data();
            while (i >= tasks_of(*seq)) i -= tasks_of(*seq++);
            if (whole(*seq)) {
                run_task({seq, 0, static_cast<int>(kv_heads), 0, heads}, thread);
                continue;
            }
            // Late rows see most keys: they go first, so that no thread has a long one left at the
            // end.
            const std::int64_t blocks = tasks_of(*seq) / kv_heads;
            const std::int64_t block = blocks - 1 - i / kv_heads;
            run_task({seq, static_cast<int>(i % kv_heads), 1, block * rows_per_task,
                      std::min((block + 1) * rows_per_task, seq->count * group)},
                     thread);
        }
    });
}

}  // namespace mr::ops
