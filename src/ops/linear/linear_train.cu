#include <algorithm>

#include "core/cuda/vec8.cuh"
#include "ops/add/parts_cuda.h"
#include "ops/linear/linear_train_cuda.h"
#include "ops/linear/train_product.h"

namespace mr::cuda {
namespace {

constexpr int kLinearTrainThreads = 256;
constexpr int kLinearTrainWarps = kLinearTrainThreads / 32;
constexpr int kBatch = 4;  // loads in flight

// The library's kernels write no stamps. With a
// timeline, these two kernels stamp before and after.
__global__ void stamp_before(Stamp* stamp) {
    wait_for_previous();
    stamp_begin(stamp);
}
__global__ void stamp_after(Stamp* stamp) {
    wait_for_previous();
    stamp_end(stamp);
}

__global__ void __launch_bounds__(kLinearTrainThreads)
    round_train_bias(bf16* to, const float* bias, int n) {
    wait_for_previous();
    let_next_start();
    const int i = static_cast<int>(blockIdx.x * kLinearTrainThreads + threadIdx.x);
    if (i < n) to[i] = from_f32<bf16>(bias[i]);
}

// Block (columns, part) sums rows part * each .. of dy; a warp takes every 8th of these rows and 32
// times kWidth columns.
template <int kWidth>
__global__ void __launch_bounds__(kLinearTrainThreads)
    column_sums(float* parts, const bf16* dy, std::int64_t rows, std::int64_t each, int n,
                std::int64_t stride, Stamp* stamp) {
    __shared__ float sums[kLinearTrainWarps][32 * kWidth];
    wait_for_previous();
    stamp_begin(stamp);
    let_next_start();
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int first_col = static_cast<int>(blockIdx.x) * 32 * kWidth;
    const int col = first_col + lane * kWidth;
    const std::int64_t first = std::int64_t{blockIdx.y} * each;
    const std::int64_t last = min(rows, first + each);
    float sum[kWidth] = {};
    if (col < n) {  // kWidth 8: n is a multiple of 8
        for (std::int64_t row = first + warp; row < last; row += kBatch * kLinearTrainWarps) {
            float v[kBatch][kWidth];
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                if (row + j * kLinearTrainWarps < last) {
                    load_wide<kWidth>(dy + (row + j * kLinearTrainWarps) * stride + col, v[j]);
                }
            }
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                if (row + j * kLinearTrainWarps >= last) break;
#pragma unroll
                for (int i = 0; i < kWidth; ++i) sum[i] += v[j][i];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[warp][lane * kWidth + i] = sum[i];
    __syncthreads();
    const int mine = static_cast<int>(threadIdx.x);
    if (mine < 32 * kWidth && first_col + mine < n) {
        float total = 0;
#pragma unroll
        for (int w = 0; w < kLinearTrainWarps; ++w) total += sums[w][mine];
        parts[std::int64_t{blockIdx.y} * n + first_col + mine] = total;
    }
}

// The library's workspace comes first, then a bias in bf16, or the partial sums of its gradient.
std::span<std::byte> workspace(const Context& ctx) { return ctx.scratch.first(kTrainWorkspace); }
std::byte* beyond(const Context& ctx) { return ctx.scratch.data() + kTrainWorkspace; }

void multiply(const Context& ctx, const TrainProduct& p, const char* name,
              const TrainGemmOptions& options) {
    const auto elements = [](std::int64_t a, std::int64_t b) {
        return static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b);
    };
    const std::uint64_t out = dtype_bytes(p.out_type, elements(p.rows, p.cols));
    Stamp* stamp =
        account(ctx, options.kind, name,
                {1, 2 * (elements(p.rows, p.sum) + elements(p.sum, p.cols)) + (p.c ? out : 0), out,
                 2 * elements(p.rows, p.cols) * static_cast<std::uint64_t>(p.sum), 0});
    if (!options.own_kernel) {
        if (stamp) launch(ctx, dim3(1), dim3(1), 0, stamp_before, stamp);
        if (library_product(ctx, p, workspace(ctx), options.timed ? kTimed : 0)) {
            if (stamp) launch(ctx, dim3(1), dim3(1), 0, stamp_after, stamp);
            return;
        }
    }
    own_product(ctx, p, stamp);
}

bool is_matrix(Tensor t, DType type) { return t && t.dtype == type && t.shape.rank == 2; }

// The number of parts of the sum over tokens, independent of the number of tokens; each part has n
// floats.
int bias_parts(std::int64_t n) {
    return static_cast<int>(std::clamp<std::int64_t>(1024 / ((n + 255) / 256), 8, 256));
}

void check(const Context& ctx, std::int64_t n) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(ctx.scratch.size() >= linear_train_scratch_bytes(n), "scratch was planned");
    MR_CHECK(reinterpret_cast<std::uintptr_t>(ctx.scratch.data()) % 16 == 0,
             "scratch begins at whole 16 bytes");
}

}  // namespace

std::size_t linear_train_scratch_bytes(std::int64_t max_n) {
    // Parts times n is largest at a whole multiple of 256 columns, or at the maximal n.
    const std::int64_t parts = std::max<std::int64_t>(1024 * 256, 8 * max_n);
    return kTrainWorkspace + static_cast<std::size_t>(std::max(4 * parts, 2 * max_n));
}

