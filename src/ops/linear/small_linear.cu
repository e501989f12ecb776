// linear_small(): one kernel for every product of a decode step.
//
//   fill the ring with weights | wait for the previous kernel | input (norm, quantise) to shared
//   memory | stream the weights through the tensor cores | add up the warps | finish
//
// A block works on every gridDim-th tile of 16 rows; its 8 warps share a tile's columns, an eighth
// each. The share depends on k alone and the 8 sums are added in one fixed tree, so the bits of a
// result do not depend on the number of tokens or blocks.
#include <algorithm>
#include <type_traits>

#include "core/error.h"
#include "ops/activation/activation.cuh"
#include "ops/linear/linear_cuda.h"
#include "ops/linear/small_linear.cuh"
#include "ops/norm/norm_row.cuh"

namespace mr::cuda {
namespace small {

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
    const std::int32_t *positions, *sequence, *pages;

    std::int64_t k;
    int n, tiles, lower;  // rows of w; 16-row tiles; first row of a tile's lower half in tile 0
    int rows;             // tokens
    int pass_tiles;       // tiles whose sums fit into shared memory
    int x_stride;         // bytes of a token's input there
    int out_cols;
    int first_row;  // which row of the batch token 0 is
    int heads, kv_heads, head_dim, rotary, page_tokens, max_pages;
    float eps;
    bool out_f32, q_f32;
    ops::NormKind norm;
    Finish finish;
    ops::Activation activation;
    DType kv_type;
};

// The 32 columns of a block become 8-bit numbers times a scale, as on the CPU
// (linear_kernels.cpp), bit for bit; 8 lanes hold 4 columns each. Every block of the grid does this
// for the same input, so it is made of few instructions: rounding is an addition.
__device__ __forceinline__ unsigned quantise4(const float (&v)[4], float* scale) {
    const auto magnitude = [](float x) { return __float_as_uint(x) & 0x7fffffffu; };
    unsigned top =
        max(max(magnitude(v[0]), magnitude(v[1])), max(magnitude(v[2]), magnitude(v[3])));
#if __CUDA_ARCH__ >= 800
    top = __reduce_max_sync(0xffu << (threadIdx.x & 24), top);
#endif
    const float steps = __fdiv_rn(__uint_as_float(top), 127.0f);
    float d = __uint_as_float((__float_as_uint(steps) + 2u) & ~3u);
    float inverse = __frcp_rn(d);
    if (top >= 0x71800000u) {  // 2^100 and more, infinities, NaN: the result is to be NaN
        d = __int_as_float(0x7fc00000);
        inverse = 0;
    } else if (steps < 0x1p-126f) {
        d = inverse = 0;
    }
    *scale = d;
    unsigned q[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        // The lowest byte is the number.
        q[i] = __float_as_uint(__fadd_rn(__fmul_rn(v[i], inverse), 0x1.8p23f));
    }
    if (inverse == 0) return 0;  // also where v is not a number
    return __byte_perm(__byte_perm(q[0], q[1], 0x0040), __byte_perm(q[2], q[3], 0x0040), 0x5410);
}

// Four columns of a token's input, from `chunk` * 4 on, to where the warps will read them. All
// lanes of a warp call it together; columns past the last whole granule go nowhere.
template <typename W, typename T>
__device__ __forceinline__ void store_input(std::byte* row, float* scales, int chunk, int columns,
                                            const float (&v)[4]) {
    const int c = chunk * 4;
    if constexpr (W::kQuantised) {
        float scale;
        const unsigned word = quantise4(v, &scale);
        if (c >= columns) return;
        const int place = W::LayoutType::input_place(c % W::kColumns);
        *reinterpret_cast<unsigned*>(row + c / W::kColumns * W::kColumns + place) = word;
        if (c % 32 == 0) scales[c / 32] = __fmul_rn(scale, W::LayoutType::kUnit);
    } else {
        if (c >= columns) return;
        const T four[4] = {from_f32<T>(v[0]), from_f32<T>(v[1]), from_f32<T>(v[2]),
                           from_f32<T>(v[3])};
        *reinterpret_cast<uint2*>(row + c * 2) = *reinterpret_cast<const uint2*>(four);
    }
}

// A group of 8 warps takes a row's statistics; with two groups both do, and share the rest.
constexpr int kGroupThreads = 32 * kWarps;
constexpr int kHeld = 4;  // chunks of a row that a thread of a group holds: k up to 4096
template <typename W>
constexpr int kThreads = kGroupThreads* W::kGroups;

// The norm's weights of the chunks this thread will write, on their way before the input is there.
template <typename W>
struct HeldNorm {
    static constexpr int kMine = kHeld / W::kGroups;
    float4 weight[kMine], bias[kMine];

