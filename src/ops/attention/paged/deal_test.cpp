// Every part of the keys is assigned once, and all teams get as equal a number of steps as
// possible.
#include "ops/attention/paged/deal.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace mr::cuda::attn {
namespace {

// As a warp computes it.
int shorts_before(const Deal& deal, int t) {
    int before = 0;
    if (deal.few()) {
        before = deal.few_before(t);
    } else {
        for (int lane = 0; lane < Deal::kLanes; ++lane) {
            before = std::max(before, deal.missing(t - std::min({lane, deal.back, t})));
        }
    }
    return std::min(before, deal.shorts);
}

// The most steps of any team.
int most_of(int longs, int shorts, int teams) {
    const Deal deal(longs * Deal::kLongSteps, longs * Deal::kLongSteps + shorts, teams);
    EXPECT_EQ(deal.longs_before(0), 0);
    EXPECT_EQ(deal.longs_before(teams), longs);
    EXPECT_EQ(shorts_before(deal, 0), 0);
    EXPECT_EQ(shorts_before(deal, teams), shorts) << longs << ' ' << shorts << ' ' << teams;
    int most = 0;
    for (int t = 0; t < teams; ++t) {
        const int long_parts = deal.longs_before(t + 1) - deal.longs_before(t);
        const int short_parts = shorts_before(deal, t + 1) - shorts_before(deal, t);
        EXPECT_GE(long_parts, 0);
        EXPECT_GE(short_parts, 0) << longs << ' ' << shorts << ' ' << teams << " team " << t;
        most = std::max(most, long_parts * Deal::kLongSteps + short_parts);
    }
    return most;
}

TEST(AttentionDeal, EveryPartOnceAndNobodyHasMuchMore) {
    for (const int teams : {1, 3, 18, 342, 396}) {
        for (const int longs : {0, 1, 2, 17, 131, 395, 396, 397, 544, 791, 1600, 4099}) {
            for (const int shorts : {0, 1, 2, 31, 32, 64, 66, 67, 128, 1000, 1024}) {
                const int steps = longs * Deal::kLongSteps + shorts;
                const int mean = (steps + teams - 1) / teams;
                const int whole = (longs + teams - 1) / teams * Deal::kLongSteps;
                ASSERT_LE(most_of(longs, shorts, teams),
                          std::max(mean + Deal::kLongSteps, whole + 1))
                    << longs << " long parts, " << shorts << " short ones, " << teams << " teams";
                if (HasFailure()) return;
            }
        }
    }
}

// 32 heads with a window of 4,096 keys, which touches 17 long parts, and four sinks: one short part
// per head, which goes to teams with one long part, since others have two.
TEST(AttentionDeal, FewShortPartsGoToLightTeams) {
    EXPECT_EQ(most_of(17 * 32, 0, 396), 8);
    EXPECT_EQ(most_of(17 * 32, 32, 396), 8);
    EXPECT_EQ(most_of(16 * 32, 32, 396), 8);
    // One team has one long part less: it cannot take all short ones.
    EXPECT_EQ(most_of(395, 32, 396), 5);
    EXPECT_EQ(most_of(395, 4, 396), 4);
}

}  // namespace
}  // namespace mr::cuda::attn