void linear_forward(const Context& ctx, Tensor out, Tensor x, Tensor w, Tensor bias,
                    Tensor residual, const TrainGemmOptions& options) {
    MR_CHECK(is_matrix(x, DType::bf16) && is_matrix(w, DType::bf16) && w.dim(1) == x.dim(1),
             "x is bf16 [tokens, k], w bf16 [n, k]");
    const std::int64_t tokens = x.dim(0), n = w.dim(0), k = w.dim(1);
    check(ctx, n);
    MR_CHECK(out && (out.dtype == DType::bf16 || out.dtype == DType::f32) && out.shape.rank == 2 &&
                 out.dim(0) == tokens && out.dim(1) >= n,
             "out is bf16 or f32 [tokens, at least n]");
    MR_CHECK(!bias || (bias.dtype == DType::f32 && bias.shape.count() == n), "bias is f32 [n]");
    MR_CHECK(!residual || (residual.dtype == out.dtype && residual.shape == out.shape),
             "the residual is like out");
    if (tokens == 0) return;
    const void* bias_data = bias.data;
    if (bias && out.dtype == DType::bf16) {
        auto* to = reinterpret_cast<bf16*>(beyond(ctx));
        launch(ctx,
               dim3(static_cast<unsigned>((n + kLinearTrainThreads - 1) / kLinearTrainThreads)),
               dim3(kLinearTrainThreads), 0, round_train_bias, to,
               static_cast<const float*>(bias.data), static_cast<int>(n));
        bias_data = to;
    }
    multiply(ctx,
             {.rows = tokens,
              .cols = n,
              .sum = k,
              .a = x.data,
              .b = w.data,
              .out = out.data,
              .c = residual.data,
              .bias = bias_data,
              .out_type = out.dtype,
              .a_transposed = false,
              .b_transposed = true,
              .a_stride = k,
              .b_stride = k,
              .out_stride = out.dim(1)},
             "linear", options);
}

void linear_backward_input(const Context& ctx, Tensor dx, Tensor dy, Tensor w, bool accumulate,
                           const TrainGemmOptions& options) {
    MR_CHECK(is_matrix(dy, DType::bf16) && is_matrix(w, DType::bf16) && dy.dim(1) >= w.dim(0),
             "dy is bf16 [tokens, at least n], w bf16 [n, k]");
    const std::int64_t tokens = dy.dim(0), n = w.dim(0), k = w.dim(1);
    check(ctx, n);
    MR_CHECK(dx && (dx.dtype == DType::bf16 || dx.dtype == DType::f32) && dx.shape.rank == 2 &&
                 dx.dim(0) == tokens && dx.dim(1) == k,
             "dx is bf16 or f32 [tokens, k]");
    if (tokens == 0) return;
    multiply(ctx,
             {.rows = tokens,
              .cols = k,
              .sum = n,
              .a = dy.data,
              .b = w.data,
              .out = dx.data,
              .c = accumulate ? dx.data : nullptr,
              .bias = nullptr,
              .out_type = dx.dtype,
              .a_transposed = false,
              .b_transposed = false,
              .a_stride = dy.dim(1),
              .b_stride = k,
              .out_stride = k},
             "linear input", options);
}

void linear_backward_weight(const Context& ctx, Tensor dw, Tensor dbias, Tensor dy, Tensor x,
                            const TrainGemmOptions& options) {
    MR_CHECK(is_matrix(dw, DType::f32) && is_matrix(dy, DType::bf16) && is_matrix(x, DType::bf16),
             "dw is f32, dy and x are bf16");
    const std::int64_t tokens = dy.dim(0), n = dw.dim(0), k = dw.dim(1);
    check(ctx, n);
    MR_CHECK(x.dim(0) == tokens && x.dim(1) == k && dy.dim(1) >= n,
             "dy is [tokens, at least n], x [tokens, k], dw [n, k]");
    MR_CHECK(!dbias || (dbias.dtype == DType::f32 && dbias.shape.count() == n), "dbias is f32 [n]");
    if (tokens == 0) return;
    multiply(ctx,
             {.rows = n,
              .cols = k,
              .sum = tokens,
              .a = dy.data,
              .b = x.data,
              .out = dw.data,
              .c = dw.data,
              .bias = nullptr,
              .out_type = DType::f32,
              .a_transposed = true,
              .b_transposed = false,
              .a_stride = dy.dim(1),
              .b_stride = k,
              .out_stride = k},
             "linear weight", options);
    if (dbias) bias_gradient(ctx, dbias, dy);
}

void bias_gradient(const Context& ctx, Tensor dbias, Tensor dy) {
    const std::int64_t n = dbias.shape.count();
    check(ctx, n);
    MR_CHECK(is_matrix(dy, DType::bf16) && dbias.dtype == DType::f32 && n > 0 && dy.dim(1) >= n,
             "dy is bf16 [tokens, at least n], dbias f32 [n]");
    const std::int64_t rows = dy.dim(0), stride = dy.dim(1);
    if (rows == 0) return;
    const auto bytes = static_cast<std::uint64_t>(rows * n) * 2;
    Stamp* stamp = account(ctx, OpKind::linear, "bias gradient",
                           {1, bytes, dbias.bytes(), static_cast<std::uint64_t>(rows * n), 0});
    const bool wide = in_eights(dy.data, stride) && n % 8 == 0;
    const int parts = bias_parts(n), width = 32 * (wide ? 8 : 1);
    const std::int64_t each = (rows + parts - 1) / parts;
    auto* sums = reinterpret_cast<float*>(beyond(ctx));
    const dim3 grid(static_cast<unsigned>((n + width - 1) / width), static_cast<unsigned>(parts));
    launch(ctx, grid, dim3(kLinearTrainThreads), 0, wide ? column_sums<8> : column_sums<1>, sums,
           static_cast<const bf16*>(dy.data), rows, each, static_cast<int>(n), stride, stamp);
    add_parts(ctx, dbias.f32(), sums, parts, n, n, stamp);
}

}  // namespace mr::cuda