    static __device__ bool possible(const Params& p) {
        return p.norm_weight && p.k % 4 == 0 && p.k <= kHeld * 4 * kGroupThreads;
    }
    // The chunk that is this thread's j-th.
    static __device__ int chunk(int j) {
        const int thread = static_cast<int>(threadIdx.x);
        return thread % kGroupThreads + kGroupThreads * (thread / kGroupThreads + W::kGroups * j);
    }
    __device__ void load(const Params& p) {
#pragma unroll
        for (int j = 0; j < kMine; ++j) {
            const int c = chunk(j) * 4;
            weight[j] = bias[j] = float4{};
            if (c >= p.k) continue;
            weight[j] = *reinterpret_cast<const float4*>(p.norm_weight + c);
            if (p.norm_bias) bias[j] = *reinterpret_cast<const float4*>(p.norm_bias + c);
        }
    }
};

// A normed row, the raw values in registers.
template <typename W, typename T>
__device__ void load_normed(const Params& p, const HeldNorm<W>& held, const float* raw,
                            std::byte* to, float* scales, int columns, float* shared) {
    const int k = static_cast<int>(p.k);
    const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
    const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
    float v[kHeld][4];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
        const int chunk = thread + kGroupThreads * j;
        const float4 x = chunk * 4 < k ? reinterpret_cast<const float4*>(raw)[chunk] : float4{};
        v[j][0] = x.x, v[j][1] = x.y, v[j][2] = x.z, v[j][3] = x.w;
    }
    const RowStats stats = row_stats<kGroupThreads, kHeld>(
        p.norm, v, k, p.eps, thread, shared + group * kRowShared<kGroupThreads>);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
        if (W::kGroups > 1 && j % W::kGroups != group) continue;
        if ((thread / 32 * 32 + kGroupThreads * j) * 4 >= columns) break;
        const int chunk = thread + kGroupThreads * j;
        const float4 w = held.weight[j / W::kGroups], b = held.bias[j / W::kGroups];
        const float n[4] = {normed(v[j][0], stats, w.x, b.x), normed(v[j][1], stats, w.y, b.y),
                            normed(v[j][2], stats, w.z, b.z), normed(v[j][3], stats, w.w, b.w)};
        float r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) r[i] = chunk * 4 < k ? to_f32(from_f32<T>(n[i])) : 0.0f;
        store_input<W, T>(to, scales, chunk, columns, r);
    }
}

// A normed row that is too wide to hold, or odd.
template <typename W, typename T>
__device__ void load_normed_wide(const Params& p, const float* raw, std::byte* to, float* scales,
                                 int columns, float* shared) {
    const int k = static_cast<int>(p.k);
    const int thread = static_cast<int>(threadIdx.x);
    const int group = thread / kGroupThreads;
    const RowStats stats = row_stats<kGroupThreads>(p.norm, raw, k, p.eps, thread % kGroupThreads,
                                                    shared + group * kRowShared<kGroupThreads>);
    for (int first = thread / 32 * 32; first * 4 < columns; first += kThreads<W>) {
        const int chunk = first + thread % 32;
        float r[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int c = chunk * 4 + i;
            const float b = c < k && p.norm_bias ? p.norm_bias[c] : 0.0f;
            r[i] = c < k ? to_f32(from_f32<T>(normed(raw[c], stats, p.norm_weight[c], b))) : 0.0f;
        }
        store_input<W, T>(to, scales, chunk, columns, r);
    }
}

