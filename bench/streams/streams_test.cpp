#include "bench/streams/streams.h"

#include <gtest/gtest.h>

#include "bench/streams/page.h"

namespace mr::streams {
namespace {

TEST(Streams, OnlyPassesBesideTheOtherDirectionCount) {
    EXPECT_DOUBLE_EQ(seconds_a_pass({1, 2, 3, 4}, 4), 1);
    // Two passes at half the rate while both ran, then two at the full rate.
    EXPECT_DOUBLE_EQ(seconds_a_pass({2, 4, 5, 6}, 4), 2);
    EXPECT_DOUBLE_EQ(seconds_a_pass({2, 4, 5, 6}, 4.5), 2);
    EXPECT_DOUBLE_EQ(seconds_a_pass({3, 4}, 1), 3);
}

TEST(Streams, Median) {
    EXPECT_EQ(median({3, 1, 2}), 2);
    EXPECT_EQ(median({5}), 5);
    EXPECT_EQ(median({}), 0);
}

Report report() {
    Report r;
    r.gpu = "<GPU>";
    r.copy_engines = 3;
    r.iterations = 7;
    r.parts = {.copy_in = 1e-3,
               .compute = 1.1e-3,
               .copy_out = 1e-3,
               .copy_in_streams = 1e-3,
               .duplex_in = 1.2e-3,
               .duplex_out = 1.3e-3,
               .duplex = {{"copy in", "copy out"}, {{0, 0, 0, 1e-3}, {1, 0, 0, 1e-3}}}};
    const Timeline line{{"copy in", "compute", "copy out"},
                        {{0, 0, 0, 1e-3}, {1, 0, 1e-3, 1e-3}, {2, 0, 2e-3, 1e-3}}};
    r.rungs.push_back({synchronous(1000), 4e-3, 3.9e-3, line});
    r.rungs.push_back({stream_per_direction(cut_into(1000, 4), 1), 1.6e-3, 1.5e-3, line});
    r.priorities.push_back({"alone", 1e-5, 0, {{"long job", "short job"}, {{1, 0, 0, 1e-5}}}});
    return r;
}

TEST(Streams, TheLimitIsTheLongestPartWhileBothDirectionsRun) {
    const Report r = report();
    EXPECT_DOUBLE_EQ(r.parts.limit(), 1.3e-3);
    EXPECT_EQ(&r.best(), &r.rungs[1]);
    EXPECT_DOUBLE_EQ(r.speed_up(r.best()), 2.5);
    EXPECT_DOUBLE_EQ(r.of_limit(r.best()), 1.3 / 1.6);
    EXPECT_EQ(host_plan({.count = 100}).total(), 2000u);
}

TEST(Streams, ThePageNeedsNothingButItself) {
    const std::string html = html_page(report());
    for (const char* part : {"&lt;GPU&gt;", "a stream per direction", "2.50x", "2.52x", "81.2%",
                             "copy in 0: 1.00 ms at 0.00 us", "short job", "</html>"}) {
        EXPECT_NE(html.find(part), std::string::npos) << part;
    }
    for (const char* part : {"<GPU>", "http:", "https:", "src=", "href=", "<script"}) {
        EXPECT_EQ(html.find(part), std::string::npos) << part;
    }
    std::size_t svgs = 0;
    for (std::size_t at = 0; (at = html.find("<svg", at)) != std::string::npos; ++at) ++svgs;
    EXPECT_EQ(svgs, 4u);  // two rungs, the duplex copies, a priority
}

}  // namespace
}  // namespace mr::streams
