#include "ops/rows/rows_cuda.h"

#include <algorithm>
#include <vector>

#include "core/cuda/testing.h"
#include "core/error.h"

namespace mr::cuda {
namespace {

class GpuRows : public GpuTest {};

TEST_F(GpuRows, GatherAndScatterAreEachOthersInverse) {
    const std::vector<std::int32_t> rows{8, 0, 3, 4};
    for (const std::int64_t dim : {1, 19, 256, 1000}) {
        memory_.reset();
        std::vector<float> x = normal(static_cast<std::size_t>(9 * dim)), zeros(x.size(), -5.0f),
                           halves = zeros;
        const std::int32_t* at = upload(std::span<const std::int32_t>(rows));
        const Tensor all = upload(DType::f32, {9, dim}, x), few = poisoned(DType::f32, {4, dim});
        const Tensor back = upload(DType::f32, {9, dim}, zeros);
        const Tensor copy = upload(DType::bf16, {9, dim}, halves);
        gather_rows(ctx_, few, all, at);
        scatter_rows(ctx_, back, copy, few, at);
        const std::vector<float> got = download(back), half = download(copy);
        for (std::int64_t t = 0; t < 9; ++t) {
            const bool there =
                std::find(rows.begin(), rows.end(), static_cast<std::int32_t>(t)) != rows.end();
            for (std::int64_t i = 0; i < dim; ++i) {
                const auto j = static_cast<std::size_t>(t * dim + i);
                ASSERT_EQ(got[j], there ? x[j] : -5.0f);
                ASSERT_EQ(half[j], there ? bf16_to_f32(f32_to_bf16(x[j])) : -5.0f);
            }
        }
        scatter_rows(ctx_, back, {}, few, at);  // without a copy
        EXPECT_EQ(download(back), got);
        gather_rows(ctx_, Tensor(few.data, DType::f32, {0, dim}), all, at);  // nothing to do
    }
    const Tensor x = memory_.tensor(DType::f32, {2, 4});
    EXPECT_THROW(gather_rows(ctx_, memory_.tensor(DType::f32, {1, 3}), x, upload(std::span(rows))),
                 ContractError);
}

}  // namespace
}  // namespace mr::cuda