// A row that is ready.
template <typename W, typename T>
__device__ void load_ready(const Params& p, const T* ready, std::byte* to, float* scales,
                           int columns) {
    const int k = static_cast<int>(p.k), thread = static_cast<int>(threadIdx.x);
    const bool whole = k % 4 == 0;
    constexpr int kBatch = 11;  // loads in flight
    for (int first = thread / 32 * 32; first * 4 < columns; first += kThreads<W> * kBatch) {
        uint2 four[kBatch];
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
            const int c = (first + thread % 32 + kThreads<W> * j) * 4;
            four[j] = uint2{};
            if (whole && c < k) four[j] = *reinterpret_cast<const uint2*>(ready + c);
        }
#pragma unroll
        for (int j = 0; j < kBatch; ++j) {
            if ((first + kThreads<W> * j) * 4 >= columns) break;
            const int chunk = first + thread % 32 + kThreads<W> * j;
            float v[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const bool odd = !whole && chunk * 4 + i < k;
                v[i] = odd ? to_f32(ready[chunk * 4 + i])
                           : to_f32(reinterpret_cast<const T*>(&four[j])[i]);
            }
            store_input<W, T>(to, scales, chunk, columns, v);
        }
    }
}

// Brings the tokens' inputs into shared memory, normed and rounded to T or quantised, with zeros up
// to a whole granule. Loads are issued in batches: the latency of one is what all of them take.
template <typename W, typename T>
__device__ void load_input(const Params& p, const HeldNorm<W>& held, std::byte* to, float* scales,
                           int granules, float* shared) {
    const int columns = granules * W::kGranule;
    for (int row = 0; row < p.rows; ++row) {
        std::byte* place = to + row * p.x_stride;
        float* row_scales = scales + row * (columns / 32);
        const float* raw = static_cast<const float*>(p.x) + row * p.k;
        if (p.norm_weight && row > 0) __syncthreads();  // the statistics' room is used again
        if (HeldNorm<W>::possible(p)) {
            load_normed<W, T>(p, held, raw, place, row_scales, columns, shared);
        } else if (p.norm_weight) {
            load_normed_wide<W, T>(p, raw, place, row_scales, columns, shared);
        } else {
            load_ready<W, T>(p, static_cast<const T*>(p.x) + row * p.k, place, row_scales, columns);
        }
    }
}

