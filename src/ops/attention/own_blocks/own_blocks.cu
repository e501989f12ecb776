// A row of a head is spread over head_dim / 8 lanes, 16 bytes each, so a score is eight
// multiply-adds and a few shuffles. After the first row's read, keys and values of a block come
// from L1. With blocks of 4 to 16 tokens that takes less time than reading the tensors from memory.
#include <algorithm>
#include <bit>
#include <type_traits>

#include "core/cuda/fast_math.cuh"
#include "core/cuda/vec8.cuh"
#include "ops/attention/own_blocks/own_blocks_cuda.h"

namespace mr::cuda {
namespace {

using ops::HeadRows;

constexpr int kOwnBlocksThreads = 128;
constexpr int kMostDim = 128;
constexpr int kStep = 4;  // keys, or rows, in flight at a time
constexpr float kLn2 = 0.69314718f;

struct Heads {
    bf16* data;
    std::int64_t stride;  // elements from one token to the next
};

struct OwnBlocksArgs {
    Heads q, k, v, out, dout, dq, dk, dv;
    float* lse;
    int tokens, heads, group, dim, block;  // group: query heads per kv head
    float scale;
    Stamp* stamp;
};

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// Sum over the lanes of a row; all lanes of the warp must call it.
template <int kLanes>
__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
    for (int offset = 1; offset < kLanes; offset *= 2) x += __shfl_xor_sync(~0u, x, offset);
    return x;
}
__device__ __forceinline__ float dot(const float (&a)[8], const float (&b)[8]) {
    float sum = a[0] * b[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) sum = fmaf(a[i], b[i], sum);
    return sum;
}
__device__ __forceinline__ void add(float (&to)[8], float factor, const float (&from)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = fmaf(factor, from[i], to[i]);
}

// This lane's eight elements; zeros past the end of the head.
__device__ __forceinline__ uint4 piece_at(const bf16* p, bool there) {
    return there ? *reinterpret_cast<const uint4*>(p) : make_uint4(0, 0, 0, 0);
}

// Attention over the other keys is the starting point of the running softmax: its lse is the
// largest score so far, with a sum of 1.
template <int kLanes>
__global__ void __launch_bounds__(kOwnBlocksThreads) forward(const OwnBlocksArgs a) {
    wait_for_previous();
    const StageClock clock(a.stamp);
    let_next_start();
    const int thread = static_cast<int>(threadIdx.x), element = thread % kLanes * 8;
    const bool there = element < a.dim;
    // Rows of a block and head are adjacent, so that they read the same keys.
    const int all = a.tokens * a.heads;
    const int row = static_cast<int>(blockIdx.x) * (kOwnBlocksThreads / kLanes) + thread / kLanes;
    const bool live = row < all;
    const int at = live ? row : all - 1;
    const int in_block = at % a.block, head = at / a.block % a.heads;
    const std::int64_t first = std::int64_t{at / a.block / a.heads} * a.block;
    const std::int64_t token = first + in_block;
    float* lse = a.lse + std::int64_t{head} * a.tokens + token;
    bf16* out = a.out.data + token * a.out.stride + head * a.dim + element;
    const bf16* k = a.k.data + first * a.k.stride + head / a.group * a.dim + element;
    const bf16* v = a.v.data + first * a.v.stride + head / a.group * a.dim + element;
    float q[8], sum[8];
    unpack8(piece_at(a.q.data + token * a.q.stride + head * a.dim + element, there), q);
    float top = *lse * kLog2E;
    float weight = top == -infinity() ? 0.0f : 1.0f;
    unpack8(piece_at(out, there && weight > 0), sum);
    const float scale = a.scale * kLog2E;
    for (int begin = 0; begin < a.block; begin += kStep) {
        uint4 keys[kStep], values[kStep];
#pragma unroll
        for (int j = 0; j < kStep; ++j) {
            const int key = min(begin + j, a.block - 1);
            keys[j] = piece_at(k + key * a.k.stride, there);
            values[j] = piece_at(v + key * a.v.stride, there);
        }
        float scores[kStep], most = top;
#pragma unroll
        for (int j = 0; j < kStep; ++j) {
            float key[8];
            unpack8(keys[j], key);
            const float score = scale * row_sum<kLanes>(dot(q, key));
            scores[j] = begin + j < a.block ? score : -infinity();
            most = fmaxf(most, scores[j]);
        }
        const float base = most == -infinity() ? 0.0f : most;
        const float less = fast_exp2(top - base);
        weight *= less;
#pragma unroll
        for (float& x : sum) x *= less;
#pragma unroll
        for (int j = 0; j < kStep; ++j) {
            const float p = fast_exp2(scores[j] - base);
            float value[8];
            unpack8(values[j], value);
            weight += p;
            add(sum, p, value);
        }
        top = most;
    }
    __syncwarp();  // every lane has read its row's lse
    if (!live) return;
    const float inverse = weight > 0 ? 1 / weight : 0.0f;
#pragma unroll
    for (float& x : sum) x *= inverse;
    if (there) store_wide<8>(out, sum);
    if (element == 0) *lse = weight > 0 ? (top + log2f(weight)) * kLn2 : -infinity();
}

// What the key half of the backward needs of a row: its offset from the block's first row and head,
// in elements, and its numbers.
struct alignas(16) RowFacts {
    float lse, delta;  // lse / log(2), +infinity if the row has no weight; sum(dout * out)
    int q, dout;
};

// A block of tokens and a kv head form a unit with `team` threads. These first walk over its rows,
// of all query heads of that kv head, for dq, then over its keys for dk and dv. Both recompute the
// scores: eight multiply-adds cost less than storing them all.
template <int kLanes>
__global__ void __launch_bounds__(kOwnBlocksThreads)
    backward(const OwnBlocksArgs a, int team, int units) {
    extern __shared__ RowFacts facts[];
    wait_for_previous();
    const StageClock clock(a.stamp);
    let_next_start();
    const int rows = a.group * a.block, kv_heads = a.heads / a.group;
    const int thread = static_cast<int>(threadIdx.x) % team;
    const int in_grid = static_cast<int>(threadIdx.x) / team;
    const int wanted = static_cast<int>(blockIdx.x) * (kOwnBlocksThreads / team) + in_grid;
    const bool live = wanted < units;
    const int unit = live ? wanted : units - 1;
    RowFacts* mine = facts + in_grid * rows;
    const int kv_head = unit % kv_heads, first_head = kv_head * a.group;
    const std::int64_t first = std::int64_t{unit / kv_heads} * a.block;
    const int element = thread % kLanes * 8, slot = thread / kLanes, slots = team / kLanes;
    const bool there = element < a.dim;
    const auto at = [&](const Heads& x, int head) {
        return x.data + first * x.stride + head * a.dim + element;
    };
    const float scale = a.scale * kLog2E;

    const bf16 *k = at(a.k, kv_head), *v = at(a.v, kv_head);
    for (int begin = 0; begin < rows; begin += slots) {
        const int row = min(begin + slot, rows - 1), head = row / a.block, i = row % a.block;
        const auto row_at = [&](const Heads& x) {
            return at(x, first_head) + i * x.stride + head * a.dim;
        };
        bf16* to = row_at(a.dq);
        float q[8], d[8], before[8], sum[8] = {};
        unpack8(piece_at(row_at(a.q), there), q);
        unpack8(piece_at(row_at(a.dout), there), d);
        unpack8(piece_at(row_at(a.out), there), sum);
        unpack8(piece_at(to, there), before);
        float lse = a.lse[std::int64_t{first_head + head} * a.tokens + first + i] * kLog2E;
        lse = lse == -infinity() ? infinity() : lse;
        const float delta = row_sum<kLanes>(dot(d, sum));
#pragma unroll
        for (float& x : sum) x = 0;
        for (int from = 0; from < a.block; from += kStep) {
            uint4 keys[kStep], values[kStep];
#pragma unroll
            for (int j = 0; j < kStep; ++j) {
                const int key = min(from + j, a.block - 1);
                keys[j] = piece_at(k + key * a.k.stride, there);
                values[j] = piece_at(v + key * a.v.stride, there);
            }
#pragma unroll
            for (int j = 0; j < kStep; ++j) {
                float key[8], value[8];
                unpack8(keys[j], key);
                unpack8(values[j], value);
                const float score = row_sum<kLanes>(dot(q, key));
                const float slope = row_sum<kLanes>(dot(d, value)) - delta;
                const float p = fast_exp2(fmaf(score, scale, -lse));
                add(sum, from + j < a.block ? p * slope : 0.0f, key);
            }
        }
        if (begin + slot >= rows) continue;
        if (element == 0) {  // an unused unit writes no gradients, but reads these
            mine[row] = {lse, delta, static_cast<int>(i * a.q.stride) + head * a.dim,
                         static_cast<int>(i * a.dout.stride) + head * a.dim};
        }
        add(before, a.scale, sum);
        if (live && there) store_wide<8>(to, before);
    }
    __syncthreads();

    // If a warp has room for more keys than there are, its parts share the rows.
    int keys = 1;
    while (keys < a.block) keys *= 2;
    const int parts = max(1, 32 / (keys * kLanes));
    const int part = parts > 1 ? slot / keys : 0, step = parts > 1 ? keys : slots;
    const bf16 *q = at(a.q, first_head), *d = at(a.dout, first_head);
    for (int begin = 0; begin < a.block; begin += step) {
        const int key = begin + (parts > 1 ? slot % keys : slot);
        const int there_key = min(key, a.block - 1);
        float mine_k[8], mine_v[8], dk[8] = {}, dv[8] = {};
        unpack8(piece_at(k + there_key * a.k.stride, there), mine_k);
        unpack8(piece_at(v + there_key * a.v.stride, there), mine_v);
        for (int from = 0; from < rows; from += kStep * parts) {
            RowFacts fact[kStep];
            uint4 qs[kStep], ds[kStep];
#pragma unroll
            for (int j = 0; j < kStep; ++j) {
                const int row = from + j * parts + part;
                fact[j] = mine[min(row, rows - 1)];
                if (row >= rows) fact[j].lse = infinity();
                qs[j] = piece_at(q + fact[j].q, there);
                ds[j] = piece_at(d + fact[j].dout, there);
            }
#pragma unroll
            for (int j = 0; j < kStep; ++j) {
                float query[8], dout[8];
                unpack8(qs[j], query);
                unpack8(ds[j], dout);
                const float score = row_sum<kLanes>(dot(query, mine_k));
                const float slope = row_sum<kLanes>(dot(dout, mine_v)) - fact[j].delta;
                const float p = fast_exp2(fmaf(score, scale, -fact[j].lse));
                add(dk, p * slope, query);
                add(dv, p, dout);
            }
        }
        for (int offset = keys * kLanes; offset < 32; offset *= 2) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                dk[i] += __shfl_xor_sync(~0u, dk[i], offset);
                dv[i] += __shfl_xor_sync(~0u, dv[i], offset);
            }
        }
        if (!live || !there || part > 0 || key >= a.block) continue;
#pragma unroll
        for (float& x : dk) x *= a.scale;
        store_wide<8>(at(a.dk, kv_head) + key * a.dk.stride, dk);
        store_wide<8>(at(a.dv, kv_head) + key * a.dv.stride, dv);
    }
}

