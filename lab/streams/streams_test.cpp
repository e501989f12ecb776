#include "lab/streams/streams.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "lab/streams/page.h"
#include "page_data.h"

namespace mr::streams {
namespace {

TEST(Streams, OnlyPassesBesideTheOtherDirectionCount) {
    EXPECT_DOUBLE_EQ(seconds_a_pass({1, 2, 3, 4}, 4), 1);
    // Two passes at half the rate while both ran, then two at the full rate.
    EXPECT_DOUBLE_EQ(seconds_a_pass({2, 4, 5, 6}, 4), 2);
    EXPECT_DOUBLE_EQ(seconds_a_pass({2, 4, 5, 6}, 4.5), 2);
    EXPECT_DOUBLE_EQ(seconds_a_pass({3, 4}, 1), 3);
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

TEST(Streams, ThePageHasEveryRung) {
    const nlohmann::json data = test::checked_page(report_page(report()).html());
    EXPECT_EQ(data["title"], "Streams on <GPU>");
    const std::string fastest = data["lines"][1];
    for (const char* part : {"a stream per direction", "2.50x", "2.52x", "81.2%"}) {
        EXPECT_NE(fastest.find(part), std::string::npos) << part << " in " << fastest;
    }
    // Two rungs, the duplex copies, a priority.
    EXPECT_EQ(test::sections_of(data, "timeline"), 4u);
    const nlohmann::json rungs = test::section_of(data, "table", "Rungs");
    ASSERT_EQ(rungs["rows"].size(), 2u);
    EXPECT_EQ(rungs["rows"][0]["sum"], false);
    EXPECT_EQ(rungs["rows"][1]["sum"], true);  // the fastest
    EXPECT_DOUBLE_EQ(rungs["rows"][1]["cells"][5].get<double>(), 2.5);
    EXPECT_EQ(test::section_of(data, "table", "Parts")["rows"].size(), 7u);
    const nlohmann::json first = test::section_of(data, "timeline");
    ASSERT_EQ(first["tracks"].size(), 3u);
    EXPECT_EQ(first["tracks"][2]["name"], "copy out");
    EXPECT_DOUBLE_EQ(first["tracks"][2]["bars"][0][1].get<double>(), 2e-3);
    EXPECT_DOUBLE_EQ(first["seconds"].get<double>(), 3e-3);
    if (const char* out = std::getenv("MILLRACE_REPORT_OUT")) {  // to look at it
        observe::write_page(out, report_page(report()));
    }
}

}  // namespace
}  // namespace mr::streams