// The 8 warps' sums of one row and token, always in this order.
__device__ __forceinline__ float add_warps(const float* sums, int rows) {
    const int step = kTileRows * rows;
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

// Two neighbouring rows of q, k or v for one token: turn them and put them where they belong.
template <typename T>
__device__ void finish_pair(const Params& p, int2 where, int row, int token, float a, float b) {
    const int q_dim = p.heads * p.head_dim, kv_dim = p.kv_heads * p.head_dim;
    const int d = row % p.head_dim;
    const int position = where.x;
    if (row < q_dim + kv_dim && d < p.rotary) {
        const float2 turn = *reinterpret_cast<const float2*>(
            p.rope + (static_cast<std::int64_t>(position) * (p.rotary / 2) + d / 2) * 2);
        const float x = a, y = b;
        a = x * turn.x - y * turn.y;
        b = x * turn.y + y * turn.x;
    }
    if (row < q_dim) {
        const std::int64_t at = static_cast<std::int64_t>(token) * q_dim + row;
        put<T>(p.q, at, a, p.q_f32);
        put<T>(p.q, at + 1, b, p.q_f32);
        return;
    }
    const int in = row - q_dim;
    const bool key = in < kv_dim;
    const int head = (key ? in : in - kv_dim) / p.head_dim;
    const std::int64_t at =
        ((std::int64_t{where.y} * p.kv_heads + head) * p.page_tokens + position % p.page_tokens) *
            p.head_dim +
        d;
    put_kv(key ? p.keys : p.values, at, a, p.kv_type);
    put_kv(key ? p.keys : p.values, at + 1, b, p.kv_type);
}

// `sums` [tiles of the pass][warps][16 rows][tokens] -> what the caller wanted.
template <int kAll, typename T>
__device__ void finish(const Params& p, const int2* where, const float* sums, int first, int count,
                       float residual) {
    const int tile_sums = kWarps * kTileRows * p.rows;
    const bool pairs = p.finish == Finish::gate || p.finish == Finish::qkv;
    const int per_tile = (pairs ? kTileRows / 2 : kTileRows) * p.rows;
    for (int i = static_cast<int>(threadIdx.x); i < count * per_tile; i += kAll) {
        const int local = i / per_tile, in = i % per_tile;
        const int row_in = in / p.rows, token = in % p.rows;
        const int tile =
            static_cast<int>(blockIdx.x) + (first + local) * static_cast<int>(gridDim.x);
        const float* at = sums + local * tile_sums + token;
        if (p.finish == Finish::qkv) {
            const int row = tile * kTileRows + 2 * row_in;
            if (row >= p.n) continue;
            float a = add_warps(at + 2 * row_in * p.rows, p.rows);
            float b = add_warps(at + (2 * row_in + 1) * p.rows, p.rows);
            if (p.bias) a += p.bias[row], b += p.bias[row + 1];
            finish_pair<T>(p, where[token], row, token, a, b);
        } else if (p.finish == Finish::gate) {
            const int row = tile * (kTileRows / 2) + row_in;
            if (row >= p.out_cols) continue;
            const float gate = add_warps(at + row_in * p.rows, p.rows);
            float up = add_warps(at + (row_in + kTileRows / 2) * p.rows, p.rows);
            if (p.bias) up += p.bias[row];
            put<T>(p.out, static_cast<std::int64_t>(token) * p.out_cols + row,
                   activate_by(gate, p.activation) * up, p.out_f32);
        } else {
            const int row = tile * kTileRows + row_in;
            if (row >= p.n) continue;
            float v = add_warps(at + row_in * p.rows, p.rows);
            if (p.bias) v += p.bias[row];
            const std::int64_t place = static_cast<std::int64_t>(token) * p.out_cols + row;
            if (p.finish == Finish::activate) v = activate_by(v, p.activation);
            if (p.finish == Finish::add) {
                v += i == static_cast<int>(threadIdx.x) && first == 0
                         ? residual
                         : static_cast<const float*>(p.out)[place];
            }
            put<T>(p.out, place, v, p.out_f32);
        }
    }
}

// Where a warp is in its stream of weights: granule after granule of its tiles.
template <typename W>
struct Cursor {
    RowPointers from{};
    int tile, tile_step, part, share;
    int stages;       // left in all
    int left = 0;     // ... of this tile
    int columns = 0;  // left of the tile's rows

    __device__ Cursor(int tile_, int tile_step_, int part_, int share_, int stages_)
        : tile(tile_), tile_step(tile_step_), part(part_), share(share_), stages(stages_) {}
    // At a tile's end, goes to the next one.
    __device__ __forceinline__ void settle(const Params& p, int lane) {
        if (left > 0) return;
        const int upper = tile * (p.finish == Finish::gate ? kTileRows / 2 : kTileRows);
        from = W::rows(p.w, p.k, p.n, upper, upper + p.lower, lane);
        from.upper += part * W::kStep;
        from.lower += part * W::kStep;
        left = share;
        columns = static_cast<int>(p.k) - part * W::kGranule;
        tile += tile_step * W::kGroups;
    }
    __device__ __forceinline__ void step() {
        --stages;
        --left;
        columns -= kWarps * W::kGranule;
        from.upper += kWarps * W::kStep;
        from.lower += kWarps * W::kStep;
    }
};

// W: how the weights lie; T: the compute type; kStages: depth of a warp's ring; kOne: one token.
template <typename W, typename T, int kStages, bool kOne>
__global__ void __launch_bounds__(kThreads<W>, 2) kernel(const Params p) {
    // At once: the next kernel's blocks wait for room, and take that of the previous one's as they
    // end, one to a multiprocessor, and fill their rings while this kernel is still busy.
    let_next_start();
    extern __shared__ __align__(128) std::byte shared[];
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int group = warp / kWarps, part = warp % kWarps;
    const int granules = static_cast<int>((p.k + W::kGranule - 1) / W::kGranule);
    std::byte* input = shared + kWarps * W::kGroups * kStages * W::kStageBytes;
    float* scales = reinterpret_cast<float*>(input + p.rows * p.x_stride);
    float* sums = scales + (W::kQuantised ? p.rows * granules * (W::kGranule / 32) : 0);

    // This warp's granules: part, part + 8, ..., so that the block reads rows front to back.
    const int share = (granules - part + kWarps - 1) / kWarps;
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    const int tiles = (p.tiles - block + blocks - 1) / blocks;  // of this block
    const unsigned ring = shared_address(shared) + warp * kStages * W::kStageBytes;
    constexpr unsigned kRing = kStages * W::kStageBytes;

    // Fetching runs ahead of multiplying, across tiles.
    Cursor<W> fetch(block + group * blocks, blocks, part, share,
                    (tiles - group + W::kGroups - 1) / W::kGroups * share);
    unsigned fetch_to = 0;  // in the ring
    const auto fetch_one = [&] {
        if (fetch.stages > 0) {
            fetch.settle(p, lane);
            W::stage(ring + fetch_to, fetch.from, fetch.columns, lane);
            fetch.step();
            fetch_to = fetch_to + W::kStageBytes == kRing ? 0 : fetch_to + W::kStageBytes;
        }
        copies_commit();
    };
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) fetch_one();
    HeldNorm<W> held;
    if (HeldNorm<W>::possible(p)) held.load(p);

    wait_for_previous();
    const StageClock clock(p.stamp);
    // Where keys and values go: position and page of each token.
    __shared__ int2 where[kTokens];
    if (p.finish == Finish::qkv && static_cast<int>(threadIdx.x) < p.rows) {
        const int at = p.first_row + static_cast<int>(threadIdx.x), position = p.positions[at];
        where[threadIdx.x] = {position,
                              p.pages[static_cast<std::int64_t>(p.sequence[at]) * p.max_pages +
                                      position / p.page_tokens]};
    }
    // What this thread's first result will be added to.
    float residual = 0;
    if (p.finish == Finish::add) {
        const int i = static_cast<int>(threadIdx.x), per_tile = kTileRows * p.rows;
        const int row = (block + i / per_tile * blocks) * kTileRows + i % per_tile / p.rows;
        if (row < p.n && i / per_tile < min(tiles, p.pass_tiles)) {
            residual = static_cast<const float*>(
                p.out)[static_cast<std::int64_t>(i % p.rows) * p.out_cols + row];
        }
    }
    load_input<W, T>(p, held, input, scales, granules, sums);
    __syncthreads();

    const int token = kOne ? 0 : min(lane / 4, p.rows - 1);
    const unsigned x0 =
        W::input(shared_address(input) + token * p.x_stride + part * W::kInputStep, lane);
    constexpr int kBlocks = W::kGranule / 32;
    const int token_a = kOne ? 0 : min(lane % 4 * 2, p.rows - 1);
    const int token_b = kOne ? 0 : min(lane % 4 * 2 + 1, p.rows - 1);
    const float* a0 = scales + (token_a * granules + part) * kBlocks;
    const float* b0 = scales + (token_b * granules + part) * kBlocks;

    unsigned slot = 0;
    for (int first = 0; first < tiles; first += p.pass_tiles) {
        const int count = min(p.pass_tiles, tiles - first);
        for (int local = group; local < count; local += W::kGroups) {
            float acc[4] = {};
            unsigned x = x0;
            const float *a = a0, *b = b0;
            for (int i = 0; i < share; ++i) {
                copies_wait<kStages - 2>();
                if constexpr (W::kQuantised) __syncwarp();  // the scales come from other lanes
                // Into the stage before this one, which every lane has done with.
                fetch_one();
                W::template multiply<kOne>(acc, ring + slot, x, a, b, lane);
                x += kWarps * W::kInputStep;
                a += kWarps * kBlocks, b += kWarps * kBlocks;
                slot = slot + W::kStageBytes == kRing ? 0 : slot + W::kStageBytes;
            }
            float* to = sums + (local * kWarps + part) * kTileRows * p.rows;
            const int g = lane / 4, even = lane % 4 * 2;
            if (even < p.rows) {
                to[g * p.rows + even] = acc[0];
                to[(g + 8) * p.rows + even] = acc[2];
            }
            if (even + 1 < p.rows) {
                to[g * p.rows + even + 1] = acc[1];
                to[(g + 8) * p.rows + even + 1] = acc[3];
            }
        }
        __syncthreads();
        finish<kThreads<W>, T>(p, where, sums, first, count, residual);
        if (first + p.pass_tiles < tiles) __syncthreads();
    }
    copies_wait<0>();
}

