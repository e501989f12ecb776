#include "core/cuda/device_turn.h"

#include <gtest/gtest.h>

#include <optional>

namespace mr::cuda {
namespace {

TEST(DeviceTurn, IsHeldByOneAndGivenBackAtItsEnd) {
    std::optional<DeviceTurn> first(std::in_place);
    DeviceTurn second;
    EXPECT_TRUE(first->take());
    EXPECT_TRUE(first->take());  // it still holds it
    EXPECT_FALSE(second.take());
    first.reset();
    EXPECT_TRUE(second.take());
}

}  // namespace
}  // namespace mr::cuda
