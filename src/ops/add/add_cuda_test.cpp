#include "ops/add/add_cuda.h"

#include <cstdint>
#include <vector>

#include "core/cuda/testing.h"
#include "core/error.h"

namespace mr::cuda {
namespace {

class GpuAdd : public GpuTest {};

// One rounding per element: the sum has the same bits as the host's.
TEST_F(GpuAdd, IsTheHostsSum) {
    for (const Shape shape : {Shape{1, 1}, Shape{1, 2560}, Shape{3, 257}}) {
        memory_.reset();
        const auto count = static_cast<std::size_t>(shape.count());
        std::vector<float> a = normal(count), b = normal(count);
        const Tensor to = upload(DType::f32, shape, a), x = upload(DType::f32, shape, b);
        const Ledger before = ledger_;
        add_to(ctx_, to, x);
        const std::vector<float> got = download(to);
        for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], a[i] + b[i]) << i;
        const OpRecord work = ledger_.since(before).op(OpKind::add);
        EXPECT_EQ(work.calls, 1u);
        EXPECT_EQ(work.bytes(), 12 * count);
    }
}

TEST_F(GpuAdd, RefusesOtherShapesAndTypes) {
    const Tensor x = memory_.tensor(DType::f32, {2, 4});
    EXPECT_THROW(add_to(ctx_, x, memory_.tensor(DType::f32, {2, 3})), ContractError);
    EXPECT_THROW(add_to(ctx_, x, memory_.tensor(DType::f16, {2, 4})), ContractError);
}

}  // namespace
}  // namespace mr::cuda
