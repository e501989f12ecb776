#include "core/cuda/vec4.cuh"
#include "ops/norm/norm_cuda.h"
#include "ops/norm/norm_many.cuh"
#include "ops/norm/norm_row.cuh"

namespace mr::cuda {
namespace {

using Args = NormArgs;

constexpr int kWarpsABlock = 4;  // with one warp per row
// Up to here one wave of blocks has one row each; more rows are faster without barriers.
constexpr int kManyRows = 1024;

// Writes norm(s) of four columns to `to`.
template <typename Out>
__device__ __forceinline__ void store_normed(Out* to, const float (&s)[4], const RowStats& stats,
                                             const float (&w)[4], const float (&b)[4]) {
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = normed(s[i], stats, w[i], b[i]);
    store4(to, y);
}

__device__ __forceinline__ void load4_or_zero(const float* p, int at, float (&v)[4]) {
    if (p) {
        load4_weight(p + at, v);
    } else {
        v[0] = v[1] = v[2] = v[3] = 0.0f;
    }
}

// A row stays in the registers of kThreads threads, kChunks times four elements each, so that
// memory is read once: those of a block for few rows, of a warp if many rows keep the memory busy.
// R: the type of residual and sum; void: no residual.
template <int kThreads, int kChunks, typename X, typename R, typename Out>
__global__ void __launch_bounds__(kThreads == 32 ? 32 * kWarpsABlock : kThreads)
    norm_rows(const Args a) {
    constexpr bool kWarp = kThreads == 32;
    __shared__ float shared[kWarp ? 1 : kRowShared<kThreads>];
    const int thread = static_cast<int>(kWarp ? threadIdx.x % 32 : threadIdx.x);
    const int row =
        static_cast<int>(kWarp ? blockIdx.x * kWarpsABlock + threadIdx.x / 32 : blockIdx.x);
    const int cols = a.cols;
    const auto column = [&](int k) { return (thread + kThreads * k) * kRowChunk; };

    // A single row is bound by latency: its weights are loaded while the previous kernel runs.
    float w[kWarp ? 1 : kChunks][4], b[kWarp ? 1 : kChunks][4];
    if constexpr (!kWarp) {
#pragma unroll
        for (int k = 0; k < kChunks; ++k) {
            if (column(k) >= cols) continue;
            load4_weight(a.weight + column(k), w[k]);
            load4_or_zero(a.bias, column(k), b[k]);
        }
    }
    wait_for_previous();
    const StageClock clock(a.stamp);
    let_next_start();
    if (row >= a.rows) return;
    const auto first = static_cast<std::size_t>(row) * static_cast<std::size_t>(cols);

    float s[kChunks][4];
    {
        const X* x = static_cast<const X*>(a.x) + first;
        Raw4<X> raw[kChunks];
#pragma unroll
        for (int k = 0; k < kChunks; ++k) {
            raw[k] = column(k) < cols ? load_raw4(x + column(k)) : zero_raw4<X>();
        }
        if constexpr (std::is_void_v<R>) {
#pragma unroll
            for (int k = 0; k < kChunks; ++k) unpack4(raw[k], s[k]);
        } else {
            const R* residual = static_cast<const R*>(a.residual) + first;
            Raw4<R> more[kChunks];
#pragma unroll
            for (int k = 0; k < kChunks; ++k) {
                more[k] = column(k) < cols ? load_raw4(residual + column(k)) : zero_raw4<R>();
            }
#pragma unroll
            for (int k = 0; k < kChunks; ++k) {
                float r[4];
                unpack4(raw[k], s[k]);
                unpack4(more[k], r);
#pragma unroll
                for (int i = 0; i < 4; ++i) s[k][i] = __fadd_rn(s[k][i], r[i]);
            }
            if (a.sum) {
                R* sum = static_cast<R*>(a.sum) + first;
#pragma unroll
                for (int k = 0; k < kChunks; ++k) {
                    const Raw4<R> rounded = pack4(s[k], R{});
                    unpack4(rounded, s[k]);
                    if (column(k) < cols) *reinterpret_cast<Raw4<R>*>(sum + column(k)) = rounded;
                }
            }
        }
    }
    const RowStats stats = row_stats<kThreads, kChunks>(a.kind, s, cols, a.eps, thread, shared);

    Out* out = static_cast<Out*>(a.out) + first;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
        if (column(k) >= cols) continue;
        if constexpr (kWarp) {
            float wk[4], bk[4];
            load4_weight(a.weight + column(k), wk);
            load4_or_zero(a.bias, column(k), bk);
            store_normed(out + column(k), s[k], stats, wk, bk);
        } else {
            store_normed(out + column(k), s[k], stats, w[k], b[k]);
        }
    }
    if (!a.out2) return;
    Out* out2 = static_cast<Out*>(a.out2) + first;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
        if (column(k) >= cols) continue;
        float wk[4], bk[4];
        load4_weight(a.weight2 + column(k), wk);
        load4_or_zero(a.bias2, column(k), bk);
        store_normed(out2 + column(k), s[k], stats, wk, bk);
    }
}

