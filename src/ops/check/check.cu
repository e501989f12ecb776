#include "core/cuda/kernel.cuh"
#include "core/error.h"
#include "ops/check/check_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kCheckThreads = 256;

// One block per row. `first` is NotFinite::packed() of row 0 with infinities only.
__global__ void __launch_bounds__(kCheckThreads)
    check_rows(unsigned long long* found, const float* x, std::int64_t cols,
               unsigned long long first, Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    const float* row = x + static_cast<std::int64_t>(blockIdx.x) * cols;
    unsigned most = 0;  // of the magnitudes as integers: infinity and NaN are the largest
    for (std::int64_t i = threadIdx.x; i < cols; i += kCheckThreads) {
        most = max(most, __float_as_uint(row[i]) & 0x7fffffffu);
    }
    const bool bad = __syncthreads_or(most >= 0x7f800000u) != 0;
    const bool nan = __syncthreads_or(most > 0x7f800000u) != 0;
    // NotFinite::packed(): the row is above one bit. The order of blocks does not matter.
    if (bad && threadIdx.x == 0) {
        atomicMin(found,
                  first + (static_cast<unsigned long long>(blockIdx.x) << 1 | (nan ? 1 : 0)));
    }
}

}  // namespace

void check_finite(const Context& ctx, std::uint64_t* found, Tensor x, int stage,
                  std::int64_t first_row) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(found, "what is found has a place on the device");
    MR_CHECK(x && x.dtype == DType::f32 && x.shape.rank == 2,
             "what is checked is f32 [rows, cols]");
    MR_CHECK(stage >= 0 && first_row >= 0 && first_row + x.rows() <= INT32_MAX,
             "stage and rows fit into one word");
    if (x.rows() == 0) return;
    Stamp* stamp = account(ctx, OpKind::check, "check", {1, x.bytes(), 0, 0, 0});
    static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
    launch(ctx, dim3(static_cast<unsigned>(x.rows())), dim3(kCheckThreads), 0, check_rows,
           reinterpret_cast<unsigned long long*>(found), x.f32(), x.cols(),
           ops::NotFinite{stage, first_row, false}.packed(), stamp);
}

}  // namespace mr::cuda
