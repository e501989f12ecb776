#include "lab/norms/norm_error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace mr::ops {
namespace {

TEST(NormError, TheReferenceIsTheNormOfTheSum) {
    for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
        const NormCase of = norm_case(3, 8, DType::f16, kind);
        for (std::size_t r = 0; r < 3; ++r) {
            double mean = 0, squares = 0;
            for (std::size_t i = 0; i < 8; ++i) {
                const double s = double{of.x[8 * r + i]} + double{of.residual[8 * r + i]};
                mean += s / 8;
                squares += s * s / 8;
            }
            if (kind == NormKind::rms) mean = 0;
            for (std::size_t i = 0; i < 8; ++i) {
                const double s = double{of.x[8 * r + i]} + double{of.residual[8 * r + i]};
                const double want = (s - mean) / std::sqrt(squares - mean * mean + double{of.eps}) *
                                        double{of.weight[i]} +
                                    (of.bias.empty() ? 0.0 : double{of.bias[i]});
                EXPECT_NEAR(of.want[8 * r + i], want, 1e-12);
            }
        }
    }
}

TEST(NormError, SeesTheLargestAndANan) {
    NormCase of = norm_case(1, 4, DType::f32, NormKind::layer);
    of.want = {3, 0, 0, 4};
    EXPECT_EQ(of.error(std::vector<float>{3, 0, 0, 4}).largest, 0);
    const NormError apart = of.error(std::vector<float>{3, 0.5f, 0, 4});
    EXPECT_EQ(apart.largest, 0.5);
    EXPECT_EQ(apart.relative, 0.1);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const NormError none = of.error(std::vector<float>{nan, 0, 0, 4});
    EXPECT_TRUE(std::isnan(none.largest) && std::isnan(none.relative));
}

// f32 sums of 2,560: a few units in the last place of values up to 6.
TEST(NormError, TheCpusOpsAreExactToF32) {
    ThreadPool pool(2);
    for (const NormErrorShape& shape : kNormErrorShapes) {
        for (const NormKind kind : {NormKind::layer, NormKind::rms}) {
            const NormError error =
                norm_error(pool, norm_case(shape.rows(), 2560, DType::f32, kind));
            EXPECT_GT(error.largest, 0);
            EXPECT_LT(error.largest, 4e-6);
            EXPECT_LT(error.relative, 4e-7);
        }
    }
}

}  // namespace
}  // namespace mr::ops
