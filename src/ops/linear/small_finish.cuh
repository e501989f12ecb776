// The finish of linear_small(): what is done with the sums.
#pragma once

#include "ops/activation/activation.cuh"
#include "ops/linear/small_linear.cuh"
#include "ops/linear/small_params.cuh"
#include "ops/rope/rotate.cuh"

namespace mr::cuda::small {

// The 8 warps' sums of one row and token, `step` floats apart, always in this order.
__device__ __forceinline__ float add_warps(const float* sums, int step) {
    float v[kWarps];
#pragma unroll
    for (int i = 0; i < kWarps; ++i) v[i] = sums[i * step];
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

__device__ __forceinline__ float activate_by(float v, ops::Activation kind) {
    switch (kind) {
        case ops::Activation::silu:
            return activate<ops::Activation::silu>(v);
        case ops::Activation::gelu:
            return activate<ops::Activation::gelu>(v);
        case ops::Activation::gelu_tanh:
            return activate<ops::Activation::gelu_tanh>(v);
        case ops::Activation::relu:
            return activate<ops::Activation::relu>(v);
    }
    return v;
}

template <typename T>
__device__ __forceinline__ void put(void* out, std::int64_t at, float v, bool f32) {
    if (f32) {
        static_cast<float*>(out)[at] = v;
    } else {
        static_cast<T*>(out)[at] = from_f32<T>(v);
    }
}
__device__ __forceinline__ void put_kv(void* to, std::int64_t at, float v, DType type) {
    if (type == DType::bf16) {
        static_cast<bf16*>(to)[at] = __float2bfloat16_rn(v);
    } else if (type == DType::f16) {
        static_cast<__half*>(to)[at] = __float2half_rn(v);
    } else {
        static_cast<float*>(to)[at] = v;
    }
}

// Finish::qkv: position and page of a token of the pass, for its keys and values.
__device__ __forceinline__ int2 place_of(const Params& p, int token) {
    const int at = p.first_row + token, position = p.positions[at];
    return {position, p.pages[static_cast<std::int64_t>(p.sequence[at]) * p.max_pages +
                              ops::table_entry(position / p.page_tokens, p.max_pages)]};
}
// The row of p.rope for a token of the pass.
__device__ __forceinline__ int rope_row(const Params& p, int position, int token) {
    return p.rope_by_row ? p.first_row + token : position;
}

// The rotation of rows `row` and `row` + 1 at `position`; only for rotated rows.
__device__ __forceinline__ bool is_rotated(const Params& p, int row) {
    return row < (p.heads + p.kv_heads) * p.head_dim && row % p.head_dim < p.rotary;
}
__device__ __forceinline__ float2 rotation_of(const Params& p, const float* rope, int row,
                                              int rope_row) {
    return *reinterpret_cast<const float2*>(
        rope + (static_cast<std::int64_t>(rope_row) * (p.rotary / 2) + row % p.head_dim / 2) * 2);
}
// The offset in the cache, in elements, of row `row` of k or v (q's rows come first).
struct CachePlace {
    void* cache;
    std::int64_t at;
};
__device__ __forceinline__ CachePlace cache_place(const Params& p, int2 where, int row) {
    const int kv_dim = p.kv_heads * p.head_dim, in = row - p.heads * p.head_dim;
    const bool key = in < kv_dim;
    const int head = (key ? in : in - kv_dim) / p.head_dim;
    return {key ? p.keys : p.values, ((std::int64_t{where.y} * p.kv_heads + head) * p.page_tokens +
                                      where.x % p.page_tokens) *
                                             p.head_dim +
                                         row % p.head_dim};
}

// Rotates two neighbouring rows of q, k or v of one token and stores them to their places.
// `rotation` is used only for rotated rows.
template <typename T>
__device__ __forceinline__ void finish_pair(const Params& p, int2 where, int row, int token,
                                            float a, float b, float2 rotation) {
    if (p.bias) a += p.bias[row], b += p.bias[row + 1];
    const int q_dim = p.heads * p.head_dim;
    if (p.q_sinks && row < q_dim) {
        float c = a, d = b;
        if (is_rotated(p, row)) {
            rotate_pair(c, d, rotation_of(p, p.rope_sinks, row, p.first_row + token));
        }
        const std::int64_t at = static_cast<std::int64_t>(token) * q_dim + row;
        put<T>(p.q_sinks, at, c, p.q_f32);
        put<T>(p.q_sinks, at + 1, d, p.q_f32);
    }
    if (is_rotated(p, row)) rotate_pair(a, b, rotation);
    if (row < q_dim) {
        const std::int64_t at = static_cast<std::int64_t>(token) * q_dim + row;
        put<T>(p.q, at, a, p.q_f32);
        put<T>(p.q, at + 1, b, p.q_f32);
        return;
    }
    const CachePlace to = cache_place(p, where, row);
    put_kv(to.cache, to.at, a, p.kv_type);
    put_kv(to.cache, to.at + 1, b, p.kv_type);
}

template <typename T>
__device__ void finish_pair(const Params& p, int2 where, int row, int token, float a, float b) {
    finish_pair<T>(
        p, where, row, token, a, b,
        is_rotated(p, row) ? rotation_of(p, p.rope, row, rope_row(p, where.x, token)) : float2{});
}

// One result of Finish::store, add or activate; `before`: the value it is added to.
template <typename T, typename Before>
__device__ __forceinline__ void finish_one(const Params& p, int row, int token, float v,
                                           Before&& before) {
    if (p.bias) v += p.bias[row];
    const std::int64_t place = static_cast<std::int64_t>(token) * p.out_cols + row;
    if (p.finish == Finish::activate) v = activate_by(v, p.activation);
    if (p.finish == Finish::add) v += before(static_cast<const float*>(p.out) + place);
    put<T>(p.out, place, v, p.out_f32);
}

// One result of Finish::gate.
template <typename T>
__device__ __forceinline__ void finish_gate(const Params& p, int row, int token, float gate,
                                            float up) {
    if (p.bias) up += p.bias[row];
    put<T>(p.out, static_cast<std::int64_t>(token) * p.out_cols + row,
           __fmul_rn(activate_by(gate, p.activation), up), p.out_f32);
}

// The results of `count` adjacent tiles from `tile` on, by a block of kAll threads; sum(token,
// row): the sum of a row of these tiles. Adjacent threads take adjacent rows, which are contiguous
// in the output.
template <int kAll, typename T, typename Sum>
__device__ __forceinline__ void finish_strip(const Params& p, const int2* where, int tile,
                                             int count, Sum&& sum) {
    const bool pairs = p.finish == Finish::gate || p.finish == Finish::qkv;
    const int per_token = pairs ? count * kTileRows / 2 : count * kTileRows;
    for (int i = static_cast<int>(threadIdx.x); i < per_token * p.rows; i += kAll) {
        const int token = i / per_token, in = i % per_token;
        if (p.finish == Finish::qkv) {
            const int row = tile * kTileRows + 2 * in;
            if (row >= p.n) continue;
            finish_pair<T>(p, where[token], row, token, sum(token, 2 * in), sum(token, 2 * in + 1));
        } else if (p.finish == Finish::gate) {
            // A tile is 8 rows of gate and the same 8 of up.
            const int row = tile * (kTileRows / 2) + in, gate = in / 8 * kTileRows + in % 8;
            if (row >= p.out_cols) continue;
            finish_gate<T>(p, row, token, sum(token, gate), sum(token, gate + 8));
        } else {
            const int row = tile * kTileRows + in;
            if (row >= p.n) continue;
            finish_one<T>(p, row, token, sum(token, in), [](const float* out) { return *out; });
        }
    }
}

// Finishes `sums` [tiles of the pass][warps][16 rows][tokens]. The tiles are first_tile, first_tile
// + tile_step, ...; `residual` is the value to which this thread's first result is added, if
// first_held. kOne: one token.
template <int kAll, bool kOne, typename T>
__device__ __forceinline__ void finish_tiles(const Params& p, const int2* where, const float* sums,
                                             int first_tile, int tile_step, int count,
                                             float residual, bool first_held) {
    const int rows = kOne ? 1 : p.rows;
    const int tile_sums = kWarps * kTileRows * rows, step = kTileRows * rows;
    const bool pairs = p.finish == Finish::gate || p.finish == Finish::qkv;
    const int per_tile = (pairs ? kTileRows / 2 : kTileRows) * rows;
    for (int i = static_cast<int>(threadIdx.x); i < count * per_tile; i += kAll) {
        const int local = i / per_tile, in = i % per_tile;
        const int row_in = in / rows, token = in % rows;
        const int tile = first_tile + local * tile_step;
        const float* at = sums + local * tile_sums + token;
        if (p.finish == Finish::qkv) {
            const int row = tile * kTileRows + 2 * row_in;
            if (row >= p.n) continue;
            const float a = add_warps(at + 2 * row_in * rows, step);
            const float b = add_warps(at + (2 * row_in + 1) * rows, step);
            finish_pair<T>(p, where[token], row, token, a, b);
        } else if (p.finish == Finish::gate) {
            const int row = tile * (kTileRows / 2) + row_in;
            if (row >= p.out_cols) continue;
            const float gate = add_warps(at + row_in * rows, step);
            const float up = add_warps(at + (row_in + kTileRows / 2) * rows, step);
            finish_gate<T>(p, row, token, gate, up);
        } else {
            const int row = tile * kTileRows + row_in;
            if (row >= p.n) continue;
            const bool held = first_held && i == static_cast<int>(threadIdx.x);
            finish_one<T>(p, row, token, add_warps(at + row_in * rows, step),
                          [&](const float* out) { return held ? residual : *out; });
        }
    }
}

}  // namespace mr::cuda::small
