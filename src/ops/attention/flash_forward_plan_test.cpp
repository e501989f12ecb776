// Every tile of queries is taken exactly once, whatever the sections and however many blocks.
#include "ops/attention/flash_forward_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace mr::cuda::flash {
namespace {

TEST(ForwardPlan, TakesEveryTileOnce) {
    for (const int row_tiles : {1, 2, 3, 8, 17}) {
        for (const int pairs : {1, 2, 5, 33}) {
            for (const int section : {1, 2, 4, 33}) {
                ForwardPlan plan;
                plan.row_tiles = row_tiles, plan.pairs = pairs;
                plan.section = std::min(section, pairs);
                std::vector<int> taken(static_cast<std::size_t>(row_tiles * pairs), 0);
                for (int u = 0; u < plan.units(); ++u) {
                    for (int half = 0; half < 2; ++half) {
                        const auto [pair, row] = plan.tile(u, half);
                        if (row < 0) continue;
                        ASSERT_LT(row, row_tiles);
                        ASSERT_TRUE(pair >= 0 && pair < pairs);
                        ++taken[static_cast<std::size_t>(pair * row_tiles + row)];
                    }
                }
                EXPECT_EQ(taken, std::vector<int>(taken.size(), 1))
                    << row_tiles << " tiles, " << pairs << " pairs, section " << section;
            }
        }
    }
}

// With a diagonal, a tile of rows r has about r + 1 tiles of keys: two of a unit have as many as
// any.
TEST(ForwardPlan, UnitsAreAsLong) {
    ForwardPlan plan;
    plan.row_tiles = 16, plan.pairs = 3, plan.section = 2;
    for (int u = 0; u < plan.units(); ++u) {
        EXPECT_EQ(plan.tile(u, 0).row + plan.tile(u, 1).row, 15);
        EXPECT_EQ(plan.tile(u, 0).pair, plan.tile(u, 1).pair);
    }
}

TEST(ForwardPlan, SectionsAreWhatFitsIntoL2) {
    Problem p;
    p.sequences = 2, p.heads = 8, p.group = 2, p.head_dim = 128;
    p.max_queries = 1000, p.max_keys = 4096, p.scale = 1;
    const ForwardPlan plan = plan_forward(p, 128, 24u << 20, nullptr);
    EXPECT_EQ(plan.row_tiles, 8);
    EXPECT_EQ(plan.pairs, 16);
    EXPECT_EQ(plan.section, 8);  // 8 MiB, of 1 MiB each
    EXPECT_EQ(plan_forward(p, 128, 1, nullptr).section, 1);
    EXPECT_EQ(plan_forward(p, 128, std::size_t{1} << 40, nullptr).section, 16);
}

}  // namespace
}  // namespace mr::cuda::flash
