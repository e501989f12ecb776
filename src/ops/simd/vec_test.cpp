// The vector functions that several kernels share, tested through the kernels.
#include <cmath>

#include "ops/loss/loss_kernels.h"
#include "ops/simd/testing.h"

namespace mr::ops {
namespace {

using namespace testing;

float vector_exp(float x) { return static_cast<float>(MR_DISPATCH(row_exp_sum)(&x, 1, 0.0f)); }

TEST(Vec, ExpIsWithinTwoUlp) {
    for_each_isa([] {
        double worst = 0;
        // Every 1021st float below 89 in magnitude, of both signs: all exponents, about 2 million.
        for (std::uint32_t bits = 0; bits < 0x42b20000u; bits += 1021) {
            for (std::uint32_t sign : {0u, 0x80000000u}) {
                const float x = std::bit_cast<float>(bits | sign);
                const double want = std::exp(double{x});
                if (want > double{std::numeric_limits<float>::max()}) continue;
                // The distance between neighbours at `want`, at least that of subnormals.
                const double ulp = std::ldexp(1.0, std::max(std::ilogb(want), -126) - 23);
                worst = std::max(worst, std::abs(double{vector_exp(x)} - want) / ulp);
            }
        }
        EXPECT_LE(worst, 2.0);
        RecordProperty("worst_ulp", std::to_string(worst));
    });
}

TEST(Vec, ExpAtTheEnds) {
    for_each_isa([] {
        const float inf = std::numeric_limits<float>::infinity();
        EXPECT_EQ(vector_exp(0.0f), 1.0f);
        EXPECT_EQ(vector_exp(-0.0f), 1.0f);
        EXPECT_EQ(vector_exp(-inf), 0.0f);
        EXPECT_EQ(vector_exp(-104.0f), 0.0f);
        EXPECT_EQ(vector_exp(-1e30f), 0.0f);
        EXPECT_EQ(vector_exp(inf), inf);
        EXPECT_EQ(vector_exp(89.0f), inf);
        EXPECT_GT(vector_exp(-103.0f), 0.0f);  // a subnormal
        EXPECT_TRUE(std::isnan(vector_exp(kPoison)));
    });
}

}  // namespace
}  // namespace mr::ops
