// Every schedule gives the bits of the synchronous one, for any number of chunks.
#include "core/cuda/testing.h"
#include "lab/streams/arrays.h"
#include "lab/streams/runner.h"
#include "lab/streams/streams.h"
#include "lab/streams/work.h"

namespace mr::streams {
namespace {

class StreamsTest : public ::testing::Test {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
};

constexpr int kIterations = 37;

// All schedules of an array, in chunks that do not divide it.
std::vector<Schedule> schedules_of(std::size_t count, int chunks, int streams) {
    const Cut cut = cut_into(count, chunks);
    std::vector<Schedule> all{depth_first(cut, streams, false),
                              depth_first(cut, streams, true),
                              breadth_first_in_rounds(cut, streams),
                              breadth_first(cut, streams),
                              stream_per_direction(cut, 1),
                              stream_per_direction(cut, 2),
                              copy_and_compute(cut)};
    for (std::size_t i = 1, plain = all.size(); i < plain; ++i) all.push_back(as_graph(all[i]));
    return all;
}

TEST_F(StreamsTest, TheHostComputesTheSameBits) {
    Arrays arrays(10'007);
    Runner(arrays, synchronous(arrays.count()), kIterations).run();
    for (std::size_t i = 0; i < arrays.count(); ++i) {
        const float wanted = worked(arrays.in(false)[i], kIterations);
        ASSERT_NO_THROW(require_same_bits(arrays.out(false) + i, &wanted, 1, "kernel")) << i;
    }
}

TEST_F(StreamsTest, AllSchedulesGiveTheSameBits) {
    for (const std::size_t count : {1u, 65u, 10'007u, 3'000'001u}) {
        Arrays arrays(count);
        Runner(arrays, synchronous(count), kIterations).run();
        arrays.expect(kIterations);
        for (const int chunks : {1, 3, 64}) {
            for (const Schedule& schedule : schedules_of(count, chunks, 3)) {
                Runner runner(arrays, schedule, kIterations);
                for (int i = 0; i < 3; ++i) {
                    arrays.poison();
                    EXPECT_GT(runner.run(), 0);
                    ASSERT_NO_THROW(arrays.require_expected(schedule.pinned, schedule.name))
                        << schedule.name << ", " << count << " floats, " << chunks << " chunks";
                }
            }
        }
    }
}

// Kernels long enough that a copy that did not wait would be noticed.
TEST_F(StreamsTest, LongKernelsAreWaitedFor) {
    constexpr int kLong = 20'000;
    Arrays arrays(1'000'003);
    Runner(arrays, synchronous(arrays.count()), kLong).run();
    arrays.expect(kLong);
    for (const Schedule& schedule : schedules_of(arrays.count(), 9, 4)) {
        arrays.poison();
        Runner(arrays, schedule, kLong).run();
        ASSERT_NO_THROW(arrays.require_expected(schedule.pinned, schedule.name)) << schedule.name;
    }
}

TEST_F(StreamsTest, AWrongResultIsAnError) {
    Arrays arrays(1000);
    Runner(arrays, synchronous(arrays.count()), kIterations).run();
    arrays.expect(kIterations);
    arrays.out(false)[777] += 1;
    EXPECT_THROW(arrays.require_expected(false, "changed"), Error);
    EXPECT_THROW(arrays.require_expected(true, "never written"), Error);
}

TEST_F(StreamsTest, TimelinesAreInOrder) {
    Arrays arrays(1'000'003);
    const Cut cut = cut_into(arrays.count(), 7);
    for (const Schedule& schedule :
         {synchronous(arrays.count()), depth_first(cut, 3, true), depth_first(cut, 3, false),
          stream_per_direction(cut, 1), as_graph(stream_per_direction(cut, 1)),
          copy_and_compute(cut)}) {
        const Timeline line = Runner(arrays, schedule, 2000, true).timeline();
        ASSERT_EQ(line.bars.size(), schedule.ops.size()) << schedule.name;
        std::vector<std::vector<Bar>> chunks(static_cast<std::size_t>(schedule.cut.chunks),
                                             std::vector<Bar>(3));
        for (const Bar& bar : line.bars) {
            EXPECT_GE(bar.begin, 0) << schedule.name;
            EXPECT_GE(bar.seconds, 0) << schedule.name;
            EXPECT_LT(bar.begin + bar.seconds, 1) << schedule.name;
            chunks[static_cast<std::size_t>(bar.index)][static_cast<std::size_t>(bar.track)] = bar;
        }
        constexpr double kClocks = 20e-6;  // between the clock of events and that of kernels
        for (const std::vector<Bar>& steps : chunks) {
            for (std::size_t i = 0; i < 2; ++i) {
                EXPECT_LE(steps[i].begin + steps[i].seconds, steps[i + 1].begin + kClocks)
                    << schedule.name << ", chunk " << steps[i].index << ", step " << i;
            }
        }
    }
}

TEST_F(StreamsTest, MeasuresAnOddArray) {
    const Report report = measure({.count = 100'003,
                                   .streams = {1, 3},
                                   .chunks = {5, 7},
                                   .repetitions = 2,
                                   .timelines = true});
    EXPECT_EQ(report.rungs.size(), 1u + 4 + 2 + 6);
    EXPECT_GE(report.copy_engines, 1);
    EXPECT_GT(report.parts.limit(), 0);
    for (const Rung& rung : report.rungs) {
        EXPECT_GT(rung.seconds, 0) << rung.schedule.name;
        EXPECT_LE(rung.best, rung.seconds);
        EXPECT_EQ(rung.timeline.bars.size(), rung.schedule.ops.size());
    }
    ASSERT_EQ(report.priorities.size(), 3u);
    EXPECT_EQ(report.priorities[0].long_seconds, 0);
    for (const Latency& latency : report.priorities) EXPECT_GT(latency.seconds, 0) << latency.name;
    EXPECT_EQ(report.priorities[1].timeline.bars.size(), 2u);
}

}  // namespace
}  // namespace mr::streams
