#include "observe/run_page.h"

#include <gtest/gtest.h>

#include <string>

#include "page_data.h"
#include "temp_folder.h"

namespace mr::observe {
namespace {

using Json = nlohmann::json;

const std::string kHostile =
    "</script><!--<script>alert(1)</script><img src=x onerror='alert(2)'>\"&\xff";

struct Example {
    std::vector<HostSpan> spans = {{"load", 0, 0.5}, {"decode", 0.9, 0.1}};
    std::vector<Step> steps = {{"decode",
                                1,
                                0.9,
                                0.1,
                                {{OpKind::linear, "qkv", 0, {1, 1000, 24, 2000, 0.02, 1500}, 0.0},
                                 {OpKind::lm_head, "head", -1, {1, 500, 0, 900, 0.01}, 0.03}},
                                0,
                                4}};
    ShownRun run() const {
        ShownRun run{
            {"model.gguf", "cpu"}, "10 tok/s", "Once", "upon a time", spans, steps, {}, {}};
        run.phases = {make_roofline(steps, "decode", {.read = 1e6, .f32 = 1e7, .int8 = 4e7})};
        run.plan.add("KV cache", 1 << 20);
        return run;
    }
};

TEST(RunPage, HasTheTimelineTheStagesTheCeilingsAndThePlan) {
    const Json data = test::checked_page(run_page(Example().run()).html());
    EXPECT_EQ(data["title"], "model.gguf");
    EXPECT_EQ(data["lines"], Json::parse(R"(["10 tok/s", "device: cpu"])"));
    const Json timeline = test::section_of(data, "timeline");
    ASSERT_EQ(timeline["tracks"].size(), 2u);
    EXPECT_EQ(timeline["tracks"][0]["bars"].size(), 2u);
    ASSERT_EQ(timeline["tracks"][1]["bars"].size(), 2u);
    const Json head = timeline["tracks"][1]["bars"][1];
    EXPECT_EQ(timeline["names"][head[0].get<std::size_t>()], "head");
    EXPECT_NEAR(head[1].get<double>(), 0.93, 1e-9);
    EXPECT_NEAR(head[2].get<double>(), 0.01, 1e-9);
    EXPECT_EQ(head[3], -1);
    EXPECT_EQ(head[4], 500);

    const Json roofline = test::section_of(data, "roofline");
    EXPECT_EQ(roofline["phase"], "decode");
    EXPECT_EQ(roofline["counts"], "1 step, 1 token");
    ASSERT_EQ(roofline["stages"].size(), 2u);
    EXPECT_EQ(roofline["stages"][0]["int8_flops"], 1500);
    EXPECT_EQ(roofline["device_to_host_bytes_per_token"], 4);
    EXPECT_DOUBLE_EQ(roofline["ceilings"]["int8_gflop_s"].get<double>(), 0.04);

    const Json ceilings = test::section_of(data, "table", "Ceilings measured on this machine");
    EXPECT_EQ(ceilings["rows"].size(), 3u);
    const Json plan = test::section_of(data, "table", "Memory plan");
    EXPECT_EQ(plan["rows"][0]["cells"], Json::parse(R"(["KV cache", 1048576])"));
    EXPECT_EQ(plan["rows"][1]["sum"], true);
    EXPECT_EQ(test::section_of(data, "texts")["parts"][1]["text"], "upon a time");
}

TEST(RunPage, HostileStringsStayText) {
    Example example;
    example.spans[0].name = kHostile;
    example.steps[0].stages[0].name = kHostile.c_str();
    ShownRun run = example.run();
    run.names = {kHostile, kHostile};
    run.summary = run.prompt = run.text = kHostile;
    run.plan.add(kHostile, 1);
    const std::string html = run_page(run).html();
    const std::string plain = run_page(Example().run()).html();
    for (const char* part : {"<script", "</script", "<!--", "<img", "\xff"}) {
        EXPECT_EQ(test::count(html, part), test::count(plain, part)) << part;
    }
    const Json data = test::checked_page(html);
    EXPECT_EQ(data["title"], kHostile.substr(0, kHostile.size() - 1) + "\xef\xbf\xbd");
}

TEST(RunPage, ALongRunShowsItsFirstStepsAndSaysSo) {
    Example example;
    const std::size_t steps = kMostPageStages / example.steps[0].stages.size() + 10;
    example.steps.resize(steps, example.steps[0]);
    const Json timeline =
        test::section_of(test::checked_page(run_page(example.run()).html()), "timeline");
    EXPECT_EQ(timeline["tracks"][1]["bars"].size(), kMostPageStages);
    ASSERT_EQ(timeline["notes"].size(), 1u);
    EXPECT_EQ(timeline["notes"][0], "The first 20000 stages are shown.");
}

TEST(RunPage, IsWrittenWhole) {
    const test::TempFolder folder;
    const Page page = run_page(Example().run());
    write_page(folder / "page.html", page);
    EXPECT_EQ(test::read_all(folder / "page.html"), page.html());
    EXPECT_EQ(folder.files(), 1u);
}

TEST(Page, ACurveIsDrawnAsMeansInsideOfTheirRange) {
    Chart chart{.title = "t", .x_name = "x", .curves = {{.name = "c"}}};
    for (int i = 0; i < 4000; ++i) chart.curves[0].points.emplace_back(i, i % 10);
    Page page("p");
    page.add(chart);
    const Json points =
        test::section_of(test::checked_page(page.html()), "chart")["curves"][0]["points"];
    // 400 shares of ten points each: all means are 4.5, all bands from 0 to 9.
    ASSERT_EQ(points.size(), kMostCurvePoints);
    for (const Json& point : points)
        EXPECT_EQ(Json({point[1], point[2], point[3]}), Json({4.5, 0, 9}));
    EXPECT_EQ(points[1][0], 14.5);
}

TEST(Page, WhatIsEmptyIsLeftOutAndWhatIsNoNumberIsNull) {
    Page page("p");
    page.add(Chart{});
    page.add(Chart{.curves = {{.name = "none"}}});
    page.add(Table{.title = "t", .columns = {{"a"}}});
    page.add(Timeline{.tracks = {{.name = "host"}}});
    page.add(Texts{"t"});
    page.add(plan_table({}));
    EXPECT_EQ(test::checked_page(page.html())["sections"].size(), 0u);
    page.add(Chart{.curves = {{.name = "c", .points = {{1, NAN}, {2, 3}}}}});
    page.add(Table{.title = "t", .columns = {{"a"}, {"b"}}, .rows = {{{NAN, Cell()}}}});
    const Json data = test::checked_page(page.html());
    EXPECT_EQ(test::section_of(data, "chart")["curves"][0]["points"],
              Json::parse("[[1, null], [2, 3]]"));
    EXPECT_EQ(test::section_of(data, "table")["rows"][0]["cells"], Json::parse("[null, null]"));
}

}  // namespace
}  // namespace mr::observe
