#include "core/median.h"

#include <gtest/gtest.h>

namespace mr {
namespace {

TEST(Median, IsInTheMiddle) {
    EXPECT_EQ(median({3, 1, 2}), 2);
    EXPECT_EQ(median({3, 1, 2, 10}), 2.5);
    EXPECT_EQ(median({5}), 5);
    EXPECT_EQ(median({}), 0);
}

}  // namespace
}  // namespace mr
