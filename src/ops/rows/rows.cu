#include "core/cuda/kernel.cuh"
#include "ops/rows/rows_cuda.h"

namespace mr::cuda {
namespace {

constexpr int kRowsThreads = 128;

// One block per row.
__global__ void __launch_bounds__(kRowsThreads)
    gather(float* out, const float* x, const std::int32_t* rows, int dim, Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    const float* from = x + std::int64_t{rows[blockIdx.x]} * dim;
    float* to = out + static_cast<std::int64_t>(blockIdx.x) * dim;
    for (int i = static_cast<int>(threadIdx.x); i < dim; i += kRowsThreads) to[i] = from[i];
}

__global__ void __launch_bounds__(kRowsThreads)
    scatter(float* out, bf16* copy, const float* x, const std::int32_t* rows, int dim,
            Stamp* stamp) {
    wait_for_previous();
    const StageClock clock(stamp);
    let_next_start();
    const std::int64_t row = std::int64_t{rows[blockIdx.x]} * dim;
    const float* from = x + static_cast<std::int64_t>(blockIdx.x) * dim;
    for (int i = static_cast<int>(threadIdx.x); i < dim; i += kRowsThreads) {
        const float v = from[i];
        out[row + i] = v;
        if (copy) copy[row + i] = __float2bfloat16_rn(v);
    }
}

void check_rows(const Context& ctx, const Tensor& few, const Tensor& all,
                const std::int32_t* rows) {
    MR_CHECK(ctx.cuda, "the context has a stream");
    MR_CHECK(few.dtype == DType::f32 && all.dtype == DType::f32 && few.shape.rank == 2 &&
                 all.shape.rank == 2 && few.dim(1) == all.dim(1),
             "rows are f32 [n, dim] and [tokens, dim]");
    MR_CHECK(rows || few.dim(0) == 0, "the numbers of rows lie on the device");
}

}  // namespace

void gather_rows(const Context& ctx, Tensor out, Tensor x, const std::int32_t* rows) {
    check_rows(ctx, out, x, rows);
    if (out.dim(0) == 0) return;
    Stamp* stamp =
        account(ctx, OpKind::embedding, "gather rows", {1, out.bytes(), out.bytes(), 0, 0});
    launch(ctx, dim3(static_cast<unsigned>(out.dim(0))), dim3(kRowsThreads), 0, gather, out.f32(),
           static_cast<const float*>(x.f32()), rows, static_cast<int>(out.dim(1)), stamp);
}

void scatter_rows(const Context& ctx, Tensor out, Tensor copy, Tensor x, const std::int32_t* rows) {
    check_rows(ctx, x, out, rows);
    MR_CHECK(!copy || (copy.dtype == DType::bf16 && copy.shape == out.shape),
             "the copy is bf16 of the shape of out");
    if (x.dim(0) == 0) return;
    Stamp* stamp = account(ctx, OpKind::embedding, "scatter rows",
                           {1, x.bytes(), x.bytes() + (copy ? x.bytes() / 2 : 0), 0, 0});
    launch(ctx, dim3(static_cast<unsigned>(x.dim(0))), dim3(kRowsThreads), 0, scatter, out.f32(),
           static_cast<bf16*>(copy.data), static_cast<const float*>(x.f32()), rows,
           static_cast<int>(x.dim(1)), stamp);
}

}  // namespace mr::cuda
