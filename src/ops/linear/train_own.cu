// A product of training without a library: one tile, one order of summation, front to back.
#include "core/cuda/kernel.cuh"
#include "ops/linear/train_product.h"

namespace mr::cuda {
namespace {

constexpr int kTile = 64;              // rows and columns per block
constexpr int kDepth = 16;             // depth of the sum per step
constexpr int kTrainOwnThreads = 256;  // 16 x 16, each 4 rows by 4 columns

// Element (i, depth) of a matrix [many, sum], which may be stored transposed; 0 outside of it.
__device__ __forceinline__ float element(const bf16* m, std::int64_t stride, bool transposed,
                                         std::int64_t i, std::int64_t many, std::int64_t depth,
                                         std::int64_t sum) {
    if (i >= many || depth >= sum) return 0.0f;
    return to_f32(m[transposed ? depth * stride + i : i * stride + depth]);
}

template <typename Out>
__global__ void __launch_bounds__(kTrainOwnThreads) multiply(const TrainProduct p, Stamp* stamp) {
    // [depth][row or column]; the padding spreads the stores of a warp over the banks
    __shared__ float as[kDepth][kTile + 1], bs[kDepth][kTile + 1];
    wait_for_previous();
    let_next_start();
    const StageClock clock(stamp);
    const std::int64_t first_row = std::int64_t{blockIdx.y} * kTile;
    const std::int64_t first_col = std::int64_t{blockIdx.x} * kTile;
    const int thread = static_cast<int>(threadIdx.x), tx = thread % 16, ty = thread / 16;
    float sums[4][4] = {};
    for (std::int64_t k = 0; k < p.sum; k += kDepth) {
#pragma unroll
        for (int i = 0; i < kTile * kDepth / kTrainOwnThreads; ++i) {
            const int at = i * kTrainOwnThreads + thread;
            // Neighbouring threads read neighbouring elements, transposed or not. If b is
            // transposed, it is stored as [cols, sum].
            const int a_row = p.a_transposed ? at % kTile : at / kDepth;
            const int a_depth = p.a_transposed ? at / kTile : at % kDepth;
            as[a_depth][a_row] = element(static_cast<const bf16*>(p.a), p.a_stride, p.a_transposed,
                                         first_row + a_row, p.rows, k + a_depth, p.sum);
            const int b_col = p.b_transposed ? at / kDepth : at % kTile;
            const int b_depth = p.b_transposed ? at % kDepth : at / kTile;
            bs[b_depth][b_col] = element(static_cast<const bf16*>(p.b), p.b_stride, !p.b_transposed,
                                         first_col + b_col, p.cols, k + b_depth, p.sum);
        }
        __syncthreads();
#pragma unroll
        for (int depth = 0; depth < kDepth; ++depth) {
            float a[4], b[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                a[i] = as[depth][ty + 16 * i];
                b[i] = bs[depth][tx + 16 * i];
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const std::int64_t row = first_row + ty + 16 * i, col = first_col + tx + 16 * j;
            if (row >= p.rows || col >= p.cols) continue;
            const std::int64_t at = row * p.out_stride + col;
            float value = sums[i][j];
            if (p.c) value += to_f32(static_cast<const Out*>(p.c)[at]);
            if (p.bias) value += to_f32(static_cast<const Out*>(p.bias)[col]);
            static_cast<Out*>(p.out)[at] = from_f32<Out>(value);
        }
    }
}

}  // namespace

void own_product(const Context& ctx, const TrainProduct& p, Stamp* stamp) {
    const dim3 grid(static_cast<unsigned>((p.cols + kTile - 1) / kTile),
                    static_cast<unsigned>((p.rows + kTile - 1) / kTile));
    MR_CHECK(grid.y <= 65535, "the plain product has at most 4 million rows");
    launch(ctx, grid, dim3(kTrainOwnThreads), 0,
           p.out_type == DType::f32 ? multiply<float> : multiply<bf16>, p, stamp);
}

}  // namespace mr::cuda
