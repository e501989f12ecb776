#include "ops/attention/paged/problem.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/error.h"

namespace mr::cuda::attn {
namespace {

bool aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }

// The least number of table entries such that no two pages with visible keys share one.
std::int64_t entries_for(const ops::DeviceBatch& batch, const ops::AttentionMask& mask) {
    const std::int64_t all = (batch.max_keys + kPageKeys - 1) / kPageKeys;
    if (batch.streams) return 1;  // the caller ensures it for each of its sequences
    if (mask.window == 0 || (mask.sinks > 0 && !batch.fronts)) return all;
    return std::min(all, ops::pages_spanned(std::int64_t{mask.window} + batch.max_count - 1));
}

}  // namespace

void check_call(const Context& ctx, const Tensor& out, const Tensor& q, const ops::PagedKv& kv,
                const ops::DeviceBatch& batch, const ops::AttentionMask& mask, float scale,
                const Tensor& q_sinks) {
    MR_CHECK(ctx.cuda, "attention on the GPU is given a stream");
    MR_CHECK(q.shape.rank == 3 && out.shape == q.shape && out.dtype == q.dtype && is_float(q.dtype),
             "q and out are f32, f16 or bf16 [tokens, heads, head_dim], alike");
    MR_CHECK(kv.keys.shape.rank == 4 && kv.keys.shape == kv.values.shape &&
                 kv.keys.dtype == kv.values.dtype && is_float(kv.keys.dtype),
             "keys and values are f32, f16 or bf16 [pages, kv_heads, 32, head_dim], alike");
    const std::int64_t heads = q.dim(1), kv_heads = kv.keys.dim(1), dim = kv.keys.dim(3);
    MR_CHECK(kv.keys.dim(2) == kPageKeys, "a page holds 32 tokens");
    MR_CHECK(q.dim(2) == dim, "q has the head_dim of the cache");
    MR_CHECK(dim % 8 == 0 && dim >= 8 && dim <= kMaxDim, "head_dim is a multiple of 8, up to 256");
    MR_CHECK(kv_heads > 0 && heads > 0 && heads % kv_heads == 0, "heads is a multiple of kv_heads");
    MR_CHECK(heads <= 65535, "there are at most 65535 heads");
    MR_CHECK(q.data && out.data && kv.keys.data && kv.values.data, "the tensors have memory");
    MR_CHECK(
        aligned(q.data) && aligned(out.data) && aligned(kv.keys.data) && aligned(kv.values.data),
        "q, out, keys and values begin at a multiple of 16 bytes");
    MR_CHECK(q.dim(0) < kMostCounted, "q has less than 2^30 rows");
    MR_CHECK(batch.sequences >= 0 && batch.tokens >= 0 && batch.tokens <= q.dim(0) &&
                 batch.max_count >= 1,
             "the batch's rows are rows of q");
    MR_CHECK(std::int64_t{batch.max_count} * (heads / kv_heads) < kMostCounted &&
                 rows_of(batch) * heads < 2 * kMostCounted,
             "max_count * heads / kv_heads is less than 2^30, and rows * heads less than 2^31");
    MR_CHECK(batch.sequences == 0 || (batch.first && batch.positions && batch.pages),
             "the batch has first, positions and pages in device memory");
    MR_CHECK(batch.max_keys < kMostCounted, "a sequence has less than 2^30 keys");
    MR_CHECK(mask.block >= 1 && mask.window >= 0 && mask.sinks >= 0,
             "the mask has a block, a window and sinks");
    MR_CHECK(mask.kind != ops::AttentionMask::Kind::block_before,
             "the mask is causal, block_causal or full: block_before is of plain tensors");
    MR_CHECK(batch.sequences == 0 || (batch.max_pages > 0 &&
                                      std::has_single_bit(static_cast<unsigned>(batch.max_pages))),
             "a page table has a power of two of entries");
    MR_CHECK(
        batch.sequences == 0 || (batch.max_keys > 0 && batch.max_pages >= entries_for(batch, mask)),
        "the page tables have room for max_keys, or for all that the rows of a window see");
    MR_CHECK(scale > 0 && std::isfinite(scale), "the scale is positive and finite");
    MR_CHECK(
        !q_sinks || (q_sinks.shape == q.shape && q_sinks.dtype == q.dtype && aligned(q_sinks.data)),
        "what asks the sinks is as q");
    const std::int64_t sinks = std::max<std::int64_t>(batch.max_sinks, mask.sinks);
    MR_CHECK(!batch.fronts || batch.max_fronts >= (sinks + kPageKeys - 1) / kPageKeys,
             "the pages of sinks are those of all sinks");
    MR_CHECK(!batch.streams ||
                 (batch.max_sinks >= 0 && batch.max_window > 0 && batch.max_window < kMostCounted),
             "streams have a window");
}

}  // namespace mr::cuda::attn
