#include "lab/streams/schedule.h"

#include <gtest/gtest.h>

namespace mr::streams {
namespace {

std::vector<Schedule> all_of(std::size_t count, int chunks, int streams) {
    const Cut cut = cut_into(count, chunks);
    return {synchronous(count),
            depth_first(cut, streams, true),
            depth_first(cut, streams, false),
            breadth_first_in_rounds(cut, streams),
            breadth_first(cut, streams),
            stream_per_direction(cut, 1),
            stream_per_direction(cut, 2),
            copy_and_compute(cut),
            as_graph(stream_per_direction(cut, 1))};
}

TEST(StreamsSchedule, EveryAccessIsOrderedByAStreamOrAnEvent) {
    for (const std::size_t count : {1u, 63u, 64u, 1000u, 100'003u}) {
        for (const int chunks : {1, 2, 3, 7, 64}) {
            for (const int streams : {1, 2, 3, 16}) {
                for (const Schedule& s : all_of(count, chunks, streams)) {
                    const auto fault = fault_in(s);
                    EXPECT_FALSE(fault) << s.name << ": " << fault->what;
                }
            }
        }
    }
}

TEST(StreamsSchedule, ChunksCoverTheArray) {
    for (const std::size_t count : {1u, 63u, 65u, 1000u, 100'003u}) {
        for (const int wanted : {1, 2, 7, 64, 5000}) {
            const Cut cut = cut_into(count, wanted);
            EXPECT_LE(cut.chunks, wanted);
            std::size_t sum = 0;
            for (int i = 0; i < cut.chunks; ++i) {
                EXPECT_EQ(cut.begin(i), sum);
                EXPECT_GT(cut.size(i), 0u);
                sum += cut.size(i);
            }
            EXPECT_EQ(sum, count);
        }
    }
    EXPECT_EQ(cut_into(1 << 20, 16).chunks, 16);
}

// The check finds a missing wait.
TEST(StreamsSchedule, AWaitThatIsMissingIsSeen) {
    for (Schedule s :
         {stream_per_direction(cut_into(1000, 5), 2), copy_and_compute(cut_into(1000, 5))}) {
        for (Op& op : s.ops) {
            const std::vector<int> waits = std::exchange(op.waits, {});
            if (waits.empty()) continue;
            ASSERT_TRUE(fault_in(s));
            EXPECT_NE(fault_in(s)->what.find("does not wait for"), std::string::npos);
            op.waits = waits;
        }
        EXPECT_FALSE(fault_in(s));
    }
}

TEST(StreamsSchedule, ASlotThatIsTakenTooEarlyIsSeen) {
    Schedule s = copy_and_compute(cut_into(1000, 5));
    std::swap(s.ops[3], s.ops[4]);  // the next copy in, before the copy out of what was there
    s.ops[3].waits.clear();
    ASSERT_TRUE(fault_in(s));
    Schedule lost = depth_first(cut_into(1000, 5), 2, true);
    lost.ops.pop_back();
    ASSERT_TRUE(fault_in(lost));
    EXPECT_EQ(fault_in(lost)->first, -1);
    Schedule wild = depth_first(cut_into(1000, 5), 2, true);
    wild.ops[4].waits = {9};
    EXPECT_TRUE(fault_in(wild));
}

// The cost of breadth-first: all copies in of a stream precede its first kernel.
TEST(StreamsSchedule, OrderOfIssue) {
    const Cut cut = cut_into(1 << 16, 8);
    const Schedule depth = depth_first(cut, 4, true), rounds = breadth_first_in_rounds(cut, 4),
                   all = breadth_first(cut, 4);
    const auto of_stream = [](const Schedule& s, int stream) {
        std::vector<int> steps;
        for (const Op& op : s.ops) {
            if (op.stream == stream) steps.push_back(static_cast<int>(op.step));
        }
        return steps;
    };
    EXPECT_EQ(of_stream(depth, 1), (std::vector{0, 1, 2, 0, 1, 2}));
    EXPECT_EQ(of_stream(rounds, 1), of_stream(depth, 1));
    EXPECT_EQ(of_stream(all, 1), (std::vector{0, 0, 1, 1, 2, 2}));
    EXPECT_EQ(copy_and_compute(cut).slots, 2);
}

}  // namespace
}  // namespace mr::streams
