#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "ops/linear/gemm_cublaslt.h"
#include "ops/linear/gemm_cuda.h"
#include "ops/linear/gemm_own.h"
#include "ops/linear/gemm_search.h"
#include "ops/linear/tile_layout.h"

namespace mr::cuda {
namespace {

bool aligned(const void* at, std::size_t bytes = cublaslt::kAlign) {
    return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}

// The library's kernels write no stamps. With a
// timeline, these two kernels stamp before and after.
__global__ void stamp_product_begin(Stamp* stamp) {
    wait_for_previous();
    stamp->begin = device_clock();
}
__global__ void stamp_product_end(Stamp* stamp) {
    wait_for_previous();
    stamp->end = device_clock();
}

template <typename T>
__global__ void round_bias(T* __restrict__ to, const float* __restrict__ bias, int n) {
    wait_for_previous();
    let_next_start();
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) to[i] = from_f32<T>(bias[i]);
}

// The parts of ctx.scratch, in this order.
struct Plan {
    std::size_t workspace = 0, weights = 0, bias = 0;  // bytes
    std::size_t total() const { return workspace + weights + bias; }
};

Plan plan(const GemmShape& shape) {
    Plan out;
    const auto n = static_cast<std::size_t>(shape.n), k = static_cast<std::size_t>(shape.k);
    out.workspace = cublaslt::kWorkspace;
    if (ops::is_tiled(shape.w)) out.weights = DeviceArena::padded(dtype_bytes(shape.x, n * k));
    if (shape.bias && shape.out != DType::f32) {
        out.bias = DeviceArena::padded(dtype_bytes(shape.out, n));
    }
    return out;
}

// The shape as passed to the library; tiled weights are expanded to x's type first.
cublaslt::Key key_of(const GemmShape& shape) {
    return {shape.n, shape.k, shape.x, shape.out, shape.bias};
}

// The library's algorithm for the shape; null if our own kernels compute it. Its bits depend on the
// shape alone; `tokens` only chooses among algorithms that were found to give the same bits.
const cublaslt::Algorithm* library_algorithm(const GemmShape& shape,
                                             std::int64_t tokens = cublaslt::kManyTokens) {
    const DType w = ops::is_tiled(shape.w) ? shape.x : shape.w;
    if (w != shape.x) return nullptr;
    if (this_gpu().sm < 80 && shape.x == DType::bf16) return nullptr;  // those GPUs lack bf16
    if (shape.k * dtype_info(shape.x).block_bytes % static_cast<int>(cublaslt::kAlign) != 0) {
        return nullptr;
    }
    return cublaslt::algorithm(key_of(shape), tokens);
}

// f32 kernels differ in their sums from tile to tile, so one algorithm serves all token counts.
void search(const Context& ctx, const GemmShape& shape) {
    if (shape.x != DType::f32 && library_algorithm(shape)) search_steps(ctx, key_of(shape));
}

void check_shape(const GemmShape& shape) {
    MR_CHECK(is_float(shape.x), "x is f32, f16 or bf16");
    MR_CHECK(is_float(shape.w) || ops::is_tiled(shape.w), "w is f32, f16, bf16, q8_0x8 or q4_0x8");
    MR_CHECK(shape.out == DType::f32 || shape.out == shape.x, "out is f32 or of x's type");
    MR_CHECK(shape.n > 0 && shape.k > 0, "the weights are not empty");
}

void check_arguments(const Context& ctx, const GemmShape& shape, Tensor out, Tensor x, Tensor w,
                     Tensor bias, Tensor residual) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(x.shape.rank == 2 && w.shape.rank == 2 && out.shape.rank == 2, "all are matrices");
    MR_CHECK(w.dim(1) == x.dim(1), "x and w have one k");
    MR_CHECK(out.dim(0) == x.dim(0) && out.dim(1) == w.dim(0), "out is [tokens, n]");
    check_shape(shape);
    MR_CHECK(!bias || (bias.dtype == DType::f32 && bias.shape.count() == w.dim(0)),
             "bias is f32 [n]");
    MR_CHECK(!residual || (residual.dtype == DType::f32 && residual.shape == out.shape),
             "residual is f32 [tokens, n]");
    MR_CHECK(!residual || out.dtype == DType::f32, "out is f32 where there is a residual");
    MR_CHECK(ctx.scratch.size() >= plan(shape).total(), "scratch was planned");
}

