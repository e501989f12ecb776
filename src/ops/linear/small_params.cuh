// What the kernels behind linear_small() are given.
#pragma once

#include <algorithm>

#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "ops/denoise/denoise_cuda.h"
#include "ops/linear/linear_cuda.h"

namespace mr::cuda::small {

struct Params {
    const std::byte* w;
    const void* x;             // f32 where normed, else the compute type
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
    void* q_sinks;            // null: there is none
    const float* rope_sinks;  // by row
    const std::int32_t *positions, *sequence, *pages;

    std::int64_t k;
    int n, tiles, lower;  // rows of w; 16-row tiles; first row of a tile's lower half in tile 0
    int rows;             // tokens
    int pass_tiles;       // tiles whose sums fit into shared memory
    int x_stride;         // bytes of a token's input there; many tokens: see mid_linear.cuh
    int out_cols;
    int first_row;  // which row of the batch token 0 is
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

// Of Finish::records. (A type of its own: a decode step keeps Params in device memory.)
struct RecordParams : Params {
    ops::TileRecord* records;  // [rows, tiles]; null: logits, to out
    const GuessRow* guesses;   // [rows]
    int mask;
    bool packed;  // prepared inputs are those of active rows, one behind the other
};

// The boundary: shapes and types are checked. rows is what in.x has.
Params params_of(const LinearIn& in);
RecordParams record_params_of(const Context& ctx, const LinearIn& in);
OpRecord work_of(const LinearIn& in, const Params& p);

// Up to 8 tokens a pass over the weights (small_linear.cu); rows: any number.
void run_small(const Context& ctx, DType weights, const Params& p);

// Up to so many tokens run_small() is the faster way.
inline constexpr int kAloneRows = 4;

// More tokens a pass, where the device has clusters: 32 (mid_half.cu, mid_quant.cu), 192
// (wide_half.cu), 256 (wide_quant.cu) or 1,024 (tiled_half.cu). The same bits.
bool mid_possible();
// Up to so many rows run_mid() packs those that are active.
int packed_rows(const Context& ctx, DType weights);
// Whether run_mid() multiplies so many tokens in one pass of tiles.
bool tiles_all(const Context& ctx, DType weights, std::int64_t rows);
void run_mid(const Context& ctx, DType weights, const Params& p);
void run_mid(const Context& ctx, DType weights, const RecordParams& p);
std::size_t mid_scratch_bytes(std::int64_t rows, std::int64_t k);

// The tokens [first, first + rows) of p.
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
