#include "decode/piece_budget.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace mr::decode {
namespace {

// A machine whose pass takes `step` and `token` seconds for each token of a prompt. Two passes run
// ahead of what is known.
double run(PieceBudget& budget, double step, double token, int passes,
           int prompts_until = 1 << 30) {
    std::deque<double> times;
    double longest = 0;
    for (int i = 0; i < passes; ++i) {
        const std::int64_t prompt = i < prompts_until ? budget.tokens(8) : 0;
        times.push_back(step + token * static_cast<double>(prompt));
        double ended = 0;
        if (times.size() > 2) {
            ended = times.front();
            times.pop_front();
        }
        budget.launched(8, prompt, times.size(), ended);
        if (i > passes / 2) longest = std::max(longest, ended);
    }
    return longest;
}

TEST(PieceBudget, KeepsPassesWithinTwiceAndAHalf) {
    for (const double token : {1e-5, 3e-5, 7e-5}) {
        PieceBudget budget(256, 64, 2048);
        run(budget, 4e-3, token, 20, 0);  // rows that only decode: the time of such a pass is known
        const double longest = run(budget, 4e-3, token, 400);
        EXPECT_LT(longest, 2.5 * 4e-3) << token;
        std::int64_t tokens = budget.tokens(8);
        if (tokens == 0) {  // the pass that is looked at
            budget.launched(8, 0, 0, 4e-3);
            tokens = budget.tokens(8);
        }
        // ... and no shorter than need be.
        EXPECT_GT(token * static_cast<double>(tokens), 1.1 * 4e-3) << token;
    }
}

TEST(PieceBudget, NeverAsksForLessThanThePieceOrMoreThanAPass) {
    PieceBudget slow(256, 64, 512);
    run(slow, 1e-3, 1e-3, 20, 0);
    run(slow, 1e-3, 1e-3, 200);
    EXPECT_GE(slow.tokens(1), 0);
    EXPECT_LE(slow.tokens(1), 64);
    PieceBudget quick(256, 64, 512);
    run(quick, 1e-3, 1e-7, 20, 0);
    run(quick, 1e-3, 1e-7, 210);
    EXPECT_EQ(quick.tokens(1), 512);
    EXPECT_EQ(quick.tokens(0), 512);  // nothing decodes: a whole pass
}

TEST(PieceBudget, LooksNowAndThenAtAPassWithoutPrompts) {
    PieceBudget budget(256, 64, 2048);
    int without = 0;
    for (int i = 0; i < 170; ++i) {
        const std::int64_t prompt = budget.tokens(4);
        without += prompt == 0;
        budget.launched(4, prompt, 0, 1e-3);
    }
    EXPECT_EQ(without, 10);
}

}  // namespace
}  // namespace mr::decode
