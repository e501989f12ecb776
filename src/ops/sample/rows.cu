#include "core/cuda/kernel.cuh"
#include "ops/sample/rows_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kSampleRowsThreads = 128;

__global__ void __launch_bounds__(kSampleRowsThreads) set_rows(const SampleRowsPass a) {
    wait_for_previous();
    let_next_start();
    const int i = static_cast<int>(blockIdx.x * kSampleRowsThreads + threadIdx.x);
    if (i >= a.count) return;
    SampleRow row = a.all;
    row.seed =
        a.seeds ? static_cast<std::uint64_t>(a.seeds[i]) : row.seed + static_cast<std::uint64_t>(i);
    if (a.positions) row.position = a.positions[i];
    a.rows[i] = row;
}

}  // namespace

void set_sample_rows(const Context& ctx, const SampleRowsPass& pass) {
    MR_CHECK(ctx.cuda && pass.rows && pass.count > 0, "rows on a stream are set");
    const auto blocks =
        static_cast<unsigned>((pass.count + kSampleRowsThreads - 1) / kSampleRowsThreads);
    launch(ctx, dim3(blocks), dim3(kSampleRowsThreads), 0, set_rows, pass);
}

}  // namespace mr::cuda
