#include "core/recent_map.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace mr {
namespace {

TEST(RecentMap, KeepsTheValuesThatWereUsedLast) {
    RecentMap<int, std::string> map(3);
    EXPECT_EQ(map.find(1), nullptr);
    map.put(1, "one");
    map.put(2, "two");
    EXPECT_FALSE(map.full());
    map.put(3, "three");
    EXPECT_TRUE(map.full());
    ASSERT_NE(map.find(1), nullptr);  // 2 is now the one unused for longest
    EXPECT_EQ(map.put(4, "four"), "four");
    EXPECT_EQ(map.size(), 3u);
    EXPECT_EQ(map.find(2), nullptr);
    EXPECT_EQ(*map.find(1), "one");
    EXPECT_EQ(*map.find(3), "three");
    EXPECT_EQ(*map.find(4), "four");
}

TEST(RecentMap, AKeyThatIsThereDropsNoOther) {
    RecentMap<int, std::string> map(2);
    map.put(1, "one");
    map.put(2, "two");
    map.put(1, "uno");
    EXPECT_EQ(map.size(), 2u);
    EXPECT_EQ(*map.find(1), "uno");
    EXPECT_EQ(*map.find(2), "two");
}

TEST(RecentMap, WhatIsDroppedIsFreed) {
    RecentMap<int, std::shared_ptr<int>> map(1);
    const auto value = std::make_shared<int>(7);
    map.put(1, value);
    EXPECT_EQ(value.use_count(), 2);
    map.put(2, nullptr);
    EXPECT_EQ(value.use_count(), 1);
}

}  // namespace
}  // namespace mr
