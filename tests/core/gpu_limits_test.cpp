// MILLRACE_GPU_LIMITS: a smaller GPU than the one at hand.
#include <gtest/gtest.h>

#include "core/cuda/limits.h"
#include "core/error.h"

namespace mr::cuda {
namespace {

constexpr Limits kLarge{232448, 132};

TEST(GpuLimits, LowerWhatIsNamed) {
    EXPECT_EQ(lowered(kLarge, "").shared_per_block, 232448u);
    EXPECT_EQ(lowered(kLarge, "").multiprocessors, 132);
    EXPECT_EQ(lowered(kLarge, "shared=65536").shared_per_block, 65536u);
    EXPECT_EQ(lowered(kLarge, "shared=65536").multiprocessors, 132);
    const Limits both = lowered(kLarge, "multiprocessors=40,shared=101376");
    EXPECT_EQ(both.shared_per_block, 101376u);
    EXPECT_EQ(both.multiprocessors, 40);
}

TEST(GpuLimits, NeverGiveMoreThanTheGpuHas) {
    const Limits same = lowered(kLarge, "shared=4000000000,multiprocessors=1000");
    EXPECT_EQ(same.shared_per_block, kLarge.shared_per_block);
    EXPECT_EQ(same.multiprocessors, kLarge.multiprocessors);
}

TEST(GpuLimits, RefuseWhatTheyDoNotKnow) {
    for (const char* wrong : {"shared", "shared=", "shared=0", "shared=-1", "shared=64K", "=5",
                              "shared= 5", "memory=1", "shared=99999999999", ",", "shared=1,,"}) {
        EXPECT_THROW(lowered(kLarge, wrong), Error) << wrong;
    }
}

}  // namespace
}  // namespace mr::cuda
