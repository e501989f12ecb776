#include "core/cuda/kernel.cuh"
#include "ops/add/parts_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kCols = 32;    // per block: a warp reads 128 bytes of a part
constexpr int kGroups = 16;  // warps: warp g has parts g, g + 16, ...
constexpr int kBatch = 8;    // loads in flight

struct Targets {
    float* to[3];
};

// Block (columns, which): the parts of `which` begin n floats after those of the previous one.
__global__ void __launch_bounds__(kCols* kGroups)
    add_all_parts(const Targets targets, const float* parts, int count, std::int64_t n,
                  std::int64_t stride, Stamp* stamp) {
    __shared__ float sums[kGroups][kCols];
    wait_for_previous();
    let_next_start();
    const unsigned which = blockIdx.y;
    float* to = which == 0 ? targets.to[0] : which == 1 ? targets.to[1] : targets.to[2];
    if (!to) return;
    parts += std::int64_t{which} * n;
    const int lane = static_cast<int>(threadIdx.x % kCols);
    const int group = static_cast<int>(threadIdx.x / kCols);
    const std::int64_t col = std::int64_t{blockIdx.x} * kCols + lane;
    float sum = 0;
    if (col < n) {
        for (int p = group; p < count; p += kBatch * kGroups) {
            float v[kBatch];
#pragma unroll
            for (int j = 0; j < kBatch; ++j) {
                const int at = p + j * kGroups;
                v[j] = at < count ? parts[at * stride + col] : 0.0f;
            }
#pragma unroll
            for (int j = 0; j < kBatch; ++j) sum += v[j];
        }
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

void start(const Context& ctx, const Targets& targets, unsigned which, const float* parts,
           int count, std::int64_t n, std::int64_t stride, Stamp* stamp) {
    MR_CHECK(ctx.cuda && parts && count >= 0 && stride >= n, "the parts lie on the device");
    launch(ctx, dim3(static_cast<unsigned>((n + kCols - 1) / kCols), which), dim3(kCols * kGroups),
           0, add_all_parts, targets, parts, count, n, stride, stamp);
}

}  // namespace

void add_parts(const Context& ctx, float* to, const float* parts, int count, std::int64_t n,
               std::int64_t stride, Stamp* stamp) {
    if (!to || n == 0) return;
    start(ctx, {{to, nullptr, nullptr}}, 1, parts, count, n, stride, stamp);
}

void add_parts(const Context& ctx, const std::array<float*, 3>& to, const float* parts, int count,
               std::int64_t n, Stamp* stamp) {
    if ((!to[0] && !to[1] && !to[2]) || n == 0) return;
    start(ctx, {{to[0], to[1], to[2]}}, 3, parts, count, n, 3 * n, stamp);
}

}  // namespace mr::cuda
