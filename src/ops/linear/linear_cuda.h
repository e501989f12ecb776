// The product for few tokens on the GPU, the main operation of a decode step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/activation/kind.h"
#include "ops/attention/paged/attention.h"
#include "ops/batch/batch.h"
#include "ops/norm/kind.h"

namespace mr::ops {
struct TileRecord;
}

namespace mr::cuda {

struct GuessRow;

// The compute type for weights of `type`, that is, the type of the product's input: f32 for f32,
// f16 for f16, bf16 for all others.
DType compute_type(DType weights);

// A norm fused into the product's input. weight f32 [k]; bias f32 [k] or none.
struct NormIn {
    Tensor weight = {}, bias = {};
    ops::NormKind kind = ops::NormKind::rms;
    float eps = 0;
};

// What is done with the sums.
enum class Finish {
    store,     // out = sum (+ bias)
    add,       // out += sum (+ bias): the residual stream, f32
    activate,  // out = act(sum + bias)
    gate,      // out = act(sum of gate row i) * (sum of up row i + bias); w = [2 n, k], gate first
    qkv,       // (+ bias), rotated; queries to qkv.q, keys and values to the cache
    records,   // (+ bias), logits of a vocabulary, or records of their tiles; only active rows
};

struct QkvOut {
    Tensor q;         // [rows, heads, head_dim] in the compute type or f32
    ops::PagedKv kv;  // the cache for the rows' keys and values
    Tensor rope;      // f32 [positions, rotary / 2, 2], cos and sin; none: no rotation
    int rotary = 0;   // leading elements of a head to rotate, in pairs (2i, 2i + 1)
    int heads = 0;    // query heads; kv and head_dim give the rest
    // Row i of `rope` is for row i of the batch, not for position i.
    bool rope_by_row = false;
    // Queries for the sinks, as q: rotated by rope_sinks, by row; or none.
    Tensor q_sinks = {}, rope_sinks = {};
};

// Finish::records: the rows of w are a vocabulary's tokens (ops/denoise/tile_draw.h).
// With up to kPackedRows normed rows, only the active ones, counted on the device,
// are multiplied, in groups of 8 (quantised weights: 16 from 9 rows on; others: 32
// from 33 rows on). More than 32 are packed only if ctx.whole_device is set. Inactive
// rows get no records, and their logits are undefined.
inline constexpr int kPackedRows = 64;
struct RecordsOut {
    ops::TileRecord* records = nullptr;  // [rows, ops::draw_tiles(n)]; null: to LinearIn::out, f32
    const GuessRow* rows = nullptr;      // [rows]
    std::int32_t mask = -1;              // a token that gets no probability
};

struct LinearIn {
    Tensor x;          // [rows, k]: compute type; f32 if there is a norm
    NormIn norm = {};  // none: x is used as it is
    Tensor w;          // [n, k] f16, bf16, q8_0x8, q4_0x8
    Tensor bias = {};  // f32 [n] or none (gate: for the up rows)
    Finish finish = Finish::store;
    ops::Activation activation = ops::Activation::silu;
    Tensor out = {};                          // [rows, n], f32 or compute type; gate: [rows, n / 2]
    QkvOut qkv = {};                          // Finish::qkv
    RecordsOut records = {};                  // Finish::records
    const ops::DeviceBatch* batch = nullptr;  // Finish::qkv: positions and pages of the rows
    // For two consecutive products: the first writes `out` in the order in which the second reads x
    // (linear_small_orders()). ctx.scratch must stay unchanged between the two.
    bool ordered_out = false, ordered_x = false;
    OpKind kind = OpKind::linear;
    const char* name = "linear";  // of the stage; a string literal
};

// Weights of 8 and 4 bits are multiplied with inputs quantised to 8 bits in blocks of 32, as on the
// CPU; other weights with inputs in the compute type; sums are f32. A norm's output is rounded to
// the compute type. The bits of a result row depend on that row and the weights alone.
//
// A warp streams the weights of some rows and its share of the columns from memory
// through a ring in shared memory into the tensor cores. The ring is filled before
// the kernel waits for its predecessor, so that memory is never idle between
// kernels. Up to 4 tokens one kernel does it all. For more, other kernels read the
// weights once for up to 256 tokens (f16 and bf16: 1,024) if the device has
// clusters (sm_90) and ctx.batch_products is set; otherwise there are passes of 8
// tokens, with the same bits. Norm and quantisation are then a separate kernel
// that writes to ctx.scratch (linear_small_scratch_bytes()). From 33 tokens on the
// blocks of a product wait for each other if ctx.whole_device is set.
void linear_small(const Context& ctx, const LinearIn& in);

// Bytes of ctx.scratch that linear_small() needs for up to this many tokens and columns; 0 up to 4
// tokens.
std::size_t linear_small_scratch_bytes(std::int64_t max_rows, std::int64_t max_k);

// Whether linear_small() supports ordered_out for `first`, followed by a product of the same rows
// with weights of type `second` and ordered_x. The second then needs no kernel that prepares x.
bool linear_small_orders(const Context& ctx, const LinearIn& first, DType second);

// Whether linear_small() supports such weights on this device (tensor cores, whole 16-byte pieces).
bool linear_small_takes(DType weights, std::int64_t k);
// Whether it supports Finish::records for them. The kernels for 5 tokens and more do, and then also
// run for fewer tokens.
bool linear_records_takes(const Context& ctx, DType weights, std::int64_t k);
// Bytes of ctx.scratch that they need.
std::size_t linear_records_scratch_bytes(std::int64_t max_rows, std::int64_t k);

// For any weights, any k, any device: one warp per row of w. x is of the weights' compute type. out
// = x · wᵀ (+ bias), or +=.
void linear_plain(const Context& ctx, Tensor out, Tensor x, Tensor w, Tensor bias, bool add,
                  OpKind kind = OpKind::linear, const char* name = "linear");

}  // namespace mr::cuda
