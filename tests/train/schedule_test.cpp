// Pipelines in theory: stages, orders, bubbles.
#include "train/parallel/schedule.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace mr::train {
namespace {

std::string words(const std::vector<PipeOp>& ops) {
    std::string out;
    for (const PipeOp& op : ops) {
        if (!out.empty()) out += ' ';
        out += (op.forward ? 'F' : 'B') + std::to_string(op.pass);
    }
    return out;
}

TEST(Schedule, IsTheOneComputedByHand) {
    const auto one = PipeSchedule::one_f_one_b, all = PipeSchedule::gpipe;
    EXPECT_EQ(words(stage_ops(one, 0, 1, 3)), "F0 B0 F1 B1 F2 B2");
    EXPECT_EQ(words(stage_ops(one, 0, 4, 4)), "F0 F1 F2 F3 B0 B1 B2 B3");
    EXPECT_EQ(words(stage_ops(one, 0, 3, 4)), "F0 F1 F2 B0 F3 B1 B2 B3");
    EXPECT_EQ(words(stage_ops(one, 1, 3, 4)), "F0 F1 B0 F2 B1 F3 B2 B3");
    EXPECT_EQ(words(stage_ops(one, 2, 3, 4)), "F0 B0 F1 B1 F2 B2 F3 B3");
    EXPECT_EQ(words(stage_ops(one, 0, 4, 2)), "F0 F1 B0 B1");  // fewer than stages
    EXPECT_EQ(words(stage_ops(one, 0, 2, 1)), "F0 B0");
    for (const int stage : {0, 1}) EXPECT_EQ(words(stage_ops(all, stage, 2, 2)), "F0 F1 B0 B1");
}

TEST(Schedule, HoldsAsManyMicroBatchesAsItSays) {
    for (const PipeSchedule schedule : {PipeSchedule::one_f_one_b, PipeSchedule::gpipe}) {
        for (const int stages : {1, 2, 3, 4, 7}) {
            for (const int passes : {1, 2, 4, 16}) {
                for (int stage = 0; stage < stages; ++stage) {
                    int here = 0, most = 0, forward = 0, backward = 0;
                    for (const PipeOp& op : stage_ops(schedule, stage, stages, passes)) {
                        EXPECT_EQ(op.pass, op.forward ? forward++ : backward++);
                        most = std::max(most, here += op.forward ? 1 : -1);
                    }
                    EXPECT_EQ(forward, passes);
                    EXPECT_EQ(backward, passes);
                    EXPECT_EQ(most, on_their_way(schedule, stage, stages, passes));
                }
                // A backward may take twice as long.
                for (const double back : {1.0, 2.0}) {
                    EXPECT_NEAR(played_bubble(schedule, stages, passes, 1, back),
                                expected_bubble(stages, passes), 1e-12);
                }
            }
        }
    }
    EXPECT_DOUBLE_EQ(expected_bubble(4, 16), 3.0 / 19);
}

TEST(Schedule, HasNames) {
    EXPECT_EQ(schedule_of("1f1b"), PipeSchedule::one_f_one_b);
    EXPECT_EQ(schedule_of("gpipe"), PipeSchedule::gpipe);
    EXPECT_FALSE(schedule_of("cosine"));
}

TEST(Schedule, StagesAreBalanced) {
    EXPECT_EQ(balanced_layers(5, 1, 1, 9), (std::vector{5}));
    EXPECT_EQ(balanced_layers(8, 4, 1, 0), (std::vector{2, 2, 2, 2}));
    EXPECT_EQ(balanced_layers(8, 4, 1, 1.5), (std::vector{2, 2, 3, 1}));
    EXPECT_EQ(balanced_layers(4, 4, 1, 100), (std::vector{1, 1, 1, 1}));
    EXPECT_EQ(balanced_layers(7, 2, 1, 3), (std::vector{5, 2}));
}

TEST(Schedule, RanksOfAStageAreNeighbours) {
    const RankGrid grid{.replicas = 2, .stages = 3};
    for (int rank = 0; rank < 6; ++rank) {
        EXPECT_EQ(grid.rank(grid.replica(rank), grid.stage(rank)), rank);
    }
    EXPECT_EQ(grid.same_stage(3), (std::vector{2, 3}));
    EXPECT_EQ(grid.same_replica(3), (std::vector{1, 3, 5}));
}

}  // namespace
}  // namespace mr::train