struct Shared {
    int x_stride = 0;
    int pass_tiles = 0;
    std::size_t bytes = 0;
};

template <typename W>
Shared shared_layout(int stages, std::int64_t k, int rows, int tiles_a_block) {
    const std::int64_t granules = (k + W::kGranule - 1) / W::kGranule;
    Shared s;
    // Tokens' rows start in different banks.
    const std::int64_t row = granules * W::kGranule * static_cast<int>(sizeof(typename W::Input));
    s.x_stride = static_cast<int>((row + 127) / 128 * 128) + (rows == 1 ? 0 : W::kInputPad);
    std::size_t bytes = static_cast<std::size_t>(kWarps * W::kGroups * stages) * W::kStageBytes;
    bytes += static_cast<std::size_t>(rows) * s.x_stride;
    if (W::kQuantised) bytes += static_cast<std::size_t>(rows * granules * (W::kGranule / 32)) * 4;
    const std::size_t tile_sums = sizeof(float) * kWarps * kTileRows * rows;
    // The norm borrows this room before the first sums are there.
    const std::size_t most = std::max<std::size_t>(16 * 1024, tile_sums);
    s.pass_tiles = std::min<int>(tiles_a_block, static_cast<int>(most / tile_sums));
    // Whole rounds of the groups: the ring is fetched in the order in which tiles are worked on.
    if (s.pass_tiles < tiles_a_block)
        s.pass_tiles = std::max(s.pass_tiles / W::kGroups, 1) * W::kGroups;
    s.bytes = bytes + std::max<std::size_t>(s.pass_tiles * tile_sums,
                                            sizeof(float) * W::kGroups * kRowShared<kGroupThreads>);
    return s;
}