// Rows of any length and alignment, read again from the caches instead of kept.
template <typename X, typename R, typename Out>
__global__ void __launch_bounds__(256) norm_any_row(const Args a) {
    __shared__ float shared[kRowShared<256>];
    wait_for_previous();
    const StageClock clock(a.stamp);
    let_next_start();
    const auto first = static_cast<std::size_t>(blockIdx.x) * static_cast<std::size_t>(a.cols);
    const X* x = static_cast<const X*>(a.x) + first;
    const auto value = [&](int i) {
        float s = to_f32(x[i]);
        if constexpr (!std::is_void_v<R>) {
            s = __fadd_rn(s, to_f32(static_cast<const R*>(a.residual)[first + i]));
            if (a.sum) s = to_f32(from_f32<R>(s));
        }
        return s;
    };
    const RowStats stats =
        row_stats_of<256>(a.kind, value, a.cols, a.eps, static_cast<int>(threadIdx.x), shared);
    // The sums are complete, so only the thread that replaces an element still reads it.
    for (int i = static_cast<int>(threadIdx.x); i < a.cols; i += 256) {
        const float s = value(i);
        if constexpr (!std::is_void_v<R>) {
            if (a.sum) static_cast<R*>(a.sum)[first + i] = from_f32<R>(s);
        }
        const float b = a.bias ? a.bias[i] : 0.0f;
        static_cast<Out*>(a.out)[first + i] = from_f32<Out>(normed(s, stats, a.weight[i], b));
        if (!a.out2) continue;
        const float b2 = a.bias2 ? a.bias2[i] : 0.0f;
        static_cast<Out*>(a.out2)[first + i] = from_f32<Out>(normed(s, stats, a.weight2[i], b2));
    }
}

template <typename X, typename R, typename Out>
void start(const Context& ctx, const Args& a, bool fours) {
    const auto rows = static_cast<unsigned>(a.rows);
    const dim3 warps((rows + kWarpsABlock - 1) / kWarpsABlock);
    const bool warp = a.rows > kManyRows || a.cols <= 512;
    if (!fours || a.cols > 8192) {
        launch(ctx, dim3(rows), dim3(256), 0, norm_any_row<X, R, Out>, a);
    } else if (warp && a.cols <= 1024) {
        launch(ctx, warps, dim3(32 * kWarpsABlock), 0, norm_rows<32, 8, X, R, Out>, a);
    } else if (warp && a.cols <= 2560) {
        launch(ctx, warps, dim3(32 * kWarpsABlock), 0, norm_rows<32, 20, X, R, Out>, a);
    } else if (a.cols <= 4096) {
        launch(ctx, dim3(rows), dim3(256), 0, norm_rows<256, 4, X, R, Out>, a);
    } else {
        launch(ctx, dim3(rows), dim3(256), 0, norm_rows<256, 8, X, R, Out>, a);
    }
}

}  // namespace

