#include "serve/turns.h"

#include <gtest/gtest.h>

#include <new>

namespace mr::serve {
namespace {

std::string taken(Turns<int>& turns) {
    std::string out;
    while (const auto one = turns.take()) out += std::to_string(*one);
    return out;
}

TEST(Turns, EachClientInItsOwnOrder) {
    Turns<int> turns;
    EXPECT_TRUE(turns.empty());
    turns.put("many", {1, 2});
    turns.put("none", {});
    turns.put("many", {3, 4});
    turns.put("few", {5});
    turns.put("some", {6, 7});
    EXPECT_EQ(turns.size(), 7U);
    EXPECT_EQ(turns.of("many"), 4U);
    EXPECT_EQ(turns.of("none"), 0U);
    EXPECT_EQ(taken(turns), "1562734");
    EXPECT_TRUE(turns.empty());
    EXPECT_EQ(turns.of("many"), 0U);
}

TEST(Turns, OneThatComesLaterWaitsForOneOfEachOther) {
    Turns<int> turns;
    turns.put("many", {1, 2, 3, 4});
    EXPECT_EQ(turns.take(), 1);
    turns.put("few", {5});
    EXPECT_EQ(turns.take(), 2);
    EXPECT_EQ(turns.take(), 5);
    turns.put("few", {6});  // again, behind the others
    EXPECT_EQ(taken(turns), "364");
}

// A client that has nothing of what is asked for keeps its turn.
TEST(Turns, OnlySomeAreTaken) {
    Turns<int> turns;
    turns.put("odd", {1, 3});
    turns.put("both", {5, 2, 4});
    const auto even = [](int i) { return i % 2 == 0; };
    EXPECT_EQ(turns.take(even), 2);
    EXPECT_EQ(turns.take(even), 4);
    EXPECT_EQ(turns.take(even), std::nullopt);
    EXPECT_EQ(turns.size(), 3U);
    EXPECT_EQ(taken(turns), "153");
}

TEST(Turns, ErasedOnesHaveNoTurn) {
    Turns<int> turns;
    turns.put("a", {1, 2, 3, 4});
    turns.put("b", {5});
    EXPECT_EQ(turns.erase_if([](int i) { return i % 2 == 1; }), 3U);
    EXPECT_EQ(turns.erase_if([](int) { return false; }), 0U);
    EXPECT_EQ(turns.size(), 2U);
    EXPECT_EQ(turns.of("b"), 0U);
    EXPECT_EQ(taken(turns), "24");
    turns.put("a", {4});
    EXPECT_EQ(turns.erase_if([](int) { return true; }), 1U);
    EXPECT_TRUE(turns.empty());
}

// What was erased before is gone, and nothing else.
TEST(Turns, APredicateMayThrowWhileErasing) {
    for (int stop = 1; stop <= 7; ++stop) {
        Turns<std::string> turns;
        turns.put("a", {"1", "2", "3"});
        turns.put("b", {"4"});
        turns.put("c", {"5", "6"});
        const auto odd = [&](const std::string& text) {
            if (std::stoi(text) == stop) throw std::bad_alloc();
            return std::stoi(text) % 2 == 1;
        };
        std::size_t left = 0;
        if (stop <= 6) {
            EXPECT_THROW(turns.erase_if(odd), std::bad_alloc);
            left = 6 - static_cast<std::size_t>(stop) / 2;
        } else {
            EXPECT_EQ(turns.erase_if(odd), 3U);
            left = 3;
        }
        EXPECT_EQ(turns.size(), left) << stop;
        std::string all;
        while (const auto one = turns.take()) all += *one;
        EXPECT_EQ(all.size(), left) << stop << all;
        for (const char c : {'2', '4', '6'}) EXPECT_NE(all.find(c), std::string::npos) << stop << c;
    }
}

// From the longest queue that can give; of others nothing.
TEST(Turns, TheLatestOfTheLongest) {
    Turns<int> turns;
    turns.put("a", {1, 2, 3});
    turns.put("b", {4, 5, 6, 7});
    turns.put("c", {8, 9});
    const auto latest = [&](auto gives) {
        std::string out;
        for (const int one : turns.take_latest(gives)) out += std::to_string(one);
        return out;
    };
    const auto two = [](const auto&) { return std::size_t{2}; };
    EXPECT_EQ(latest(two), "67");
    EXPECT_EQ(latest([](const auto& queue) { return std::size_t{queue.back() == 9 ? 1U : 0U}; }),
              "9");
    EXPECT_EQ(latest([](const auto&) { return std::size_t{0}; }), "");
    EXPECT_EQ(latest(two), "23");
    EXPECT_EQ(turns.size(), 4U);
    EXPECT_EQ(latest(two), "45");  // all that it has
    EXPECT_EQ(turns.of("b"), 0U);
    EXPECT_EQ(taken(turns), "18");
}

}  // namespace
}  // namespace mr::serve