struct Limits {
    int multiprocessors;
    std::size_t shared;  // of a block
};
const Limits& limits() {
    static const Limits l = [] {
        const DeviceInfo info = require_device();
        return Limits{info.multiprocessors, info.shared_per_block - 256};  // fixed arrays
    }();
    return l;
}

template <typename W, typename T, int kStages, bool kOne>
void start(const Context& ctx, Params& p, int blocks, const Shared& s) {
    p.x_stride = s.x_stride;
    p.pass_tiles = s.pass_tiles;
    static const bool allowed = [] {
        allow_shared(kernel<W, T, kStages, kOne>, limits().shared);
        return true;
    }();
    (void)allowed;
    launch(ctx, dim3(static_cast<unsigned>(blocks)), dim3(kThreads<W>), s.bytes,
           kernel<W, T, kStages, kOne>, p);
}

// The deepest ring that leaves room for the next kernel's block beside this one; if none does, the
// deepest there is room for at all. Depths from deep to shallow.
template <typename W, typename T, int... kDepths>
void start_any(const Context& ctx, Params p) {
    const int blocks = std::min(p.tiles, limits().multiprocessors);
    const int tiles_a_block = (p.tiles + blocks - 1) / blocks;
    // A block costs 1 KB more than it asks for.
    const std::size_t half = (limits().shared + 1024) / 2 - 1024;
    for (const std::size_t most : {half, limits().shared}) {
        bool started = false;
        const auto consider = [&](auto depth) {
            constexpr int kDepth = decltype(depth)::value;
            if (started || (most == half && kDepth < 4)) return;
            const Shared s = shared_layout<W>(kDepth, p.k, p.rows, tiles_a_block);
            if (s.bytes > most) return;
            started = true;
            if (p.rows == 1) {
                start<W, T, kDepth, true>(ctx, p, blocks, s);
            } else {
                start<W, T, kDepth, false>(ctx, p, blocks, s);
            }
        };
        (consider(std::integral_constant<int, kDepths>{}), ...);
        if (started) return;
    }
    MR_CHECK(false, "a token's input fits into shared memory");
}

// Tokens a pass can take: their inputs must fit beside a shallow ring.
template <typename W, int kShallow>
int tokens_a_pass(std::int64_t k, int tiles) {
    const int blocks = std::min(tiles, limits().multiprocessors);
    for (int rows = kTokens; rows > 1; --rows) {
        if (shared_layout<W>(kShallow, k, rows, (tiles + blocks - 1) / blocks).bytes <=
            limits().shared) {
            return rows;
        }
    }
    return 1;
}

}  // namespace small

