// The work between the QKV product and attention on the GPU: bias, per-head norm, rotation, and the
// store into the pages of the KV cache. The rotation is always the interleaved one: pairs (2i, 2i +
// 1) of the first `rotary` elements; the loader permutes weights of the other style.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/attention/paged/attention.h"
#include "ops/batch/batch.h"

namespace mr::cuda {

// table[p, i] = (cos, sin)(p * inv_freq[i]) * magnitude, in f64 and then rounded: made once, so
// that a step has exact angles at far positions without f64. table f32 [max_positions, rotary/2,
// 2]; inv_freq f64 [rotary/2] in device memory.
void rope_table(const Context& ctx, Tensor table, const double* inv_freq, double magnitude);

// Rows of such a table only for the positions of a batch, without a table for all: no position is
// too far. rows f32 [tokens, rotary/2, 2], row t for token t. `sinks`, as rows: for the queries to
// the sinks of the token's sequence, at the token's position, but at most sinks + window - 1;
// `window` is the layers' own, 0: none.
struct RopeRows {
    Tensor rows, sinks = {};
    const double* inv_freq = nullptr;
    double magnitude = 1;
    int window = 0;
};
void rope_rows(const Context& ctx, const RopeRows& rope, const ops::DeviceBatch& batch);

struct QkvFinish {
    Tensor q_out;     // [tokens, heads, head_dim] f32, f16 or bf16
    ops::PagedKv kv;  // one layer, f32, f16 or bf16
    Tensor qkv;       // [tokens, (heads + 2 * kv_heads) * head_dim] f32, f16 or bf16: q, k, v
    Tensor bias;      // f32, a row of qkv; or none
    Tensor q_norm;    // f32 [head_dim] or none: rmsnorm of every head before its rotation
    Tensor k_norm;
    float norm_eps = 1e-5f;
    Tensor rope;                           // rope_table()'s, or none: nothing is rotated
    bool rope_by_row = false;              // `rope` comes from rope_rows()
    Tensor q_sinks = {}, rope_sinks = {};  // q_out rotated by rope_sinks, by row; or none
};
// q_out = rotated q of each token; its k (rotated) and v go to the pages at its position. f32 in
// between. head_dim <= 256. Rows with a negative sequence or page are not stored.
void qkv_finish(const Context& ctx, const QkvFinish& finish, const ops::DeviceBatch& batch);

}  // namespace mr::cuda
