// The parameters of the kernels behind linear_small().
#pragma once

#include <algorithm>

#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "ops/denoise/denoise_cuda.h"
#include "ops/linear/linear_cuda.h"

namespace mr::cuda::small {

struct Params {
    const std::byte* w;
    const void* x;             // f32 if normed, else the compute type
    const float* norm_weight;  // null: no norm
    const float* norm_bias;
    const float* bias;
    void* out;
    Stamp* stamp;
    // Finish::qkv
    void* q;
    void* keys;
    void* values;
    const float* rope;
    void* q_sinks;            // or null
    const float* rope_sinks;  // by row
    const std::int32_t *positions, *sequence, *pages;

    std::int64_t k;
    int n, tiles, lower;  // rows of w; 16-row tiles; first row of a tile's lower half in tile 0
    int rows;             // tokens
    int pass_tiles;       // tiles whose sums fit into shared memory at once
    int x_stride;         // bytes of a token's input there; many tokens: mid_linear.cuh
    int out_cols;
    int first_row;  // row of the batch that is token 0
    int heads, kv_heads, head_dim, rotary, page_tokens, max_pages;
    float eps;
    bool out_f32, q_f32;
    bool rope_by_row;
    ops::NormKind norm;
    Finish finish;
    ops::Activation activation;
    DType kv_type;
    bool ordered_out, ordered_x;
};

// For Finish::records. (A separate type: a decode step keeps Params in device memory.)
struct RecordParams : Params {
    ops::TileRecord* records;  // [rows, tiles]; null: logits, to out
    const GuessRow* guesses;   // [rows]
    int mask;
    bool packed;  // only inputs of active rows were prepared, contiguously
};

// Checks shapes and types, and converts. rows is that of in.x.
Params params_of(const LinearIn& in);
RecordParams record_params_of(const Context& ctx, const LinearIn& in);
OpRecord work_of(const LinearIn& in, const Params& p);

// Up to 8 tokens per pass over the weights (small_linear.cu); any number of rows.
void run_small(const Context& ctx, DType weights, const Params& p);

// Up to this many tokens run_small() is faster.
inline constexpr int kAloneRows = 4;

// More tokens per pass, if the device has clusters: 32 (mid_half.cu, mid_quant.cu), 192
// (wide_half.cu), 256 (wide_quant.cu) or 1,024 (tiled_half.cu). The same bits.
bool mid_possible();
// Up to this many rows run_mid() packs the active ones.
int packed_rows(const Context& ctx);
// Whether run_mid() multiplies this many tokens in one pass of tiles.
bool tiles_all(const Context& ctx, DType weights, std::int64_t rows);
void run_mid(const Context& ctx, DType weights, const Params& p);
void run_mid(const Context& ctx, DType weights, const RecordParams& p);
std::size_t mid_scratch_bytes(std::int64_t rows, std::int64_t k);

// The part of p for tokens [first, first + rows).
inline Params pass_of(const Params& all, int first, int rows) {
    Params p = all;
    p.rows = rows;
    p.first_row = all.first_row + first;
    const std::int64_t size = all.norm_weight ? 4 : 2;
    p.x = static_cast<const std::byte*>(all.x) + first * all.k * size;
    if (p.out) {
        p.out = static_cast<std::byte*>(all.out) +
                std::int64_t{first} * all.out_cols * (all.out_f32 ? 4 : 2);
    }
    for (void** q : {&p.q, &p.q_sinks}) {
        if (!*q) continue;
        *q = static_cast<std::byte*>(*q) +
             std::int64_t{first} * all.heads * all.head_dim * (all.q_f32 ? 4 : 2);
    }
    return p;
}
inline RecordParams pass_of(const RecordParams& all, int first, int rows) {
    RecordParams p = all;
    static_cast<Params&>(p) = pass_of(static_cast<const Params&>(all), first, rows);
    if (p.records) p.records += std::int64_t{first} * all.tiles;
    p.guesses += first;
    return p;
}

}  // namespace mr::cuda::small
