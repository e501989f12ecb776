// The page of an evaluation: every mode in one picture, and nothing that is no number.
#include "decode/eval_page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "page_data.h"

namespace mr::decode {
namespace {

EvalMode example(ContextMode mode, double nll, int buckets) {
    EvalMode out{.mode = mode, .stream = {4, 124}, .context = 512, .sample = 0, .result = {}};
    for (int i = 0; i < buckets; ++i) {
        out.result.curve.push_back(
            {EvalResult::kCurveStep, EvalResult::kCurveStep * (nll + 0.1 * (i % 3))});
    }
    out.result.tokens = buckets * EvalResult::kCurveStep;
    out.result.bytes = out.result.tokens * 4;
    out.result.nll = nll;
    out.result.evicted = 12345;
    out.result.phase.seconds = 0.002 * static_cast<double>(out.result.tokens);
    return out;
}

EvalDescription all_modes() {
    return {
        "models/a.gguf",
        "book.txt",
        "CPU",
        {example(ContextMode::full, 3.1, 100), example(ContextMode::window, 5.2, 100),
         example(ContextMode::streaming, 3.2, 100), example(ContextMode::recompute, 3.15, 100)}};
}

TEST(EvalPage, EveryModeIsInThePicture) {
    const nlohmann::json data = test::checked_page(eval_page(all_modes()).html());
    EXPECT_EQ(data["title"], "eval of models/a.gguf");
    EXPECT_EQ(data["lines"][0], "predicts book.txt, on CPU");
    const nlohmann::json chart = test::section_of(data, "chart");
    const nlohmann::json modes = test::section_of(data, "table", "Modes");
    const std::vector<std::string> names = {"full", "window", "streaming", "recompute"};
    const std::vector<std::string> seen = {
        "all before a token, cut every 512 tokens", "the last 128 tokens",
        "the first 4 tokens and the last 124", "the last 128 tokens, encoded anew for every token"};
    ASSERT_EQ(chart["curves"].size(), 4u);
    ASSERT_EQ(modes["rows"].size(), 4u);
    ASSERT_EQ(modes["columns"].size(), 8u);  // none "at samples"
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(chart["curves"][i]["name"], names[i]);
        const nlohmann::json& cells = modes["rows"][i]["cells"];
        EXPECT_EQ(cells[0], names[i]);
        EXPECT_EQ(cells[1], 12800);
        EXPECT_NEAR(cells[5].get<double>(), 2, 1e-9);  // ms
        EXPECT_EQ(cells[6], 12345);
        EXPECT_EQ(cells[7], seen[i]);
    }
    EXPECT_EQ(modes["rows"][1]["cells"][2], 5.2);
    EXPECT_EQ(modes["rows"][1]["cells"][3], "181.2722");
}

// Samples leave buckets empty, texts may have one bucket, a broken model has no perplexity.
TEST(EvalPage, NothingThatIsNoNumber) {
    EvalDescription evaluation{"m", "t", "CPU", {}};
    EXPECT_EQ(test::checked_page(eval_page(evaluation).html())["sections"].size(), 0u);
    EvalMode few = example(ContextMode::recompute, 3, 50);
    for (std::size_t i = 0; i < 50; ++i) {
        if (i % 7 != 3) few.result.curve[i] = {};
    }
    few.sample = 7;
    few.result.sample_nll = 3.14159;
    EvalMode cut = example(ContextMode::full, 0, 1);
    cut.result.cut = 1;
    evaluation.modes = {few, cut};
    const nlohmann::json modes =
        test::section_of(test::checked_page(eval_page(evaluation).html()), "table");
    EXPECT_EQ(modes["columns"][3]["name"], "at samples");
    EXPECT_EQ(modes["rows"][0]["cells"][3], 3.14159);
    EXPECT_TRUE(modes["rows"][1]["cells"][3].is_null());
    EXPECT_NE(modes["rows"][0]["cells"][8].get<std::string>().find("7 samples per document"),
              std::string::npos);
    evaluation.modes = {example(ContextMode::window, 800, 3)};  // exp() of it is none
    const nlohmann::json broken =
        test::section_of(test::checked_page(eval_page(evaluation).html()), "table");
    EXPECT_EQ(broken["rows"][0]["cells"][3], "e^800.0");
}

TEST(RunningMean, IsTheCurveOfAShortText) {
    const auto mode = example(ContextMode::full, 2, 20);
    const auto points = running_mean(mode.result.curve);
    ASSERT_EQ(points.size(), 20u);
    for (std::size_t i = 0; i < 20; ++i) {
        EXPECT_EQ(points[i].first, (static_cast<double>(i) + 0.5) * 128);
        EXPECT_NEAR(points[i].second, 2 + 0.1 * static_cast<double>(i % 3), 1e-12);
    }
    EXPECT_TRUE(running_mean({}).empty());
    EXPECT_TRUE(running_mean({{0, 0}, {0, 0}}).empty());
}

TEST(RunningMean, SmoothsALongOne) {
    std::vector<EvalResult::Bucket> curve;
    for (int i = 0; i < 1000; ++i) {
        // A line with noise of +-1, and every bucket of another size.
        const std::int64_t tokens = 1 + i % 5;
        const double mean = 3 + 0.001 * i + (i % 2 == 0 ? 1 : -1);
        curve.push_back({tokens, mean * static_cast<double>(tokens)});
    }
    const auto points = running_mean(curve);
    ASSERT_GT(points.size(), 900u);
    for (std::size_t i = 0; i < points.size(); ++i) {
        EXPECT_NEAR(points[i].second, 3 + 0.001 * points[i].first / 128, 0.15) << i;
        if (i > 0) {
            EXPECT_GT(points[i].first, points[i - 1].first);
        }
    }
}

}  // namespace
}  // namespace mr::decode