void run_library(const Context& ctx, const GemmShape& shape, const cublaslt::Algorithm& algorithm,
                 Tensor out, Tensor x, Tensor w, Tensor bias, Tensor residual, Stamp* stamp) {
    const cublaslt::Key key = key_of(shape);
    MR_CHECK(
        aligned(x.data) && aligned(w.data) && aligned(bias.data) && aligned(ctx.scratch.data()),
        "addresses are whole 16 bytes");
    MR_CHECK(aligned(out.data, key.out_align()) && aligned(residual.data, key.out_align()),
             "rows of out begin where rows of an aligned matrix do");
    const Plan parts = plan(shape);
    const void* bias_data = bias.data;
    if (parts.bias > 0) {  // the library needs it in out's type
        std::byte* to = ctx.scratch.data() + parts.workspace + parts.weights;
        const auto n = static_cast<int>(shape.n);
        const auto blocks = static_cast<unsigned>((n + 255) / 256);
        with_float_type(out.dtype, [&](auto example) {
            using T = decltype(example);
            launch(ctx, dim3(blocks), dim3(256), 0, round_bias<T>, reinterpret_cast<T*>(to),
                   static_cast<const float*>(bias.data), n);
        });
        bias_data = to;
    }
    if (stamp) launch(ctx, dim3(1), dim3(1), 0, stamp_product_begin, stamp);
    cublaslt::matmul(ctx, key, algorithm, x.dim(0), out.data, x.data, w.data, bias_data,
                     residual.data, ctx.scratch.first(parts.workspace));
    if (stamp) launch(ctx, dim3(1), dim3(1), 0, stamp_product_end, stamp);
}

}  // namespace

std::size_t gemm_scratch_bytes(const GemmShape& shape) { return plan(shape).total(); }

void gemm(const Context& ctx, Tensor out, Tensor x, Tensor w, Tensor bias, Tensor residual,
          const GemmOptions& options) {
    const GemmShape shape{w.dim(0), w.dim(1), w.dtype, x.dtype, out.dtype, bool(bias)};
    check_arguments(ctx, shape, out, x, w, bias, residual);
    if (x.dim(0) == 0) return;
    if (!options.own_kernel) search(ctx, shape);
    if (ops::is_tiled(w.dtype)) {
        const Tensor plain(ctx.scratch.data() + plan(shape).workspace, x.dtype, w.shape);
        gemm_dequantize(ctx, plain, w, options.kind);
        w = plain;
    }
    const std::uint64_t flops = 2 * static_cast<std::uint64_t>(x.dim(0)) *
                                static_cast<std::uint64_t>(shape.n) *
                                static_cast<std::uint64_t>(shape.k);
    const std::uint64_t extra = (bias ? bias.bytes() : 0) + (residual ? residual.bytes() : 0);
    Stamp* stamp = account(ctx, options.kind, options.name,
                           {1, x.bytes() + w.bytes() + extra, out.bytes(), flops, 0});
    const cublaslt::Algorithm* algorithm =
        options.own_kernel ? nullptr : library_algorithm(shape, x.dim(0));
    if (algorithm) {
        run_library(ctx, shape, *algorithm, out, x, w, bias, residual, stamp);
    } else {
        gemm_own(ctx, out, x, w, bias, residual, stamp);
    }
}

void gemm_prepare(const Context& ctx, const GemmShape& shape) {
    check_shape(shape);
    MR_CHECK(ctx.scratch.size() >= plan(shape).total(), "scratch was planned");
    const cublaslt::Algorithm* algorithm = library_algorithm(shape);
    if (!algorithm) return;
    search(ctx, shape);
    // A small product with the alignment of the shape. Its inputs and outputs are arbitrary bytes
    // of the workspace.
    const auto small = [](std::int64_t size) { return size > 512 ? size % 256 + 256 : size; };
    GemmShape warm = shape;
    warm.n = small(shape.n);
    warm.k = small(shape.k);
    std::byte* at = ctx.scratch.data();
    const auto take = [&](DType type, std::int64_t rows, std::int64_t cols) {
        const Tensor t(at, type, {rows, cols});
        at += DeviceArena::padded(t.bytes());
        return t;
    };
    constexpr std::int64_t kTokens = 64;
    const Tensor x = take(shape.x, kTokens, warm.k), w = take(shape.x, warm.n, warm.k),
                 out = take(shape.out, kTokens, warm.n), bias = take(shape.out, 1, warm.n);
    const std::size_t used = static_cast<std::size_t>(at - ctx.scratch.data());
    if (used + algorithm->workspace > ctx.scratch.size()) return;
    try {
        cublaslt::matmul(ctx, key_of(warm), *algorithm, kTokens, out.data, x.data, w.data,
                         shape.bias ? bias.data : nullptr, nullptr, ctx.scratch.subspan(used));
    } catch (const Error&) {
        // The product is too small for the algorithm; its code is loaded at the first real use.
    }
}

bool gemm_uses_library(const GemmShape& shape) { return library_algorithm(shape) != nullptr; }

std::string gemm_about(const GemmShape& shape, std::int64_t tokens) {
    if (const cublaslt::Algorithm* algorithm = library_algorithm(shape, tokens)) {
        return cublaslt::about() + ", " + algorithm->str();
    }
    const DType w = ops::is_tiled(shape.w) ? shape.x : shape.w;
    return std::string("own kernel, ") + gemm_own_about(shape.x, w) +
           (cublaslt::available() ? "" : " (" + cublaslt::about() + ")");
}

}  // namespace mr::cuda
