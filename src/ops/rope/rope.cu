#include <algorithm>

#include "core/cuda/vec4.cuh"
#include "ops/norm/norm_row.cuh"
#include "ops/rope/rope_cuda.h"
#include "ops/rope/rotate.cuh"

namespace mr::cuda {
namespace {

constexpr int kRopeThreads = 256;
constexpr int kHeadChunks = 2;  // of four elements each per lane: head_dim up to 256

__global__ void __launch_bounds__(kRopeThreads)
    fill_table(float2* table, const double* inv_freq, double magnitude, std::int64_t positions,
               int pairs, Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    const auto step = static_cast<std::int64_t>(gridDim.x) * kRopeThreads;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kRopeThreads + threadIdx.x;
         i < positions * pairs; i += step) {
        double sine, cosine;
        sincos(static_cast<double>(i / pairs) * inv_freq[i % pairs], &sine, &cosine);
        table[i] = make_float2(static_cast<float>(cosine * magnitude),
                               static_cast<float>(sine * magnitude));
    }
}

struct RowArgs {
    float2 *rows, *sinks;  // [tokens, pairs]; sinks: may be null
    const double* inv_freq;
    double magnitude;
    const std::int32_t *positions, *sequence;
    const int2* streams;  // null: no sequence streams
    int tokens, pairs, window;
    Stamp* stamp;
};

__global__ void __launch_bounds__(kRopeThreads) fill_rows(const RowArgs a) {
    wait_for_previous();
    const StageClock clock(a.stamp);
    let_next_start();
    const int i = static_cast<int>(blockIdx.x) * kRopeThreads + static_cast<int>(threadIdx.x);
    if (i >= a.tokens * a.pairs) return;
    const int token = i / a.pairs, pair = i % a.pairs;
    const int position = a.positions[token];
    const double frequency = a.inv_freq[pair];
    const auto rotation = [&](int at) {
        double sine, cosine;
        sincos(static_cast<double>(at) * frequency, &sine, &cosine);
        return make_float2(static_cast<float>(cosine * a.magnitude),
                           static_cast<float>(sine * a.magnitude));
    };
    const float2 own = rotation(position);
    a.rows[i] = own;
    if (!a.sinks) return;
    const int2 stream = a.streams ? a.streams[a.sequence[token]] : int2{0, 0};
    int at = position;
    if (stream.y > 0) {
        const int window = a.window > 0 ? min(a.window, stream.y) : stream.y;
        at = min(position, stream.x + window - 1);
    }
    a.sinks[i] = at == position ? own : rotation(at);
}

struct RopeArgs {
    void* q_out;
    DType q_type;
    const void* qkv;
    const float *bias, *q_norm, *k_norm;
    float eps;
    const float2* rope;  // [positions, pairs], or [tokens, pairs]
    bool rope_by_row;
    void* q_sinks;             // or null
    const float2* rope_sinks;  // [tokens, pairs]
    int heads, pairs;
    KvPlace kv;
    Stamp* stamp;
};

// Four columns, or those before `cols` if they cannot be read together.
template <bool kFours, typename T>
__device__ __forceinline__ void load_some(const T* p, int left, float (&v)[4]) {
    if constexpr (kFours) {
        load4(p, v);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = i < left ? to_f32(p[i]) : 0.0f;
    }
}
template <bool kFours, typename T>
__device__ __forceinline__ void store_some(T* p, int left, const float (&v)[4]) {
    if constexpr (kFours) {
        store4(p, v);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i < left) p[i] = from_f32<T>(v[i]);
        }
    }
}
template <bool kFours>
__device__ __forceinline__ void store_as(DType type, void* to, std::int64_t at, int left,
                                         const float (&v)[4]) {
    if (type == DType::f32) {
        store_some<kFours>(static_cast<float*>(to) + at, left, v);
    } else if (type == DType::f16) {
        store_some<kFours>(static_cast<__half*>(to) + at, left, v);
    } else {
        store_some<kFours>(static_cast<bf16*>(to) + at, left, v);
    }
}

