#include "ops/rows/rows.h"

#include "core/error.h"
#include "ops/simd/testing.h"

namespace mr::ops {
namespace {

using namespace testing;

TEST(Rows, GatherAndScatterAreEachOthersInverse) {
    const std::vector<std::int32_t> rows{8, 0, 3, 4};
    const std::int64_t dim = 19;
    for (const int threads : {1, 3}) {
        Floats x = Floats::normal({9, dim}, 1), few({4, dim}), back({9, dim}, -5);
        Bench bench(threads);
        gather_rows(bench, few, x, rows.data());
        scatter_rows(bench, back, few, rows.data());
        for (std::int64_t t = 0; t < 9; ++t) {
            const auto at = std::find(rows.begin(), rows.end(), static_cast<std::int32_t>(t));
            for (std::int64_t i = 0; i < dim; ++i) {
                if (at == rows.end()) {
                    ASSERT_EQ(back[t * dim + i], -5);
                    continue;
                }
                ASSERT_EQ(few[(at - rows.begin()) * dim + i], x[t * dim + i]);
                ASSERT_EQ(back[t * dim + i], x[t * dim + i]);
            }
        }
    }
}

TEST(Rows, NumbersOutsideAreRefused) {
    Floats x = Floats::normal({3, 2}, 1), few({1, 2});
    Bench bench;
    for (const std::int32_t row : {-1, 3}) {
        EXPECT_THROW(gather_rows(bench, few, x, &row), ContractError);
        EXPECT_THROW(scatter_rows(bench, x, few, &row), ContractError);
    }
}

}  // namespace
}  // namespace mr::ops
