// The product for few tokens, on the GPU: what a decode step is made of.
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

// The type in which a product with weights of `type` takes its input: f32 for f32, f16 for f16,
// bf16 for all others.
DType compute_type(DType weights);

// A norm taken on the way in. weight f32 [k]; bias f32 [k] or none.
struct NormIn {
    Tensor weight = {}, bias = {};
    ops::NormKind kind = ops::NormKind::rms;
    float eps = 0;
};

// What becomes of the sums.
enum class Finish {
    store,     // out = sum (+ bias)
    add,       // out += sum (+ bias): the residual stream, f32
    activate,  // out = act(sum + bias)
    gate,      // out = act(sum of gate row i) * (sum of up row i + bias); w = [2 n, k], gate first
    qkv,       // (+ bias), rotated, queries to qkv.q, keys and values into the cache
    records,   // (+ bias), the logits of a vocabulary, or records of their tiles; of active rows
};

struct QkvOut {
    Tensor q;         // [rows, heads, head_dim] in the compute type or f32
    ops::PagedKv kv;  // where the keys and values of the rows go
    Tensor rope;      // f32 [positions, rotary / 2, 2], cos and sin; none: nothing turns
    int rotary = 0;   // the first elements of a head are rotated, in pairs (2i, 2i + 1)
    int heads = 0;    // of q; kv and head_dim say the rest
    // The rows of `rope` are those of the batch, whatever their positions.
    bool rope_by_row = false;
    // What asks sinks, as q: rotated by rope_sinks, by row; or none.
    Tensor q_sinks = {}, rope_sinks = {};
};

// Finish::records: w are the rows of a vocabulary's tokens (ops/denoise/tile_draw.h). Up to
// kPackedRows normed rows, the product has no more than the active ones, which the device counts,
// in groups of 8 (quantised weights: 16 from 9 rows on; others: 32 from 33 rows on). More than 32
// are packed where ctx.whole_device is set. Rows that are not active get no records, and their
// logits are not defined.
inline constexpr int kPackedRows = 64;
struct RecordsOut {
    ops::TileRecord* records = nullptr;  // [rows, ops::draw_tiles(n)]; null: LinearIn::out, f32
    const GuessRow* rows = nullptr;      // [rows]
    std::int32_t mask = -1;              // the token that has no probability
};

struct LinearIn {
    Tensor x;          // [rows, k]: compute type; f32 where there is a norm
    NormIn norm = {};  // none: x as it is
    Tensor w;          // [n, k] f16, bf16, q8_0x8, q4_0x8
    Tensor bias = {};  // f32 [n] or none (gate: of the up rows)
    Finish finish = Finish::store;
    ops::Activation activation = ops::Activation::silu;
    Tensor out = {};                          // [rows, n], f32 or compute type; gate: [rows, n / 2]
    QkvOut qkv = {};                          // Finish::qkv
    RecordsOut records = {};                  // Finish::records
    const ops::DeviceBatch* batch = nullptr;  // Finish::qkv: positions and pages of the rows
    // Between a product and the next one: the first writes `out` in the order in which the second
    // reads x (linear_small_orders()). The second finds ctx.scratch as the first left it.
    bool ordered_out = false, ordered_x = false;
    OpKind kind = OpKind::linear;
    const char* name = "linear";  // of the stage
};

// Weights of 8 and 4 bits meet inputs quantised to 8 bits in blocks of 32, as on the CPU; others
// meet them in the compute type; sums are f32. A norm's output is rounded to the compute type.
// The bits of a row of the result depend on that row and the weights alone.
//
// A warp streams the weights of some rows and its share of the columns from memory through a ring
// in shared memory into the tensor cores. The ring is filled before the kernel waits for its
// predecessor, so that the memory never rests between kernels. Up to 4 tokens one kernel does it
// all; more take others, which read the weights from memory once for up to 256 tokens (f16 and
// bf16: 1,024), where the device has clusters (sm_90) and ctx.batch_products is set, and passes of
// 8 where not: the same bits.
// Norm and quantisation are then a kernel before it, whose results lie in ctx.scratch:
// linear_small_scratch_bytes(). From 33 tokens on the blocks of a product wait for each other,
// where ctx.whole_device is set.
void linear_small(const Context& ctx, const LinearIn& in);

// What linear_small() wants of ctx.scratch for up to this many tokens and columns; 0 up to 4
// tokens.
std::size_t linear_small_scratch_bytes(std::int64_t max_rows, std::int64_t max_k);

// Whether linear_small() can do `first` with ordered_out, for a product of the same rows with
// weights of type `second` that has ordered_x. The second then needs no kernel that prepares x.
bool linear_small_orders(const Context& ctx, const LinearIn& first, DType second);

// Whether linear_small() takes such weights on this device (tensor cores, whole 16-byte pieces).
bool linear_small_takes(DType weights, std::int64_t k);
// Whether it has Finish::records for them: the kernels for 5 tokens and more have, which then take
// fewer tokens, too.
bool linear_records_takes(const Context& ctx, DType weights, std::int64_t k);
// What they want of ctx.scratch.
std::size_t linear_records_scratch_bytes(std::int64_t max_rows, std::int64_t k);

// Any weights, any k, any device: a warp a row of w. x is of the weights' compute type.
// out = x · wᵀ (+ bias), or +=.
void linear_plain(const Context& ctx, Tensor out, Tensor x, Tensor w, Tensor bias, bool add,
                  OpKind kind = OpKind::linear, const char* name = "linear");

}  // namespace mr::cuda