// A warp has one head of one token: q heads first, then those of k, then of v, in qkv's order.
template <bool kFours, typename In>
__global__ void __launch_bounds__(kRopeThreads) finish_qkv(const RopeArgs a) {
    wait_for_previous();
    const StageClock clock(a.stamp);
    let_next_start();
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int head = static_cast<int>(blockIdx.y * (kRopeThreads / 32) + threadIdx.x / 32);
    const int all_heads = a.heads + 2 * a.kv.kv_heads;
    if (head >= all_heads) return;
    const int token = static_cast<int>(blockIdx.x);
    const int dim = a.kv.head_dim;
    const bool is_q = head < a.heads;
    const bool is_v = head >= a.heads + a.kv.kv_heads;
    const In* from =
        static_cast<const In*>(a.qkv) + (static_cast<std::int64_t>(token) * all_heads + head) * dim;

    // The target address and the rotation depend on positions and pages, two dependent loads: they
    // are in flight together with the head itself.
    std::int64_t at = (static_cast<std::int64_t>(token) * a.heads + head) * dim;
    if (!is_q) at = a.kv.at(token, is_v ? head - a.heads - a.kv.kv_heads : head - a.heads);
    const bool turns = a.rope && !is_v;
    float2 turn[kHeadChunks][2] = {};
    const auto load_turn = [&](const float2* rotations) {
#pragma unroll
        for (int k = 0; k < kHeadChunks; ++k) {
            const int pair = (lane + 32 * k) * 2;
            if (pair < a.pairs) turn[k][0] = rotations[pair];
            if (pair + 1 < a.pairs) turn[k][1] = rotations[pair + 1];
        }
    };
    if (turns) {
        const std::int64_t row = a.rope_by_row ? token : a.kv.positions[token];
        load_turn(a.rope + row * a.pairs);
    }
    float v[kHeadChunks][4] = {};
#pragma unroll
    for (int k = 0; k < kHeadChunks; ++k) {
        const int col = (lane + 32 * k) * 4;
        if (col >= dim) continue;
        load_some<kFours>(from + col, dim - col, v[k]);
        if (!a.bias) continue;
        float b[4];
        load_some<kFours>(a.bias + static_cast<std::int64_t>(head) * dim + col, dim - col, b);
#pragma unroll
        for (int i = 0; i < 4; ++i) v[k][i] = __fadd_rn(v[k][i], b[i]);
    }
    // The zeros past the end add nothing to the squares: head_dim need not be a multiple of 4.
    const float* weight = is_q ? a.q_norm : is_v ? nullptr : a.k_norm;
    if (weight) {
        const RowStats stats =
            row_stats<32, kHeadChunks>(NormKind::rms, v, dim, a.eps, lane, nullptr);
#pragma unroll
        for (int k = 0; k < kHeadChunks; ++k) {
            const int col = (lane + 32 * k) * 4;
            if (col >= dim) continue;
            float w[4];
            load_some<kFours>(weight + col, dim - col, w);
#pragma unroll
            for (int i = 0; i < 4; ++i) v[k][i] = normed(v[k][i], stats, w[i], 0.0f);
        }
    }
    const auto rotate = [&](float(&x)[kHeadChunks][4]) {
#pragma unroll
        for (int k = 0; k < kHeadChunks; ++k) {
            const int pair = (lane + 32 * k) * 2;
            if (pair < a.pairs) rotate_pair(x[k][0], x[k][1], turn[k][0]);
            if (pair + 1 < a.pairs) rotate_pair(x[k][2], x[k][3], turn[k][1]);
        }
    };
    float own[kHeadChunks][4];
#pragma unroll
    for (int k = 0; k < kHeadChunks; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) own[k][i] = v[k][i];
    }
    if (turns) rotate(v);
    if (a.q_sinks && is_q) {
        if (a.rope) {
            load_turn(a.rope_sinks + static_cast<std::int64_t>(token) * a.pairs);
            rotate(own);
        }
#pragma unroll
        for (int k = 0; k < kHeadChunks; ++k) {
            const int col = (lane + 32 * k) * 4;
            if (col < dim) store_as<kFours>(a.q_type, a.q_sinks, at + col, dim - col, own[k]);
        }
    }
    if (at < 0) return;
    void* const to = is_q ? a.q_out : is_v ? a.kv.values : a.kv.keys;
