#include "core/cuda/kernel.cuh"
#include "ops/add/parts_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kCols = 32;    // of a block: a warp reads 128 bytes of a part
constexpr int kGroups = 16;  // warps: warp g has parts g, g + 16, ...
constexpr int kBatch = 4;    // loads in flight

__global__ void __launch_bounds__(kCols* kGroups)
    add_all_parts(float* to, const float* parts, int count, std::int64_t n, std::int64_t stride,
                  Stamp* stamp) {
    __shared__ float sums[kGroups][kCols];
    wait_for_previous();
    let_next_start();
    const int lane = static_cast<int>(threadIdx.x % kCols);
    const int group = static_cast<int>(threadIdx.x / kCols);
    const std::int64_t col = std::int64_t{blockIdx.x} * kCols + lane;
    float sum = 0;
    if (col < n) {
        int p = group;
        for (; p + (kBatch - 1) * kGroups < count; p += kBatch * kGroups) {
            float v[kBatch];
#pragma unroll
            for (int j = 0; j < kBatch; ++j) v[j] = parts[(p + j * kGroups) * stride + col];
#pragma unroll
            for (int j = 0; j < kBatch; ++j) sum += v[j];
        }
        for (; p < count; p += kGroups) sum += parts[p * stride + col];
    }
    sums[group][lane] = sum;
    __syncthreads();
    if (group == 0 && col < n) {
        float total = 0;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) total += sums[g][lane];
        to[col] += total;
    }
    stamp_end(stamp);
}

}  // namespace

void add_parts(const Context& ctx, float* to, const float* parts, int count, std::int64_t n,
               std::int64_t stride, Stamp* stamp) {
    if (!to || n == 0) return;
    MR_CHECK(ctx.cuda && parts && count >= 0 && stride >= n, "the parts lie on the device");
    launch(ctx, dim3(static_cast<unsigned>((n + kCols - 1) / kCols)), dim3(kCols * kGroups), 0,
           add_all_parts, to, parts, count, n, stride, stamp);
}

}  // namespace mr::cuda