bool linear_small_takes(DType weights, std::int64_t k) {
    const std::optional<DeviceInfo> info = device();
    if (!info || info->sm < 80) return false;
    if (weights == DType::q8_0x8 || weights == DType::q4_0x8) return true;
    return (weights == DType::bf16 || weights == DType::f16) && k % 8 == 0;
}

DType compute_type(DType weights) {
    return weights == DType::f32 || weights == DType::f16 ? weights : DType::bf16;
}

namespace {

using small::Params;

Params params_of(const LinearIn& in) {
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
        p.positions = in.batch->positions;
        p.sequence = in.batch->sequence;
        p.pages = in.batch->pages;
        p.max_pages = in.batch->max_pages;
        MR_CHECK(p.n == (p.heads + 2 * p.kv_heads) * p.head_dim && p.head_dim % 2 == 0,
                 "the weights are those of q, k and v");
    } else {
        p.out = in.out.data;
        p.out_f32 = in.out.dtype == DType::f32;
        MR_CHECK(in.out.rows() == p.rows && in.out.cols() == p.out_cols, "out is [rows, n]");
        MR_CHECK(p.out_f32 || in.out.dtype == compute, "out is f32 or of the compute type");
        MR_CHECK(in.finish != Finish::add || p.out_f32, "what is added to is f32");
    }
    return p;
}

}  // namespace

void linear_small(const Context& ctx, const LinearIn& in) {
    using namespace small;
    MR_CHECK(linear_small_takes(in.w.dtype, in.w.cols()), "linear_small() takes these weights");
    const Params all = params_of(in);
    const std::uint64_t rows = static_cast<std::uint64_t>(all.rows);
    const std::uint64_t out_bytes =
        rows * static_cast<std::uint64_t>(all.out_cols) * (all.out_f32 ? 4 : 2);
    const OpRecord work{1, in.w.bytes() + in.x.bytes() + (in.finish == Finish::add ? out_bytes : 0),
                        out_bytes, 2 * rows * static_cast<std::uint64_t>(all.n * all.k), 0};
    Stamp* stamp = account(ctx, in.kind, in.name, work);

    const auto by_passes = [&](int most, auto&& run) {
        for (int first = 0; first < all.rows; first += most) {
            Params p = all;
            p.rows = std::min(most, all.rows - first);
            p.first_row = first;
            const std::int64_t size = in.norm.weight ? 4 : 2;
            p.x = static_cast<const std::byte*>(all.x) + first * all.k * size;
            if (p.out) {
                p.out = static_cast<std::byte*>(all.out) +
                        std::int64_t{first} * all.out_cols * (all.out_f32 ? 4 : 2);
            }
            if (p.q) {
                p.q = static_cast<std::byte*>(all.q) +
                      std::int64_t{first} * all.heads * all.head_dim * (all.q_f32 ? 4 : 2);
            }
            p.stamp = stamp;
            run(p);
        }
    };
    switch (in.w.dtype) {
        case DType::bf16:
            return by_passes(tokens_a_pass<HalfWeights<bf16>, 2>(all.k, all.tiles), [&](Params p) {
                start_any<HalfWeights<bf16>, bf16, 6, 5, 4, 2>(ctx, p);
            });
        case DType::f16:
            return by_passes(
                tokens_a_pass<HalfWeights<__half>, 2>(all.k, all.tiles),
                [&](Params p) { start_any<HalfWeights<__half>, __half, 6, 5, 4, 2>(ctx, p); });
        case DType::q8_0x8:
            return by_passes(
                tokens_a_pass<QuantWeights<Q8Layout>, 2>(all.k, all.tiles),
                [&](Params p) { start_any<QuantWeights<Q8Layout>, bf16, 5, 4, 2>(ctx, p); });
        case DType::q4_0x8:
            return by_passes(
                tokens_a_pass<QuantWeights<Q4Layout>, 2>(all.k, all.tiles),
                [&](Params p) { start_any<QuantWeights<Q4Layout>, bf16, 10, 8, 5, 2>(ctx, p); });
        default:
            MR_CHECK(false, "the weights are f16, bf16, q8_0x8 or q4_0x8");
    }
}

}  // namespace mr::cuda