#pragma unroll
    for (int k = 0; k < kHeadChunks; ++k) {
        const int col = (lane + 32 * k) * 4;
        if (col < dim) store_as<kFours>(is_q ? a.q_type : a.kv.type, to, at + col, dim - col, v[k]);
    }
}

}  // namespace

void rope_table(const Context& ctx, Tensor table, const double* inv_freq, double magnitude) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(table.dtype == DType::f32 && table.shape.rank == 3 && table.dim(2) == 2 && inv_freq,
             "the table is f32 [positions, rotary/2, 2]");
    const std::int64_t count = table.dim(0) * table.dim(1);
    if (count == 0) return;
    // Angle, cosine, sine and the two magnitudes: 5 operations per pair.
    Stamp* stamp = account(ctx, OpKind::rope, "rope table",
                           {1, static_cast<std::uint64_t>(table.dim(1)) * 8, table.bytes(),
                            5 * static_cast<std::uint64_t>(count), 0});
    const std::int64_t blocks =
        std::min<std::int64_t>((count + kRopeThreads - 1) / kRopeThreads, 65535);
    launch(ctx, dim3(static_cast<unsigned>(blocks)), dim3(kRopeThreads), 0, fill_table,
           static_cast<float2*>(table.data), inv_freq, magnitude, table.dim(0),
           static_cast<int>(table.dim(1)), stamp);
}

void rope_rows(const Context& ctx, const RopeRows& rope, const ops::DeviceBatch& batch) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    const Tensor& rows = rope.rows;
    MR_CHECK(rows.dtype == DType::f32 && rows.shape.rank == 3 && rows.dim(2) == 2 &&
                 rows.dim(0) >= batch.tokens && rope.inv_freq,
             "the rows are f32 [tokens, rotary/2, 2]");
    MR_CHECK(!rope.sinks || (rope.sinks.shape == rows.shape && rope.sinks.dtype == rows.dtype),
             "those for sinks are as many");
    MR_CHECK(batch.positions && (!batch.streams || batch.sequence), "the batch is on the device");
    const std::int64_t count = batch.tokens * rows.dim(1);
    if (count == 0) return;
    const auto tables = static_cast<std::uint64_t>(rope.sinks ? 2 : 1);
    Stamp* stamp = account(ctx, OpKind::rope, "rope rows",
                           {1, static_cast<std::uint64_t>(rows.dim(1)) * 8,
                            tables * static_cast<std::uint64_t>(count) * 8,
                            tables * 5 * static_cast<std::uint64_t>(count), 0});
    const RowArgs args{static_cast<float2*>(rows.data),
                       static_cast<float2*>(rope.sinks.data),
                       rope.inv_freq,
                       rope.magnitude,
                       batch.positions,
                       batch.sequence,
                       reinterpret_cast<const int2*>(batch.streams),
                       batch.tokens,
                       static_cast<int>(rows.dim(1)),
                       rope.window,
                       stamp};
    launch(ctx, dim3(static_cast<unsigned>((count + kRopeThreads - 1) / kRopeThreads)),
           dim3(kRopeThreads), 0, fill_rows, args);
}

