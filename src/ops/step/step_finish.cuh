// The epilogue of a product in a step of one token: the arithmetic of small_finish.cuh. Loads that
// do not need the sums are issued before the sums are ready; results are sent as words.
#pragma once

#include "core/cuda/mma.cuh"
#include "core/cuda/signal.cuh"
#include "ops/linear/small_finish.cuh"
#include "ops/step/step_params.cuh"

namespace mr::cuda::step {

// The results of a block's tiles first, first + step, ... are distributed to the threads in turn.
// Result i is one row of the output, or two neighbouring rows that make one word.
struct Results {
    const Phase& phase;
    int first, step;

    __device__ __forceinline__ const Params& p() const { return phase.p; }
    __device__ __forceinline__ int pairs() const {
        return p().finish != Finish::add && p().finish != Finish::store;
    }
    __device__ __forceinline__ int log_rows() const {  // output rows per tile
        return p().finish == Finish::gate || phase.half ? 3 : 4;
    }
    __device__ __forceinline__ int log_each() const { return log_rows() - pairs(); }
    __device__ __forceinline__ int tile(int i) const { return i >> log_each(); }
    __device__ __forceinline__ int row_in(int i) const {
        return (i & ((1 << log_each()) - 1)) << pairs();
    }
    __device__ __forceinline__ int row(int i) const {
        return ((first + tile(i) * step) << log_rows()) + row_in(i);
    }
    __device__ __forceinline__ int rows() const {
        return p().finish == Finish::gate ? p().out_cols : p().n;
    }
};

// The operands of a result's epilogue besides the sums, loaded early.
struct HeldFinish {
    float residual = 0;
    float2 bias{0, 0};
    float2 rotation{1, 0};
    float2 rotation_sinks{1, 0};
    unsigned* cache = nullptr;  // keys and values: their address in the cache
    bool rotated = false;
};
template <typename T, bool kStreams>
__device__ __forceinline__ HeldFinish held_finish(const Results& results, int row, int2 where,
                                                  unsigned residual_tag) {
    const Params& p = results.p();
    HeldFinish held;
    if (row >= results.rows()) return held;
    if (p.bias) {
        held.bias.x = p.bias[row];
        if (results.pairs()) held.bias.y = p.bias[row + 1];
    }
    if (p.finish == Finish::qkv) {
        held.rotated = small::is_rotated(p, row);
        if (held.rotated) {
            held.rotation = small::rotation_of(p, p.rope, row,
                                               kStreams ? small::rope_row(p, where.x, 0) : where.x);
            if (kStreams && p.q_sinks && row < p.heads * p.head_dim) {
                held.rotation_sinks = small::rotation_of(p, p.rope_sinks, row, p.first_row);
            }
        }
        if (row >= p.heads * p.head_dim) {
            const small::CachePlace to = small::cache_place(p, where, row);
            held.cache = reinterpret_cast<unsigned*>(static_cast<T*>(to.cache) + to.at);
        }
    } else if (p.finish == Finish::add) {
        const Word* residual = results.phase.residual;
        held.residual = residual ? __uint_as_float(receive_one(residual + row, residual_tag))
                                 : static_cast<const float*>(p.out)[row];
    }
    return held;
}

// `sums` [count tiles][warps][16 rows] -> words, memory or both. `first_held` belongs to this
// thread's first result if is_held; only Finish::store has more results.
template <int kAll, typename T, bool kStreams>
__device__ __forceinline__ void send_tiles(const Results& results, const float* sums, int count,
                                           const HeldFinish& first_held, bool is_held,
                                           unsigned tag) {
    using small::add_warps;
    using small::kTileRows;
    const Params& p = results.p();
    Word* out = results.phase.out;
    const int thread = thread_here();
    for (int i = thread; i < count << results.log_each(); i += kAll) {
        const int row = results.row(i);
        if (row >= results.rows()) continue;
        HeldFinish held = first_held;
        if (!is_held || i != thread) {  // the head of a large vocabulary: only a bias
            held = {};
            if (p.bias) held.bias.x = p.bias[row];
        }
        const float* at = sums + results.tile(i) * (kWarps * kTileRows) + results.row_in(i);
        float a = add_warps(at, kTileRows);
        if (!results.pairs()) {
            if (p.bias) a += held.bias.x;
            if (p.finish == Finish::add) a += held.residual;
            if (out) send(out + row, a, tag);
            small::put<T>(p.out, row, a, p.out_f32);
            continue;
        }
        float b = add_warps(at + 1, kTileRows);
        const bool gate = p.finish == Finish::gate;
        if (p.bias && !gate) a += held.bias.x, b += held.bias.y;
        if (gate || p.finish == Finish::activate) {
#pragma unroll 1
            for (int j = 0; j < 2; ++j) {  // not unrolled: the code is long
                const float first = small::activate_by(a, p.activation);
                a = b;
                b = first;
            }
        } else {
            if (kStreams && p.finish == Finish::qkv && p.q_sinks && row < p.heads * p.head_dim) {
                float c = a, d = b;
                if (held.rotated) rotate_pair(c, d, held.rotation_sinks);
                send(out + (p.n + row) / 2, pack<T>(c, d), tag);  // after q, k and v
            }
            if (held.rotated) rotate_pair(a, b, held.rotation);
        }
        if (gate) {
            float up_a = add_warps(at + kTileRows / 2, kTileRows);
            float up_b = add_warps(at + 1 + kTileRows / 2, kTileRows);
            if (p.bias) up_a += held.bias.x, up_b += held.bias.y;
            a = __fmul_rn(a, up_a);
            b = __fmul_rn(b, up_b);
        }
        const unsigned pair = pack<T>(a, b);
        send(out + row / 2, pair, tag);
        if (held.cache) *held.cache = pair;
    }
}

}  // namespace mr::cuda::step
