// The memory of a CPU that an engine may take if nothing says how much.
#include <gtest/gtest.h>

#include "model/engine.h"

namespace mr::model {
namespace {

TEST(RoomBesideOthers, IsThreeQuartersOfWhatIsFree) {
    EXPECT_EQ(room_beside_others(1000, 400, 0), 300u);
    EXPECT_EQ(room_beside_others(1000, 1000, 0), 750u);
    EXPECT_EQ(room_beside_others(1000, 3, 0), 3u);
}

TEST(RoomBesideOthers, CountsWeightsThatAreInMemoryAlready) {
    EXPECT_EQ(room_beside_others(1000, 400, 200), 500u);
    EXPECT_EQ(room_beside_others(1000, 40, 900), 930u);
}

TEST(RoomBesideOthers, IsNeverMoreThanThereIs) {
    EXPECT_EQ(room_beside_others(1000, 1000, 500), 1000u);
    EXPECT_EQ(room_beside_others(1000, 0, 200), 1000u) << "nothing says what is free";
}

}  // namespace
}  // namespace mr::model