Heads heads_of(const HeadRows& x) { return {static_cast<bf16*>(x.tensor.data), x.token_stride}; }

// Lanes per row: a power of two, so that the lanes of a row are adjacent in a warp.
int lanes_of(std::int64_t head_dim) {
    return static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(head_dim) / 8));
}
// As many threads as lanes of keys: whole warps, at most a thread block.
int team_of(std::int64_t head_dim, int block) {
    const int wanted = static_cast<int>(std::bit_ceil(static_cast<unsigned>(block)));
    return std::clamp(wanted * lanes_of(head_dim), 32, kOwnBlocksThreads);
}
std::size_t shared_bytes(std::int64_t group, std::int64_t head_dim, int block) {
    const auto units = static_cast<std::size_t>(kOwnBlocksThreads / team_of(head_dim, block));
    return units * static_cast<std::size_t>(group * block) * sizeof(RowFacts);
}

void check_rows(const HeadRows& x, const Shape& shape) {
    MR_CHECK(x.tensor && x.tensor.dtype == DType::bf16 && x.tensor.shape == shape,
             "heads are bf16 [tokens, heads, head_dim], those of keys as many as there are keys");
    MR_CHECK(in_eights(x.tensor.data, x.token_stride) && x.head_dim() % 8 == 0,
             "heads lie in pieces of 8 elements, at multiples of 16 bytes");
    MR_CHECK(x.token_stride >= x.heads() * x.head_dim() && x.token_stride < (1 << 24),
             "a token's stride is no less than heads * head_dim");
}

