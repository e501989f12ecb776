#include "serve/turns.h"

#include <gtest/gtest.h>

namespace mr::serve {
namespace {

std::string taken(Turns<int>& turns) {
    std::string out;
    while (!turns.empty()) out += std::to_string(turns.take());
    return out;
}

TEST(Turns, EachClientInItsOwnOrder) {
    Turns<int> turns;
    EXPECT_TRUE(turns.empty());
    for (const int i : {1, 2, 3, 4}) turns.put("many", i);
    turns.put("few", 5);
    turns.put("some", 6);
    turns.put("some", 7);
    EXPECT_EQ(taken(turns), "1562734");
}

TEST(Turns, OneThatComesLaterWaitsForOneOfEachOther) {
    Turns<int> turns;
    for (const int i : {1, 2, 3, 4}) turns.put("many", i);
    EXPECT_EQ(turns.take(), 1);
    turns.put("few", 5);
    EXPECT_EQ(turns.take(), 2);
    EXPECT_EQ(turns.take(), 5);
    turns.put("few", 6);  // again, behind the others
    EXPECT_EQ(taken(turns), "364");
}

TEST(Turns, ErasedOnesHaveNoTurn) {
    Turns<int> turns;
    for (const int i : {1, 2}) turns.put("a", i);
    turns.put("b", 3);
    turns.erase(1);
    turns.erase(3);
    turns.erase(9);
    EXPECT_EQ(taken(turns), "2");
    turns.put("a", 4);
    turns.clear();
    EXPECT_TRUE(turns.empty());
}

}  // namespace
}  // namespace mr::serve
