#include <algorithm>

#include "core/cuda/device.h"
#include "core/cuda/kernel.cuh"
#include "lab/attention/flash_unfused.h"
#include "ops/linear/gemm_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float block_reduce(float x, bool sum) {
    __shared__ float parts[kThreads / 32];
    x = sum ? warp_sum(x) : warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = parts[0];
    for (int i = 1; i < kThreads / 32; ++i) x = sum ? x + parts[i] : fmaxf(x, parts[i]);
    return x;
}

// One block per row. scores [n, n] become weights; those of later keys are 0.
template <typename T>
__global__ void __launch_bounds__(kThreads) softmax_kernel(T* scores, int n, float scale) {
    wait_for_previous();
    const int row = static_cast<int>(blockIdx.x);
    T* s = scores + static_cast<std::int64_t>(row) * n;
    float most = -INFINITY, sum = 0;
    for (int j = static_cast<int>(threadIdx.x); j <= row; j += kThreads) {
        most = fmaxf(most, to_f32(s[j]) * scale);
    }
    most = block_reduce(most, false);
    for (int j = static_cast<int>(threadIdx.x); j <= row; j += kThreads) {
        sum += expf(to_f32(s[j]) * scale - most);
    }
    sum = block_reduce(sum, true);
    for (int j = static_cast<int>(threadIdx.x); j < n; j += kThreads) {
        s[j] = from_f32<T>(j <= row ? expf(to_f32(s[j]) * scale - most) / sum : 0.0f);
    }
}

// dP becomes dS = scale * P (dP - sum of P dP).
template <typename T>
__global__ void __launch_bounds__(kThreads)
    softmax_backward_kernel(T* dp, const T* p, int n, float scale) {
    wait_for_previous();
    const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * n;
    float sum = 0;
    for (int j = static_cast<int>(threadIdx.x); j < n; j += kThreads) {
        sum += to_f32(p[at + j]) * to_f32(dp[at + j]);
    }
    sum = block_reduce(sum, true);
    for (int j = static_cast<int>(threadIdx.x); j < n; j += kThreads) {
        dp[at + j] = from_f32<T>(scale * to_f32(p[at + j]) * (to_f32(dp[at + j]) - sum));
    }
}

// to [columns, rows] = from [rows, columns], in tiles of 32 x 32.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(T* to, const T* from, int rows, int columns) {
    __shared__ T tile[32][33];
    wait_for_previous();
    const int x = static_cast<int>(threadIdx.x) % 32, y = static_cast<int>(threadIdx.x) / 32;
    const int r0 = static_cast<int>(blockIdx.x) * 32, c0 = static_cast<int>(blockIdx.y) * 32;
    for (int i = y; i < 32; i += kThreads / 32) {
        if (r0 + i < rows && c0 + x < columns) {
            tile[i][x] = from[static_cast<std::int64_t>(r0 + i) * columns + c0 + x];
        }
    }
    __syncthreads();
    for (int i = y; i < 32; i += kThreads / 32) {
        if (c0 + i < columns && r0 + x < rows) {
            to[static_cast<std::int64_t>(c0 + i) * rows + r0 + x] = tile[x][i];
        }
    }
}

void transpose(const Context& ctx, Tensor to, Tensor from) {
    const auto rows = static_cast<int>(from.dim(0)), columns = static_cast<int>(from.dim(1));
    const auto tiles = [](int n) { return static_cast<unsigned>((n + 31) / 32); };
    with_float_type(from.dtype, [&](auto type) {
        using T = decltype(type);
        launch(ctx, dim3(tiles(rows), tiles(columns)), kThreads, 0, transpose_kernel<T>,
               static_cast<T*>(to.data), static_cast<const T*>(from.data), rows, columns);
    });
}

// The content of the memory, in order.
struct Parts {
    Tensor weights, gradients, transposed;  // [tokens, tokens]; the last two only in the backward
    Tensor narrow;                          // [head_dim, tokens]
    std::size_t bytes = 0;

    Parts(void* memory, std::int64_t n, std::int64_t dim, DType dtype, bool backward) {
        const auto take = [&](Shape shape) {
            const Tensor t(static_cast<std::byte*>(memory) + bytes, dtype, shape);
            bytes += DeviceArena::padded(t.bytes());
            return t;
        };
        weights = take({n, n});
        narrow = take({dim, n});
        if (!backward) return;
        gradients = take({n, n});
        transposed = take({n, n});
    }
};

// out [rows, n] = x [rows, k] · wᵀ, in pieces of rows that the library takes: it refuses a matrix
// of 65,536 x 65,536.
void product(const Context& ctx, const Tensor& out, const Tensor& x, const Tensor& w) {
    const std::int64_t row_bytes =
        static_cast<std::int64_t>(std::max(out.row_bytes(), x.row_bytes()));
    const std::int64_t most = std::max<std::int64_t>(1, (std::int64_t{1} << 30) / row_bytes);
    for (std::int64_t first = 0; first < out.rows(); first += most) {
        const std::int64_t count = std::min(most, out.rows() - first);
        gemm(ctx, out.slice_rows(first, count), x.slice_rows(first, count), w);
    }
}

}  // namespace

std::size_t unfused_bytes(std::int64_t tokens, std::int64_t head_dim, DType dtype, bool backward) {
    return Parts(nullptr, tokens, head_dim, dtype, backward).bytes;
}

std::size_t unfused_scratch_bytes(std::int64_t tokens, std::int64_t head_dim, DType dtype) {
    return std::max(gemm_scratch_bytes({tokens, head_dim, dtype, dtype, dtype}),
                    gemm_scratch_bytes({head_dim, tokens, dtype, dtype, dtype}));
}

void unfused_forward(const Context& ctx, const UnfusedTensors& t, void* memory, float scale) {
    const std::int64_t n = t.q.dim(0);
    const Parts parts(memory, n, t.q.dim(1), t.q.dtype, false);
    product(ctx, parts.weights, t.q, t.k);
    with_float_type(t.q.dtype, [&](auto type) {
        using T = decltype(type);
        launch(ctx, static_cast<unsigned>(n), kThreads, 0, softmax_kernel<T>,
               static_cast<T*>(parts.weights.data), static_cast<int>(n), scale);
    });
    transpose(ctx, parts.narrow, t.v);
    product(ctx, t.out, parts.weights, parts.narrow);
}

void unfused_backward(const Context& ctx, const UnfusedTensors& t, void* memory, float scale) {
    const std::int64_t n = t.q.dim(0);
    const Parts parts(memory, n, t.q.dim(1), t.q.dtype, true);
    transpose(ctx, parts.transposed, parts.weights);
    transpose(ctx, parts.narrow, t.dout);
    product(ctx, t.dv, parts.transposed, parts.narrow);
    product(ctx, parts.gradients, t.dout, t.v);
    with_float_type(t.q.dtype, [&](auto type) {
        using T = decltype(type);
        launch(ctx, static_cast<unsigned>(n), kThreads, 0, softmax_backward_kernel<T>,
               static_cast<T*>(parts.gradients.data), static_cast<const T*>(parts.weights.data),
               static_cast<int>(n), scale);
    });
    transpose(ctx, parts.narrow, t.k);
    product(ctx, t.dq, parts.gradients, parts.narrow);
    transpose(ctx, parts.transposed, parts.gradients);
    transpose(ctx, parts.narrow, t.q);
    product(ctx, t.dk, parts.transposed, parts.narrow);
}

}  // namespace mr::cuda
