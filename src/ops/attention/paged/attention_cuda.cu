// Attention over pages on the GPU: checks, and the choice of the kernel.
#include <algorithm>
#include <limits>

#include "core/cuda/device.h"
#include "ops/attention/flash/dispatch.cuh"
#include "ops/attention/paged/attention_cuda.h"
#include "ops/attention/paged/common.cuh"

namespace mr::cuda {
namespace {

using attn::Args;

Args checked(const Context& ctx, Tensor out, Tensor q, const ops::PagedKv& kv,
             const ops::DeviceBatch& batch, const ops::AttentionMask& mask, float scale,
             Tensor q_sinks) {
    attn::check_call(ctx, out, q, kv, batch, mask, scale, q_sinks);
    const int heads = static_cast<int>(q.dim(1));
    Args args{};
    args.out = out.data;
    args.q = q.data;
    args.keys = kv.keys.data;
    args.values = kv.values.data;
    args.first = batch.first;
    args.positions = batch.positions;
    args.pages = batch.pages;
    args.max_pages = batch.max_pages;
    args.max_keys = batch.max_keys;
    args.heads = heads;
    args.kv_heads = kv.kv_heads();
    args.group = heads / kv.kv_heads();
    args.head_dim = kv.head_dim();
    args.row_tiles = (batch.max_count * args.group + attn::kTileRows - 1) / attn::kTileRows;
    args.mask = attn::for_kernels(mask);
    args.scale = scale * attn::kLog2e;
    args.q_sinks = q_sinks.data;
    args.streams = reinterpret_cast<const int2*>(batch.streams);
    args.fronts = batch.fronts;
    args.max_fronts = batch.max_fronts;
    args.shorts = attn::kShortParts;
    if (args.has_views()) {
        // Sequences that do not stream keep their key numbers; the others use those of a view.
        args.shorts = attn::kAllShort;
        const int sinks = std::max(batch.max_sinks, args.mask.sinks);
        const int window = batch.streams ? batch.max_window : args.mask.window;
        const int viewed = attn::view_keys(sinks, window, batch.max_count);
        args.max_keys = batch.streams ? std::max(batch.max_keys, viewed) : viewed;
    }
    return args;
}

// Bytes and FLOPs as if every sequence had max_count rows (limited by the batch's rows) and
// max_keys keys, if the host knows no more (batch.total_keys).
OpRecord work_of(Tensor q, const ops::PagedKv& kv, const ops::DeviceBatch& batch,
                 const ops::AttentionMask& mask) {
    const auto element = [](DType dtype) { return std::uint64_t{dtype == DType::f32 ? 4u : 2u}; };
    const auto rows = static_cast<std::uint64_t>(attn::rows_of(batch));
    const auto width = static_cast<std::uint64_t>(q.dim(1) * q.dim(2));
    // For streaming sequences the host knows as much as for the others: the maximum.
    auto keys = static_cast<std::uint64_t>(
        std::max(batch.max_keys, batch.streams ? batch.max_sinks + batch.max_window : 0));
    auto seen = keys;  // by an average row
    if (mask.kind != ops::AttentionMask::Kind::full) {
        seen -=
            (std::min<std::uint64_t>(static_cast<std::uint64_t>(batch.max_count), keys) - 1) / 2;
    }
    if (mask.window > 0) {
        const auto window =
            static_cast<std::uint64_t>(mask.window) + static_cast<std::uint64_t>(mask.sinks);
        seen = std::min(seen, window);
        keys = std::min(keys, window + static_cast<std::uint64_t>(batch.max_count) - 1);
    }
    std::uint64_t all = static_cast<std::uint64_t>(batch.sequences) * keys, pairs = rows * seen;
    if (batch.total_keys >= 0) {
        all = static_cast<std::uint64_t>(batch.total_keys);
        pairs = all * static_cast<std::uint64_t>(batch.max_count);
    }
    const std::uint64_t cache = 2 * all * static_cast<std::uint64_t>(kv.kv_heads() * kv.head_dim());
    return {1, rows * width * element(q.dtype) + cache * element(kv.keys.dtype),
            rows * width * element(q.dtype), 4 * pairs * width, 0};
}

constexpr auto padded = DeviceArena::padded;

std::size_t counter_bytes(std::size_t slots) { return padded(slots * sizeof(unsigned)); }

bool tensor_cores(DType q, DType cache) {
    return q == cache && q != DType::f32 && this_gpu().sm >= 80;
}

}  // namespace

namespace {

std::size_t scratch_of(std::size_t slots, int parts_, int head_dim) {
    const auto parts = static_cast<std::size_t>(parts_);
    return counter_bytes(slots) + padded(slots * parts * sizeof(float2)) +
           padded(slots * parts * static_cast<std::size_t>(head_dim) * sizeof(float)) + 512;
}

}  // namespace

std::size_t attention_scratch_bytes(int rows, int heads, int head_dim, int max_keys) {
    return scratch_of(static_cast<std::size_t>(rows) * static_cast<std::size_t>(heads),
                      attn::parts_of(max_keys), head_dim);
}
std::size_t attention_stream_scratch_bytes(int rows, int heads, int head_dim, int max_keys,
                                           int sinks, int window, int prompt_rows) {
    const int viewed = attn::view_keys(sinks, window, kDecodeRows);
    const auto slots = static_cast<std::size_t>(rows) * static_cast<std::size_t>(heads);
    const int parts = attn::parts_of(std::max(max_keys, viewed), attn::kAllShort);
    const std::size_t sums = padded(static_cast<std::size_t>(prompt_rows) *
                                    static_cast<std::size_t>(heads) * sizeof(float));
    return std::max(scratch_of(slots, parts, head_dim), counter_bytes(slots) + sums + 512);
}

namespace {

std::byte* begin_of(std::span<std::byte> scratch) {
    return reinterpret_cast<std::byte*>(padded(reinterpret_cast<std::uintptr_t>(scratch.data())));
}

// The counters lie at the end of the scratch, so that the partial results of a small batch never
// overlap the counters of a large one.
unsigned* counters_in(std::span<std::byte> scratch, std::size_t slots) {
    const auto end = reinterpret_cast<std::uintptr_t>(scratch.data() + scratch.size()) / 256 * 256;
    return reinterpret_cast<unsigned*>(end) - slots;
}

}  // namespace

void attention_prepare_scratch(const Stream& stream, std::span<std::byte> scratch, int rows,
                               int heads) {
    const auto slots = static_cast<std::size_t>(rows) * static_cast<std::size_t>(heads);
    MR_CHECK(scratch.size() >= counter_bytes(slots) + 256,
             "attention is given attention_scratch_bytes()");
    stream.fill(counters_in(scratch, slots), 0, slots * sizeof(unsigned));
}

attn::Decode attn::decode_of(const Context& ctx, Tensor out, Tensor q, const ops::PagedKv& kv,
                             const ops::DeviceBatch& batch, const ops::AttentionMask& mask,
                             float scale, Tensor q_sinks) {
    attn::Decode decode;
    Args& args = decode.args;
    args = checked(ctx, out, q, kv, batch, mask, scale, q_sinks);
    if (batch.sequences == 0 || batch.tokens == 0) return decode;
    const int rows = static_cast<int>(attn::rows_of(batch));
    const auto slots = static_cast<std::size_t>(rows) * static_cast<std::size_t>(args.heads);
    args.max_parts = attn::parts_of(args.max_keys, args.shorts);
    MR_CHECK(ctx.scratch.size() >= scratch_of(slots, args.max_parts, args.head_dim),
             "attention_decode is given attention_scratch_bytes()");
    std::byte* at = begin_of(ctx.scratch);
    args.counters = counters_in(ctx.scratch, slots);
    args.tops = reinterpret_cast<float2*>(at);
    at += padded(slots * static_cast<std::size_t>(args.max_parts) * sizeof(float2));
    args.sums = reinterpret_cast<float*>(at);
    decode.tiles = std::int64_t{batch.sequences} * args.row_tiles;
    MR_CHECK(decode.tiles <= 65535, "a batch has at most 65535 tiles of rows");
    decode.work = work_of(q, kv, batch, mask);
    return decode;
}

void attention_decode(const Context& ctx, Tensor out, Tensor q, const ops::PagedKv& kv,
                      const ops::DeviceBatch& batch, const ops::AttentionMask& mask, float scale,
                      Tensor q_sinks) {
    attn::Decode decode = attn::decode_of(ctx, out, q, kv, batch, mask, scale, q_sinks);
    if (decode.tiles == 0) return;
    decode.args.stamp = account(ctx, OpKind::attention, "attention", decode.work);
    const bool on_tensor_cores = tensor_cores(q.dtype, kv.keys.dtype);
    const int multiprocessors = this_gpu().multiprocessors;
    const attn::DecodeKernel kernel = decode.kernel(multiprocessors);
    if (on_tensor_cores && ctx.resident_attention && kernel != attn::DecodeKernel::blocks) {
        const auto start =
            kernel == attn::DecodeKernel::sequences ? attn::decode_several_on_tensor_cores
            : kernel == attn::DecodeKernel::teams   ? attn::decode_stream_on_tensor_cores
                                                    : attn::decode_many_on_tensor_cores;
        if (start(ctx, q.dtype, multiprocessors, decode.tiles, decode.args)) return;
    }
    // A block takes every grid.z-th part. Parts beyond a sequence's end leave a block with nothing
    // to do, so there are only as many blocks as keep the device busy.
    const int z = decode.parts_at_once(std::int64_t{16} * multiprocessors);
    const dim3 grid(static_cast<unsigned>(decode.args.kv_heads),
                    static_cast<unsigned>(decode.tiles), static_cast<unsigned>(z));
    if (on_tensor_cores && attn::decode_on_tensor_cores(ctx, q.dtype, grid, decode.args)) {
        return;
    }
    attn::decode_plain(ctx, q.dtype, kv.keys.dtype, grid, decode.args);
}

namespace {

// Whether the Hopper forward supports the call: it numbers cache rows, query tiles and table
// entries with an int.
bool fits_hopper(const flash::Problem& p, const flash::PagedKeys& paged) {
    const std::int64_t sequences = p.sequences, row_tiles = (p.max_queries + 127) / 128;
    return p.head_dim <= flash::kPagedMaxDim &&
           std::max({paged.pages * p.kv_heads * flash::PagedKeys::kPage,
                     sequences * p.heads * row_tiles, sequences * paged.max_pages}) <=
               std::numeric_limits<std::int32_t>::max();
}

// The forwards for plain tensors also read pages. False if they cannot.
bool prefill_on_tensor_cores(const Context& ctx, Tensor out, Tensor q, const ops::PagedKv& kv,
                             const ops::DeviceBatch& batch, const ops::AttentionMask& mask,
                             float scale, const Args& args, float* lse) {
    const std::int64_t width = std::int64_t{args.heads} * args.head_dim;
    flash::Problem p;
    p.q = {q.data, width};
    p.k = {kv.keys.data, args.head_dim};
    p.v = {kv.values.data, args.head_dim};
    p.out = {out.data, width};
    p.cu_q = batch.first;
    p.sequences = batch.sequences;
    p.max_queries = batch.max_count;
    p.max_keys = batch.max_keys;
    p.tokens_q = static_cast<int>(q.dim(0));
    p.tokens_k = flash::PagedKeys::kAnyToken;
    p.heads = args.heads;
    p.kv_heads = args.kv_heads;
    p.group = args.group;
    p.head_dim = args.head_dim;
    p.mask = flash::Mask(mask);
    p.scale = scale;
    p.dtype = q.dtype;
    p.lse = lse;
    const flash::PagedKeys paged{batch.pages, batch.positions, batch.max_pages, kv.keys.dim(0)};
    if (ctx.resident_attention && this_gpu().sm == 90 && fits_hopper(p, paged)) {
        flash::forward_hopper(ctx, p, args.stamp, paged);
        return true;
    }
    if (!flash::mma_takes_pages(p.head_dim) ||
        !flash::mma_fits(p.head_dim, this_gpu().shared_per_block)) {
        return false;
    }
    flash::forward_mma(ctx, p, args.stamp, paged);
    return true;
}

}  // namespace

void attention_prefill(const Context& ctx, Tensor out, Tensor q, const ops::PagedKv& kv,
                       const ops::DeviceBatch& batch, const ops::AttentionMask& mask, float scale,
                       Tensor q_sinks) {
    MR_CHECK(!batch.streams, "sequences of a prompt's pass all stream as the mask says");
    Args args = checked(ctx, out, q, kv, batch, mask, scale, q_sinks);
    if (batch.sequences == 0 || batch.tokens == 0) return;
    args.stamp = account(ctx, OpKind::attention, "attention", work_of(q, kv, batch, mask));
    if (tensor_cores(q.dtype, kv.keys.dtype)) {
        // Sinks with separate pages, or with a q of their own: the window comes first.
        const bool apart = args.mask.sinks > 0 && (q_sinks || batch.fronts);
        ops::AttentionMask near = mask;
        float* lse = nullptr;
        if (apart) {
            near.sinks = 0;
            MR_CHECK(ctx.scratch.size() >= q.shape.count() / q.dim(2) * sizeof(float) + 256,
                     "attention_prefill with sinks apart is given a float for a row and head");
            lse = reinterpret_cast<float*>(begin_of(ctx.scratch));
        }
        if (prefill_on_tensor_cores(ctx, out, q, kv, batch, near, scale, args, lse)) {
            if (apart) attn::add_sinks(ctx, q.dtype, batch, args, lse, static_cast<int>(q.dim(0)));
            return;
        }
    }
    const std::int64_t y = std::int64_t{batch.sequences} * args.row_tiles;
    MR_CHECK(y <= 65535, "a batch has at most 65535 tiles of rows");
    const dim3 grid(static_cast<unsigned>(args.kv_heads), static_cast<unsigned>(y), 1);
    attn::prefill_plain(ctx, q.dtype, kv.keys.dtype, grid, args);
}

void attention(const Context& ctx, Tensor out, Tensor q, const ops::PagedKv& kv,
               const ops::DeviceBatch& batch, const ops::AttentionMask& mask, float scale,
               Tensor q_sinks) {
    (batch.max_count <= kDecodeRows ? attention_decode : attention_prefill)(ctx, out, q, kv, batch,
                                                                            mask, scale, q_sinks);
}

}  // namespace mr::cuda
