// report.html of a training run: it shows what its metrics say, and stands alone.
#include "train/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <regex>

#include "observe/chart_svg.h"
#include "temp_folder.h"

namespace mr::train {
namespace {

std::vector<StepMetrics> curve(int count) {
    std::vector<StepMetrics> steps;
    for (int i = 1; i <= count; ++i) {
        StepMetrics m;
        m.step = i;
        m.loss = 0.25 + 7 * std::exp(-i / (0.1 * count)) + 0.01 * (i % 7);
        if (i % (count / 10) == 0) m.val_loss = 0.26 + 7 * std::exp(-i / (0.1 * count));
        m.lr = 1e-3 * i / count;
        m.grad_norm = 1 + 1.0 / i;
        m.tokens_per_second = 50000 + 100 * (i % 3);
        m.seconds = 0.5;
        steps.push_back(m);
    }
    return steps;
}

RunDescription example() {
    RunDescription run;
    run.name = "runs/story";
    run.model = "llama, 6 layers of 256";
    run.device = "CPU, 2 threads";
    run.command = "millrace train --out runs/story";
    run.facts = {{"batch", "64 rows of 512 tokens"}};
    run.steps = 1000;
    run.tokens_per_step = 32768;
    run.flops_per_token = 3e7;
    run.matrix_peak = 4e12;
    run.entropy = 0.233;
    run.plan.add("parameters", 1 << 20);
    run.ledger.add(OpKind::linear, {10, 1000, 1000, 1u << 30, 0.75});
    run.ledger.add(OpKind::attention, {10, 1000, 1000, 1u << 20, 0.25});
    run.samples = {{500, "Once upon a time"}};
    return run;
}

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
        ++found;
    }
    return found;
}

TEST(TrainReport, ShowsTheRun) {
    const auto steps = curve(1000);
    const std::string html = train_page(example(), steps);
    for (const char* part : {"runs/story",
                             "step 1000 of 1000",
                             "llama, 6 layers",
                             "CPU, 2 threads",
                             "64 rows of 512",
                             "millrace train --out",
                             "Once upon a time",
                             "entropy of the corpus 0.2330",
                             "parameters",
                             "1.00 MiB",
                             "75.0%",
                             "32.8M tokens in 8:20 min",
                             "65.5k tok/s",
                             "1.97 TFLOP/s",
                             "49.2% of the matrix peak",
                             "data wait 0.00%",
                             "Loss, nats a token",
                             "Learning rate",
                             "Gradient norm",
                             "Throughput",
                             "prefers-color-scheme: dark"}) {
        EXPECT_NE(html.find(part), std::string::npos) << part;
    }
    EXPECT_EQ(count(html, "<svg"), 4u);
    EXPECT_EQ(count(html, "<circle"), 10u);                      // each validation
    EXPECT_LT(html.find(">linear<"), html.find(">attention<"));  // the longer first
    if (const char* out = std::getenv("MILLRACE_REPORT_OUT")) {  // to look at it
        write_train_report(out, example(), steps);
    }
}

TEST(TrainReport, NeedsNothingButItselfAndStaysSmall) {
    const std::string html = train_page(example(), curve(50000));
    EXPECT_FALSE(std::regex_search(
        html.substr(0, 4000), std::regex("https?:|//[a-z]|src=|href=|@import|url\\(|<script")));
    EXPECT_NE(html.find("default-src 'none'"), std::string::npos);
    EXPECT_LT(html.size(), 120'000u);
}

TEST(TrainReport, HostileStringsStayText) {
    const std::string hostile = "</pre><script>alert(1)</script><img src=x>\"'&\xff";
    RunDescription run = example();
    run.name = run.model = run.device = run.command = hostile;
    run.facts = {{hostile, hostile}};
    run.samples = {{1, hostile}};
    run.plan.add(hostile, 1);
    const std::string html = train_page(run, curve(100));
    EXPECT_EQ(html.find("<script"), std::string::npos);
    EXPECT_EQ(html.find("<img"), std::string::npos);
    EXPECT_EQ(html.find('\xff'), std::string::npos);
}

TEST(TrainReport, OddRunsAreNoNonsense) {
    auto steps = curve(40);
    for (const std::size_t bad : {3, 4, 39}) {
        steps[bad].loss = steps[bad].grad_norm = NAN;
        steps[bad].skipped = true;
    }
    const std::vector<std::vector<StepMetrics>> runs = {
        {}, {steps[0]}, {steps[3]}, {steps[0], steps[1]}, steps};
    for (const auto& some : runs) {
        for (const RunDescription& run : {RunDescription{}, example()}) {
            const std::string html = train_page(run, some);
            // Numbers of pictures: never NaN, never infinite.
            EXPECT_FALSE(std::regex_search(html, std::regex("=\"[^\"]*(nan|inf)[^\"]*\""))) << html;
            EXPECT_NE(html.find("</html>"), std::string::npos);
        }
    }
    EXPECT_NE(train_page({}, {}).find("no step yet"), std::string::npos);
    EXPECT_NE(train_page(example(), steps).find("3 steps skipped"), std::string::npos);
}

TEST(TrainReport, IsWrittenWhole) {
    const test::TempFolder folder;
    const auto steps = curve(100);
    write_train_report(folder / "report.html", example(), steps);
    EXPECT_EQ(test::read_all(folder / "report.html"), train_page(example(), steps));
    EXPECT_EQ(folder.files(), 1u);
}

TEST(ChartSvg, DrawsMeansInsideOfTheirRange) {
    observe::Chart chart{.title = "t", .x_name = "x", .curves = {{"c", 0, {}, false}}};
    for (int i = 0; i < 4000; ++i) chart.curves[0].points.emplace_back(i, i % 10);
    const std::string svg = chart_svg(chart);
    // 400 shares of ten points each: all means are 4.5, all bands from 0 to 9.
    const std::size_t line = svg.find("fill=\"none\"");
    const std::string path = svg.substr(svg.rfind("d=\"M", line), line - svg.rfind("d=\"M", line));
    EXPECT_EQ(count(path, "L"), observe::kMostCurvePoints - 1);
    const std::regex y_of(" ([0-9.]+)[L\"]");
    std::string first;
    for (std::sregex_iterator at(path.begin(), path.end(), y_of), end; at != end; ++at) {
        if (first.empty()) first = (*at)[1];
        EXPECT_EQ((*at)[1], first);
    }
    EXPECT_EQ(count(svg, "fill-opacity"), 1u);
    EXPECT_EQ(observe::chart_svg({}), "");
}

}  // namespace
}  // namespace mr::train
