// With h = (x - mean) * rstd and g = dy * weight, over the row's columns:
//   layer  dx = rstd * (g - mean(g) - h * mean(g * h))
//   rms    dx = rstd * (g - h * mean(g * h)),  mean 0
// A row is read once and stays in registers. A group of threads (a warp, or a block) takes row
// after row and keeps its share of dweight and dbias in registers too; a block writes one part of
// these sums, and add_parts() adds the parts.
#include <algorithm>

#include "core/cuda/vec4.cuh"
#include "ops/add/parts_cuda.h"
#include "ops/norm/norm_backward_cuda.h"
#include "ops/norm/norm_backward_many.cuh"
#include "ops/norm/norm_row.cuh"

namespace mr::cuda {
namespace {

// The most blocks, on any GPU: the order of the sums over rows depends on it.
constexpr int kMostBlocks = 528;
constexpr int kWarps = 4;  // per block, with one warp per row

// Sums a and b over the group, each in one order: kThreads is 32, or a block's 256.
template <int kThreads>
__device__ __forceinline__ void group_sums(float& a, float& b, float* shared) {
    a = warp_sum(a);
    b = warp_sum(b);
    if constexpr (kThreads > 32) {
        constexpr int kAll = kThreads / 32;
        const int warp = static_cast<int>(threadIdx.x / 32);
        if (threadIdx.x % 32 == 0) {
            shared[warp] = a;
            shared[kAll + warp] = b;
        }
        __syncthreads();
        a = b = 0;
#pragma unroll
        for (int w = 0; w < kAll; ++w) {
            a += shared[w];
            b += shared[kAll + w];
        }
    }
}

// cols is a multiple of 4, at most 4 kChunks kThreads. Dy: f16 or bf16. X, of x, dx and residual:
// f32, or Dy.
template <int kThreads, int kChunks, typename Dy, typename X>
__global__ void __launch_bounds__(kThreads == 32 ? 32 * kWarps : kThreads)
    rows_backward(const NormBackwardArgs a) {
    constexpr bool kWarp = kThreads == 32;
    constexpr int kGroups = kWarp ? kWarps : 1;
    constexpr int kMost = kThreads * kChunks * 4;  // columns
    // Statistics, then two sums; with several warps per block, their shares of dweight and dbias.
    __shared__ __align__(16) float shared[kWarp ? kMost : kRowShared<kThreads> + kThreads / 16];
    wait_for_previous();
    const StageClock clock(a.stamp);
    let_next_start();
    const int thread = static_cast<int>(kWarp ? threadIdx.x % 32 : threadIdx.x);
    const int group = kWarp ? static_cast<int>(threadIdx.x / 32) : 0;
    const int cols = a.cols;
    const auto column = [&](int k) { return (thread + kThreads * k) * 4; };
    const float inverse = __frcp_rn(static_cast<float>(cols));

    float dweight[kChunks][4] = {}, dbias[kChunks][4] = {};
    for (int row = static_cast<int>(blockIdx.x) * kGroups + group; row < a.rows;
         row += static_cast<int>(gridDim.x) * kGroups) {
        const std::size_t first = static_cast<std::size_t>(row) * static_cast<std::size_t>(cols);
        const Dy* dy = static_cast<const Dy*>(a.dy) + first;
        const X* x = static_cast<const X*>(a.x) + first;
        float h[kChunks][4];
        Raw4<Dy> raw[kChunks];
#pragma unroll
        for (int k = 0; k < kChunks; ++k) {
            const bool inside = column(k) < cols;
            unpack4(inside ? load_raw4(x + column(k)) : zero_raw4<X>(), h[k]);
            raw[k] = inside ? load_raw4(dy + column(k)) : zero_raw4<Dy>();
        }
        const RowStats stats = row_stats<kThreads, kChunks>(a.kind, h, cols, a.eps, thread, shared);
        float sum_g = 0, sum_gh = 0;
#pragma unroll
        for (int k = 0; k < kChunks; ++k) {
            if (column(k) >= cols) continue;
            float d[4], w[4];
            unpack4(raw[k], d);
            load4_weight(a.weight + column(k), w);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                h[k][i] = __fmul_rn(__fsub_rn(h[k][i], stats.mean), stats.rstd);
                add_to_sums(d[i], w[i], h[k][i], sum_g, sum_gh, dweight[k][i], dbias[k][i]);
            }
        }
        group_sums<kThreads>(sum_g, sum_gh, shared + (kWarp ? 0 : kRowShared<kThreads>));
        const float mean_g = a.kind == NormKind::layer ? __fmul_rn(sum_g, inverse) : 0.0f;
        const float mean_gh = __fmul_rn(sum_gh, inverse);
#pragma unroll
        for (int k = 0; k < kChunks; ++k) {
            if (column(k) >= cols) continue;
            float d[4], w[4], r[4] = {};
            if (a.residual) load4(static_cast<const X*>(a.residual) + first + column(k), r);
            unpack4(raw[k], d);
            load4_weight(a.weight + column(k), w);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                r[i] = gradient_of(d[i], w[i], h[k][i], mean_g, mean_gh, stats.rstd, r[i]);
            }
            store4(static_cast<X*>(a.dx) + first + column(k), r);
            if (a.copy) store4(a.copy + first + column(k), r);
        }
        if constexpr (!kWarp) __syncthreads();  // `shared` is read; the next row writes it
    }