OwnBlocksArgs checked(const Context& ctx, const HeadRows& out, Tensor lse, const HeadRows& q,
                      const HeadRows& k, const HeadRows& v, int block, float scale) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(q.tensor.shape.rank == 3 && k.tensor.shape.rank == 3, "queries and keys are heads");
    MR_CHECK(takes_own_blocks(q.heads(), k.heads(), q.head_dim(), block),
             "blocks and heads are of a size that the kernel takes");
    MR_CHECK(q.tokens() % block == 0, "tokens are whole blocks");
    MR_CHECK(q.tokens() * q.heads() < (std::int64_t{1} << 31) - kOwnBlocksThreads,
             "rows are counted in 31 bits");
    const Shape keys{q.tokens(), k.heads(), q.head_dim()};
    check_rows(q, q.tensor.shape);
    check_rows(out, q.tensor.shape);
    check_rows(k, keys);
    check_rows(v, keys);
    MR_CHECK(lse && lse.dtype == DType::f32 && lse.shape == (Shape{q.heads(), q.tokens()}),
             "the log-sum-exps are f32 [heads, tokens]");
    OwnBlocksArgs a{};
    a.q = heads_of(q), a.k = heads_of(k), a.v = heads_of(v), a.out = heads_of(out);
    a.lse = lse.f32();
    a.tokens = static_cast<int>(q.tokens());
    a.heads = static_cast<int>(q.heads());
    a.group = static_cast<int>(q.heads() / k.heads());
    a.dim = static_cast<int>(q.head_dim());
    a.block = block;
    a.scale = scale;
    return a;
}