void qkv_finish(const Context& ctx, const QkvFinish& f, const ops::DeviceBatch& batch) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(f.q_out && f.q_out.shape.rank == 3 && f.q_out.dim(0) == batch.tokens,
             "q_out is [tokens, heads, head_dim]");
    MR_CHECK(f.kv.keys && f.kv.values && f.kv.keys.shape.rank == 4 &&
                 f.kv.keys.shape == f.kv.values.shape && f.kv.keys.dtype == f.kv.values.dtype,
             "keys and values are [pages, kv_heads, page_tokens, head_dim]");
    const std::int64_t heads = f.q_out.dim(1), dim = f.q_out.dim(2);
    const std::int64_t kv_heads = f.kv.kv_heads(), all = heads + 2 * kv_heads;
    MR_CHECK(f.kv.head_dim() == dim && dim >= 1 && dim <= 32 * 4 * kHeadChunks,
             "head_dim is one, at most 256");
    MR_CHECK(f.qkv && f.qkv.cols() == all * dim && f.qkv.rows() == batch.tokens,
             "qkv is [tokens, (heads + 2 * kv_heads) * head_dim]");
    MR_CHECK(is_float(f.q_out.dtype) && is_float(f.kv.keys.dtype) && is_float(f.qkv.dtype),
             "q, qkv and the cache are f32, f16 or bf16");
    MR_CHECK(!f.bias || (f.bias.dtype == DType::f32 && f.bias.shape.count() == all * dim),
             "the bias is an f32 row of qkv");
    for (const Tensor& w : {f.q_norm, f.k_norm}) {
        MR_CHECK(!w || (w.dtype == DType::f32 && w.shape.count() == dim),
                 "a head's norm is f32 [head_dim]");
    }
    MR_CHECK(!f.rope || (f.rope.dtype == DType::f32 && f.rope.shape.rank == 3 &&
                         f.rope.dim(2) == 2 && 2 * f.rope.dim(1) <= dim),
             "the rope table is f32 [positions, rotary/2, 2], rotary at most head_dim");
    MR_CHECK(!f.q_sinks || (f.q_sinks.shape == f.q_out.shape && f.q_sinks.dtype == f.q_out.dtype &&
                            (!f.rope || (f.rope_sinks && f.rope_sinks.dim(1) == f.rope.dim(1)))),
             "what asks the sinks is as q_out, with rotations of its own");
    MR_CHECK(batch.positions && batch.sequence && batch.pages, "the batch lies on the device");
    MR_CHECK(batch.max_pages > 0 && (batch.max_pages & (batch.max_pages - 1)) == 0,
             "a page table has a power of two of entries");
    if (batch.tokens == 0) return;

    const auto tokens = static_cast<std::uint64_t>(batch.tokens);
    const std::uint64_t stored = 2 * tokens * static_cast<std::uint64_t>(kv_heads * dim);
    const int pairs = f.rope ? static_cast<int>(f.rope.dim(1)) : 0;
    const auto rotated = tokens * static_cast<std::uint64_t>((heads + kv_heads) * pairs);
    const std::uint64_t read = f.qkv.bytes() + f.bias.bytes() + f.q_norm.bytes() +
                               f.k_norm.bytes() + tokens * static_cast<std::uint64_t>(pairs) * 8;
    const std::uint64_t normed_elements =
        tokens *
        static_cast<std::uint64_t>(((f.q_norm ? heads : 0) + (f.k_norm ? kv_heads : 0)) * dim);
    Stamp* stamp = account(ctx, OpKind::rope, "qkv finish",
                           {1, read, f.q_out.bytes() + dtype_bytes(f.kv.keys.dtype, stored),
                            6 * rotated + 4 * normed_elements +
                                (f.bias ? tokens * static_cast<std::uint64_t>(all * dim) : 0),
                            0});
    const auto floats = [](Tensor t) { return static_cast<const float*>(t.data); };
    const RopeArgs args{f.q_out.data,
                        f.q_out.dtype,
                        f.qkv.data,
                        floats(f.bias),
                        floats(f.q_norm),
                        floats(f.k_norm),
                        f.norm_eps,
                        static_cast<const float2*>(f.rope.data),
                        f.rope_by_row,
                        f.q_sinks.data,
                        static_cast<const float2*>(f.rope_sinks.data),
                        static_cast<int>(heads),
                        pairs,
                        kv_place(f.kv, batch),
                        stamp};
    bool fours = true;
    for (const Tensor& t :
         {f.q_out, f.q_sinks, f.kv.keys, f.kv.values, f.qkv, f.bias, f.q_norm, f.k_norm}) {
        fours = fours && in_fours(t.data, dim);
    }
    constexpr int kWarps = kRopeThreads / 32;
    const dim3 grid(static_cast<unsigned>(tokens),
                    static_cast<unsigned>((all + kWarps - 1) / kWarps));
    with_float_type(f.qkv.dtype, [&](auto in) {
        using In = decltype(in);
        launch(ctx, grid, dim3(kRopeThreads), 0,
               fours ? finish_qkv<true, In> : finish_qkv<false, In>, args);
    });
}

}  // namespace mr::cuda
