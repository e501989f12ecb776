#include "core/nearest.h"

#include <gtest/gtest.h>

namespace mr {
namespace {

TEST(Nearest, NamesTheOneThatWasMeant) {
    const std::vector<std::string> words = {"temperature", "top_p", "seed", "stop"};
    EXPECT_EQ(nearest("temprature", words), "temperature");
    EXPECT_EQ(nearest("seeds", words), "seed");
    EXPECT_EQ(nearest("stpo", words), "stop");
    EXPECT_EQ(nearest("stop", words), "stop");
    // The first of equally near ones.
    EXPECT_EQ(nearest("ab", {"abc", "abd"}), "abc");
}

TEST(Nearest, SaysNothingWhereNoneIsNear) {
    EXPECT_EQ(nearest("max_output_tokens", {"seed", "stop"}), "");
    EXPECT_EQ(nearest("anything", {}), "");
}

}  // namespace
}  // namespace mr