// FLOPs of one product of all rows with the keys of their block.
std::uint64_t product_flops(const OwnBlocksArgs& a) {
    return 2 * static_cast<std::uint64_t>(a.tokens) * static_cast<std::uint64_t>(a.block) *
           static_cast<std::uint64_t>(a.heads) * static_cast<std::uint64_t>(a.dim);
}

// Calls f with the number of lanes as a constant.
template <typename F>
void with_lanes(std::int64_t head_dim, F&& f) {
    switch (lanes_of(head_dim)) {
        case 1:
            return f(std::integral_constant<int, 1>());
        case 2:
            return f(std::integral_constant<int, 2>());
        case 4:
            return f(std::integral_constant<int, 4>());
        case 8:
            return f(std::integral_constant<int, 8>());
        default:
            return f(std::integral_constant<int, 16>());
    }
}

}  // namespace

bool takes_own_blocks(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, int block) {
    return block > 0 && block <= kMostOwnBlock && head_dim > 0 && head_dim % 8 == 0 &&
           head_dim <= kMostDim && kv_heads > 0 && heads % kv_heads == 0 &&
           shared_bytes(heads / kv_heads, head_dim, block) <= this_gpu().shared_per_block;
}

void own_blocks_forward(const Context& ctx, const HeadRows& out, Tensor lse, const HeadRows& q,
                        const HeadRows& k, const HeadRows& v, int block, float scale) {
    OwnBlocksArgs a = checked(ctx, out, lse, q, k, v, block, scale);
    if (a.tokens == 0) return;
    const std::uint64_t written = out.tensor.bytes() + lse.bytes();
    a.stamp = account(ctx, OpKind::attention, "attention in blocks",
                      {1, q.tensor.bytes() + k.tensor.bytes() + v.tensor.bytes() + written, written,
                       2 * product_flops(a), 0});
    with_lanes(q.head_dim(), [&](auto lanes) {
        const int rows = kOwnBlocksThreads / lanes;
        const int grid = (a.tokens * a.heads + rows - 1) / rows;
        launch(ctx, dim3(static_cast<unsigned>(grid)), dim3(kOwnBlocksThreads), 0, forward<lanes>,
               a);
    });
}

void own_blocks_backward(const Context& ctx, const ops::FlashGradients& gradients,
                         const HeadRows& dout, const HeadRows& q, const HeadRows& k,
                         const HeadRows& v, const HeadRows& out, Tensor lse, int block,
                         float scale) {
    OwnBlocksArgs a = checked(ctx, out, lse, q, k, v, block, scale);
    check_rows(dout, q.tensor.shape);
    check_rows(gradients.dq, q.tensor.shape);
    check_rows(gradients.dk, k.tensor.shape);
    check_rows(gradients.dv, k.tensor.shape);
    if (a.tokens == 0) return;
    a.dout = heads_of(dout), a.dq = heads_of(gradients.dq);
    a.dk = heads_of(gradients.dk), a.dv = heads_of(gradients.dv);
    const std::uint64_t rows = q.tensor.bytes(), keys = k.tensor.bytes();
    a.stamp =
        account(ctx, OpKind::attention, "attention in blocks backward",
                {1, 4 * rows + 2 * keys + lse.bytes(), rows + 2 * keys, 5 * product_flops(a), 0});
    const int team = team_of(q.head_dim(), block);
    const int units = a.tokens / block * static_cast<int>(k.heads());
    const int in_grid = kOwnBlocksThreads / team;
    const std::size_t shared = shared_bytes(a.group, q.head_dim(), block);
    with_lanes(q.head_dim(), [&](auto lanes) {
        allow_shared(backward<lanes>, shared);
        launch(ctx, dim3(static_cast<unsigned>((units + in_grid - 1) / in_grid)),
               dim3(kOwnBlocksThreads), shared, backward<lanes>, a, team, units);
    });
}

}  // namespace mr::cuda