    float* part =
        a.parts + static_cast<std::size_t>(blockIdx.x) * 2 * static_cast<std::size_t>(cols);
    if constexpr (!kWarp) {
#pragma unroll
        for (int k = 0; k < kChunks; ++k) {
            if (column(k) >= cols) continue;
            store4(part + column(k), dweight[k]);
            store4(part + cols + column(k), dbias[k]);
        }
    } else {
        // One warp after the other adds its share to shared memory; the last one writes it out.
        for (int which = 0; which < 2; ++which) {
            for (int w = 0; w < kWarps; ++w) {
                if (w == group) {
#pragma unroll
                    for (int k = 0; k < kChunks; ++k) {
                        if (column(k) >= cols) continue;
                        float v[4], before[4] = {};
#pragma unroll
                        for (int i = 0; i < 4; ++i) v[i] = which ? dbias[k][i] : dweight[k][i];
                        if (w > 0) load4(shared + column(k), before);
#pragma unroll
                        for (int i = 0; i < 4; ++i) v[i] += before[i];
                        store4((w == kWarps - 1 ? part + which * cols : shared) + column(k), v);
                    }
                }
                __syncthreads();
            }
        }
    }
}

// Rows of any length, alignment and type of dy, read again from the caches instead of kept. The
// block's part of the sums accumulates in memory.
template <typename Dy, typename X>
__global__ void __launch_bounds__(256) any_rows_backward(const NormBackwardArgs a) {
    __shared__ float shared[kRowShared<256> + 16];
    wait_for_previous();
    const StageClock clock(a.stamp);
    let_next_start();
    const int thread = static_cast<int>(threadIdx.x), cols = a.cols;
    const float inverse = __frcp_rn(static_cast<float>(cols));
    float* part =
        a.parts + static_cast<std::size_t>(blockIdx.x) * 2 * static_cast<std::size_t>(cols);
    for (int i = thread; i < 2 * cols; i += 256) part[i] = 0;
    __syncthreads();
    for (int row = static_cast<int>(blockIdx.x); row < a.rows; row += static_cast<int>(gridDim.x)) {
        const std::size_t first = static_cast<std::size_t>(row) * static_cast<std::size_t>(cols);
        const X* x = static_cast<const X*>(a.x) + first;
        const X* residual = a.residual ? static_cast<const X*>(a.residual) + first : nullptr;
        const Dy* dy = static_cast<const Dy*>(a.dy) + first;
        const RowStats stats = row_stats_of<256>(
            a.kind, [x](int i) { return to_f32(x[i]); }, cols, a.eps, thread, shared);
        float sum_g = 0, sum_gh = 0;
        for (int i = thread; i < cols; i += 256) {
            const float h = (to_f32(x[i]) - stats.mean) * stats.rstd, d = to_f32(dy[i]);
            const float g = d * a.weight[i];
            sum_g += g;
            sum_gh = fmaf(g, h, sum_gh);
            part[i] = fmaf(d, h, part[i]);
            part[cols + i] += d;
        }
        group_sums<256>(sum_g, sum_gh, shared + kRowShared<256>);
        const float mean_g = a.kind == NormKind::layer ? __fmul_rn(sum_g, inverse) : 0.0f;
        const float mean_gh = __fmul_rn(sum_gh, inverse);
        for (int i = thread; i < cols; i += 256) {  // columns that this thread itself has read
            const float h = (to_f32(x[i]) - stats.mean) * stats.rstd;
            const float g = to_f32(dy[i]) * a.weight[i] - mean_g - h * mean_gh;
            const float value = fmaf(stats.rstd, g, residual ? to_f32(residual[i]) : 0.0f);
            static_cast<X*>(a.dx)[first + i] = from_f32<X>(value);
            if (a.copy) a.copy[first + i] = from_f32<bf16>(value);
        }
        __syncthreads();
    }
}

}  // namespace

std::size_t norm_backward_scratch_bytes(std::int64_t max_cols) {
    static_assert(kManyBackwardBlocks * 3 <= kMostBlocks * 2);
    return static_cast<std::size_t>(kMostBlocks * 2 * max_cols) * sizeof(float);
}

