#include "ops/add/add.h"

#include "ops/add/add_kernels.h"
#include "ops/simd/pieces.h"

namespace mr::ops {

void add(const Context& ctx, Tensor out, Tensor a, Tensor b) {
    MR_CHECK(ctx.pool, "an op is given a thread pool");
    MR_CHECK(out.dtype == DType::f32 && a.dtype == DType::f32 && b.dtype == DType::f32,
             "add works on f32");
    MR_CHECK(out.shape == a.shape && out.shape == b.shape, "add has one shape");
    const std::int64_t count = out.shape.count();
    const auto bytes = static_cast<std::uint64_t>(out.bytes());
    const LedgerEntry entry(ctx.ledger, OpKind::add, 2 * bytes, bytes,
                            static_cast<std::uint64_t>(count));
    float* to = out.f32();
    const float* x = a.f32();
    const float* y = b.f32();
    const auto kernel = MR_DISPATCH(add_range);
    ctx.pool->parallel_for(count, rows_per_piece(1),
                           [&](std::int64_t begin, std::int64_t end, int) {
                               kernel(to + begin, x + begin, y + begin, end - begin);
                           });
}

}  // namespace mr::ops