void norm(const Context& ctx, const NormPass& p) {
    const std::int64_t rows = p.x.rows(), cols = p.x.cols();
    // f32 in general; of the rows' type if norm_takes_weights_like_rows().
    const bool like_rows = p.weight.dtype == p.x.dtype && p.x.dtype != DType::f32;
    const auto per_column = [&](Tensor t) {
        return t.dtype == (like_rows ? p.x.dtype : DType::f32) && t.shape.count() == cols;
    };
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(p.x && p.out && p.out.shape == p.x.shape && cols > 0, "a norm keeps the shape");
    MR_CHECK(is_float(p.x.dtype) && is_float(p.out.dtype), "norms work on f32, f16 and bf16");
    MR_CHECK(p.x.dtype == p.out.dtype || p.x.dtype == DType::f32 || p.out.dtype == DType::f32,
             "x and out have one type, or one of them is f32");
    MR_CHECK(p.weight && per_column(p.weight) && (!p.bias || per_column(p.bias)),
             "a norm has one weight and bias per column, of f32 or of the rows' type");
    MR_CHECK(!p.out2 || (p.out2.shape == p.x.shape && p.out2.dtype == p.out.dtype && p.weight2 &&
                         per_column(p.weight2) && (!p.bias2 || per_column(p.bias2))),
             "the second norm is like the first");
    MR_CHECK(!p.residual || (p.residual.shape == p.x.shape &&
                             (p.residual.dtype == p.x.dtype || p.residual.dtype == DType::f32)),
             "the residual is like x, or f32");
    MR_CHECK(!p.sum || (p.residual && p.sum.shape == p.x.shape && p.sum.dtype == p.residual.dtype),
             "the sum is like the residual");
    MR_CHECK(p.out.data != p.x.data || p.out.dtype == p.x.dtype, "in place the type stays");
    if (rows == 0) return;

    // Mean 1, variance 3 (squares 2), result 2 and bias 1: operations per element.
    const auto elements = static_cast<std::uint64_t>(rows * cols);
    const bool layer = p.kind == NormKind::layer;
    const std::uint64_t flops = (layer ? 7 : 4) + (p.bias ? 1 : 0) + (p.residual ? 1 : 0) +
                                (p.out2 ? 2 : 0) + (p.bias2 ? 1 : 0);
    Stamp* stamp = account(ctx, OpKind::norm, "norm",
                           {1,
                            p.x.bytes() + p.residual.bytes() + p.weight.bytes() + p.bias.bytes() +
                                p.weight2.bytes() + p.bias2.bytes(),
                            p.out.bytes() + p.out2.bytes() + p.sum.bytes(), flops * elements, 0});
    const auto weights = [](Tensor t) { return static_cast<const float*>(t.data); };
    const Args args{p.x.data,
                    p.residual.data,
                    p.sum.data,
                    p.out.data,
                    p.out2.data,
                    weights(p.weight),
                    weights(p.bias),
                    weights(p.weight2),
                    weights(p.bias2),
                    static_cast<int>(rows),
                    static_cast<int>(cols),
                    p.eps,
                    p.kind,
                    stamp,
                    like_rows};
    bool fours = true;
    for (const Tensor& t :
         {p.x, p.residual, p.sum, p.out, p.out2, p.weight, p.bias, p.weight2, p.bias2}) {
        fours = fours && in_fours(t.data, cols);
    }
    if (fours && ctx.many_rows_norm &&
        start_norm_many(ctx, args, p.x.dtype, p.residual ? p.residual.dtype : p.x.dtype,
                        p.out.dtype)) {
        return;
    }
    MR_CHECK(!like_rows, "weights of the rows' type are for norm_takes_weights_like_rows()");
    with_float_type(p.x.dtype, [&](auto x) {
        with_float_type(p.out.dtype, [&](auto out) {
            using X = decltype(x);
            using Out = decltype(out);
            constexpr bool kOneIsF32 = std::is_same_v<X, float> || std::is_same_v<Out, float>;
            if constexpr (std::is_same_v<X, Out> || kOneIsF32) {
                if (!p.residual) {
                    start<X, void, Out>(ctx, args, fours);
                } else if (p.residual.dtype == p.x.dtype) {
                    start<X, X, Out>(ctx, args, fours);
                } else {
                    start<X, float, Out>(ctx, args, fours);
                }
            }
        });
    });
}

}  // namespace mr::cuda
