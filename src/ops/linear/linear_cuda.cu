// The entry of linear_small(): checks shapes, then chooses one of its two kernels.
#include "core/error.h"
#include "ops/linear/linear_cuda.h"
#include "ops/linear/small_linear.cuh"
#include "ops/linear/small_params.cuh"

namespace mr::cuda {

bool linear_small_takes(DType weights, std::int64_t k) {
    // Queried before every product: device() would ask the driver for its free memory each time.
    static const bool tensor_cores = [] {
        const std::optional<DeviceInfo> info = device();
        return info && info->sm >= 80;
    }();
    if (!tensor_cores) return false;
    if (weights == DType::q8_0x8 || weights == DType::q4_0x8) return true;
    return (weights == DType::bf16 || weights == DType::f16) && k % 8 == 0;
}

bool linear_records_takes(const Context& ctx, DType weights, std::int64_t k) {
    return ctx.batch_products && small::mid_possible() && linear_small_takes(weights, k);
}
std::size_t linear_records_scratch_bytes(std::int64_t max_rows, std::int64_t k) {
    return small::mid_scratch_bytes(max_rows, k);
}

DType compute_type(DType weights) {
    return weights == DType::f32 || weights == DType::f16 ? weights : DType::bf16;
}

small::Params small::params_of(const LinearIn& in) {
    const DType compute = compute_type(in.w.dtype);
    const bool gate = in.finish == Finish::gate, qkv = in.finish == Finish::qkv;
    Params p{};
    p.w = static_cast<const std::byte*>(in.w.data);
    p.k = in.w.cols();
    p.n = static_cast<int>(in.w.rows());
    p.rows = static_cast<int>(in.x.rows());
    MR_CHECK(in.x.cols() == p.k, "the input is as wide as the weights");
    MR_CHECK(in.x.dtype == (in.norm.weight ? DType::f32 : compute),
             "the input is f32 before a norm, else of the weights' compute type");
    p.x = in.x.data;
    p.norm_weight = static_cast<const float*>(in.norm.weight.data);
    p.norm_bias = static_cast<const float*>(in.norm.bias.data);
    p.norm = in.norm.kind;
    p.eps = in.norm.eps;
    p.bias = static_cast<const float*>(in.bias.data);
    p.finish = in.finish;
    p.activation = in.activation;
    p.ordered_out = in.ordered_out;
    p.ordered_x = in.ordered_x;
    MR_CHECK(!p.ordered_x || !in.norm.weight, "a norm wants its input as it is");
    p.out_cols = gate ? p.n / 2 : p.n;
    MR_CHECK(!gate || (p.n % 16 == 0), "gate and up have whole tiles of 8 rows");
    p.tiles = gate ? p.out_cols / 8 : (p.n + small::kTileRows - 1) / small::kTileRows;
    p.lower = gate ? p.out_cols : 8;
    if (qkv) {
        MR_CHECK(in.batch != nullptr, "q, k and v go to positions of a batch");
        p.q = in.qkv.q.data;
        p.q_f32 = in.qkv.q.dtype == DType::f32;
        p.keys = in.qkv.kv.keys.data;
        p.values = in.qkv.kv.values.data;
        p.kv_type = in.qkv.kv.keys.dtype;
        p.heads = in.qkv.heads;
        p.kv_heads = in.qkv.kv.kv_heads();
        p.head_dim = in.qkv.kv.head_dim();
        p.page_tokens = in.qkv.kv.page_tokens();
        p.rope = static_cast<const float*>(in.qkv.rope.data);
        p.rotary = in.qkv.rope ? in.qkv.rotary : 0;
        p.rope_by_row = in.qkv.rope_by_row;
        p.q_sinks = in.qkv.q_sinks.data;
        p.rope_sinks = static_cast<const float*>(in.qkv.rope_sinks.data);
        MR_CHECK(!p.q_sinks ||
                     (in.qkv.q_sinks.shape == in.qkv.q.shape &&
                      in.qkv.q_sinks.dtype == in.qkv.q.dtype && (p.rotary == 0 || p.rope_sinks)),
                 "what asks the sinks is as q, with a rotation of its own");
        p.positions = in.batch->positions;
        p.sequence = in.batch->sequence;
        p.pages = in.batch->pages;
        p.max_pages = in.batch->max_pages;
        MR_CHECK(p.max_pages > 0 && (p.max_pages & (p.max_pages - 1)) == 0,
                 "a page table has a power of two of entries");
        MR_CHECK(p.n == (p.heads + 2 * p.kv_heads) * p.head_dim && p.head_dim % 2 == 0,
                 "the weights are those of q, k and v");
    } else if (in.finish != Finish::records || !in.records.records) {
        p.out = in.out.data;
        p.out_f32 = in.out.dtype == DType::f32;
        MR_CHECK(in.out.rows() == p.rows && in.out.cols() == p.out_cols, "out is [rows, n]");
        MR_CHECK(p.out_f32 || in.out.dtype == compute, "out is f32 or of the compute type");
        MR_CHECK(in.finish != Finish::add || p.out_f32, "what is added to is f32");
    }
    return p;
}

small::RecordParams small::record_params_of(const Context& ctx, const LinearIn& in) {
    RecordParams p{};
    static_cast<Params&>(p) = params_of(in);
    p.records = in.records.records;
    p.guesses = in.records.rows;
    p.mask = in.records.mask;
    MR_CHECK((p.records || p.out_f32) && p.guesses && p.mask < p.n,
             "records or f32 logits have a place, and rows that ask");
    // Up to 32 rows without a norm, the product reads x in place.
    const bool prepared = p.norm_weight || is_quantised(in.w.dtype) || p.rows > 32;
    p.packed = prepared && p.rows <= packed_rows(ctx);
    return p;
}

OpRecord small::work_of(const LinearIn& in, const Params& p) {
    const auto rows = static_cast<std::uint64_t>(p.rows);
    const std::uint64_t out_bytes =
        in.finish == Finish::records && in.records.records
            ? rows * static_cast<std::uint64_t>(p.tiles) * sizeof(ops::TileRecord)
            : rows * static_cast<std::uint64_t>(p.out_cols) * (p.out_f32 ? 4 : 2);
    return {1, in.w.bytes() + in.x.bytes() + (in.finish == Finish::add ? out_bytes : 0), out_bytes,
            2 * rows * static_cast<std::uint64_t>(p.n * p.k), 0};
}

void linear_small(const Context& ctx, const LinearIn& in) {
    using namespace small;
    MR_CHECK(linear_small_takes(in.w.dtype, in.w.cols()), "linear_small() takes these weights");
    const std::int64_t rows = in.x.rows();
    const bool packs = rows > kAloneRows && rows <= packed_rows(ctx);
    if (in.finish == Finish::records && (in.records.records || packs)) {
        MR_CHECK(linear_records_takes(ctx, in.w.dtype, in.w.cols()), "the device has such kernels");
        RecordParams all = record_params_of(ctx, in);
        all.stamp = account(ctx, in.kind, in.name, work_of(in, all));
        return run_mid(ctx, in.w.dtype, all);
    }
    MR_CHECK(!in.ordered_x ||
                 (ctx.batch_products && mid_possible() && tiles_all(ctx, in.w.dtype, in.x.rows())),
             "an input in order is a tiled product's: linear_small_orders()");
    Params all = params_of(in);
    if (in.finish == Finish::records) all.finish = Finish::store;  // logits of all rows instead
    all.stamp = account(ctx, in.kind, in.name, work_of(in, all));

    if (all.rows > kAloneRows && ctx.batch_products && mid_possible())
        return run_mid(ctx, in.w.dtype, all);
    run_small(ctx, in.w.dtype, all);
}

bool linear_small_orders(const Context& ctx, const LinearIn& first, DType second) {
    return ctx.batch_products && small::mid_possible() && first.w.dtype == second &&
           small::tiles_all(ctx, second, first.x.rows()) && first.finish == Finish::gate &&
           first.activation == ops::Activation::silu && first.out.dtype == compute_type(second) &&
           first.out.cols() % 64 == 0;  // whole granules
}

std::size_t linear_small_scratch_bytes(std::int64_t max_rows, std::int64_t max_k) {
    return max_rows > small::kAloneRows ? small::mid_scratch_bytes(max_rows, max_k) : 0;
}

}  // namespace mr::cuda