bool norm_backward(const Context& ctx, const NormBackward& p) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    const std::int64_t rows = p.x.rows(), cols = p.x.cols();
    const auto like_x = [&](Tensor t) {
        return t.dtype == p.x.dtype && t.shape.count() == rows * cols && t.cols() == cols;
    };
    const auto per_column = [&](Tensor t) {
        return t.dtype == DType::f32 && t.shape.count() == cols;
    };
    MR_CHECK(p.x && p.dx && like_x(p.dx) && cols > 0, "x and dx are [rows, cols] of one type");
    MR_CHECK(p.x.dtype == DType::f32 || p.x.dtype == p.dy.dtype, "x is f32, or of dy's type");
    MR_CHECK(!p.residual || like_x(p.residual), "the residual's gradient is like dx");
    MR_CHECK(p.dy && p.dy.rows() == rows && p.dy.cols() == cols && is_float(p.dy.dtype),
             "dy is bf16, f16 or f32 [rows, cols]");
    MR_CHECK(
        !p.copy || (p.copy.dtype == DType::bf16 && p.copy.rows() == rows && p.copy.cols() == cols),
        "the copy is bf16 [rows, cols]");
    MR_CHECK(p.weight && per_column(p.weight) && (!p.dweight || per_column(p.dweight)) &&
                 (!p.dbias || per_column(p.dbias)) && (!p.dsum || per_column(p.dsum)),
             "weights and their gradients are f32, one per column");
    MR_CHECK(ctx.scratch.size() >= norm_backward_scratch_bytes(cols), "scratch was planned");
    if (rows == 0) return true;

    const bool bf16_dy = p.dy.dtype == DType::bf16, wide = p.x.dtype == DType::f32;
    bool fours = p.dy.dtype != DType::f32;
    for (const Tensor& t : {p.dx, p.copy, p.residual, p.dy, p.x, p.weight}) {
        fours = fours && in_fours(t.data, cols);
    }
    const bool warp = fours && cols <= 1024;
    const std::int64_t groups = warp ? kWarps : 1;
    const auto blocks =
        static_cast<int>(std::min<std::int64_t>(kMostBlocks, (rows + groups - 1) / groups));
    // The forward's statistics 6 or 3, g 1, sums 3, dweight and dbias 3, dx 4.
    const auto elements = static_cast<std::uint64_t>(rows * cols);
    Stamp* stamp = account(ctx, OpKind::norm, "norm backward",
                           {1, p.x.bytes() + p.dy.bytes() + p.residual.bytes() + p.weight.bytes(),
                            p.dx.bytes() + p.copy.bytes() + p.dweight.bytes() + p.dbias.bytes(),
                            elements * (p.kind == NormKind::layer ? 17 : 14), 0});
    auto* parts = reinterpret_cast<float*>(ctx.scratch.data());
    const NormBackwardArgs args{p.dx.data,
                                static_cast<bf16*>(p.copy.data),
                                p.residual.data,
                                p.dy.data,
                                p.x.data,
                                p.weight.f32(),
                                parts,
                                static_cast<int>(rows),
                                static_cast<int>(cols),
                                p.eps,
                                p.kind,
                                stamp};
    float *dweight = static_cast<float*>(p.dweight.data),
          *dbias = static_cast<float*>(p.dbias.data);
    if (const int many = fours && bf16_dy && wide && ctx.many_rows_norm
                             ? start_norm_backward_many(ctx, args)
                             : 0) {
        add_parts(ctx, {dweight, dbias, static_cast<float*>(p.dsum.data)}, parts, many, cols,
                  stamp);
        return true;
    }
    const auto start = [&](int threads, void (*kernel)(NormBackwardArgs)) {
        launch(ctx, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)), 0,
               kernel, args);
    };
    const auto start_for = [&](auto dy, auto x) {
        using Dy = decltype(dy);
        using X = decltype(x);
        if (!fours || cols > 8192) {
            start(256, any_rows_backward<Dy, X>);
        } else if (cols <= 768) {
            start(32 * kWarps, rows_backward<32, 6, Dy, X>);
        } else if (cols <= 1024) {
            start(32 * kWarps, rows_backward<32, 8, Dy, X>);
        } else if (cols <= 2048) {
            start(256, rows_backward<256, 2, Dy, X>);
        } else if (cols <= 4096) {
            start(256, rows_backward<256, 4, Dy, X>);
        } else {
            start(256, rows_backward<256, 8, Dy, X>);
        }
    };
    if (p.dy.dtype == DType::f32) {
        start(256, any_rows_backward<float, float>);
    } else if (bf16_dy) {
        wide ? start_for(bf16{}, float{}) : start_for(bf16{}, bf16{});
    } else {
        wide ? start_for(__half{}, float{}) : start_for(__half{}, __half{});
    }
    add_parts(ctx, dweight, parts, blocks, cols, 2 * cols, stamp);
    add_parts(ctx, dbias, parts + cols, blocks, cols, 2 * cols, stamp);
    return !p.dsum;
}

}  // namespace mr::cuda
