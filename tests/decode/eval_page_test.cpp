// The page of an evaluation: every mode in one picture, and nothing that is no number.
#include "decode/eval_page.h"

#include <gtest/gtest.h>

#include <cmath>
#include <regex>
#include <string>

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

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
        ++found;
    }
    return found;
}

// Of the text that is not a tag: "infinite" may be a word of the style.
void expect_numbers(const std::string& page) {
    const std::string body = page.substr(page.find("<body>"));
    EXPECT_FALSE(std::regex_search(body, std::regex("\\b(nan|inf)\\b", std::regex::icase))) << body;
}

TEST(EvalPage, EveryModeIsInThePicture) {
    const std::string page = eval_page(all_modes());
    EXPECT_EQ(count(page, "<svg"), 1u);
    EXPECT_EQ(count(page, "<path d=\"M"), 4u);  // a curve each
    for (const char* mode : {"full", "window", "streaming", "recompute"}) {
        EXPECT_NE(page.find(std::string("\">") + mode + "</text>"), std::string::npos) << mode;
        EXPECT_NE(page.find(std::string("</span>") + mode + "<td>12800<td>"), std::string::npos)
            << mode;
    }
    for (const char* figure : {"5.2000", "181.2722", "2.0000", "12345"}) {  // NLL, exp, ms
        EXPECT_NE(page.find(figure), std::string::npos) << figure;
    }
    EXPECT_NE(page.find("the first 4 tokens and the last 124"), std::string::npos);
    EXPECT_NE(page.find("the last 128 tokens"), std::string::npos);
    EXPECT_NE(page.find("cut every 512 tokens"), std::string::npos);
    EXPECT_EQ(page.find("at samples"), std::string::npos);
    expect_numbers(page);
}

TEST(EvalPage, StandsAloneAndEscapesNames) {
    EvalDescription evaluation = all_modes();
    evaluation.model = "<script>alert(1)</script>.gguf";
    evaluation.text = "a\"b&c.txt";
    const std::string page = eval_page(evaluation);
    EXPECT_TRUE(page.starts_with("<!doctype html>"));
    EXPECT_TRUE(page.ends_with("</html>\n"));
    EXPECT_EQ(page.find("<script"), std::string::npos);
    EXPECT_NE(page.find("&lt;script&gt;"), std::string::npos);
    EXPECT_NE(page.find("a&quot;b&amp;c.txt"), std::string::npos);
    for (const char* elsewhere : {"http:", "https:", "src=", "url(", "@import"}) {
        EXPECT_EQ(page.find(elsewhere), std::string::npos) << elsewhere;
    }
    EXPECT_NE(page.find("prefers-color-scheme: dark"), std::string::npos);
}

// Samples leave buckets empty, texts may have one bucket, a broken model has no perplexity.
TEST(EvalPage, NothingThatIsNoNumber) {
    EvalDescription evaluation{"m", "t", "CPU", {}};
    expect_numbers(eval_page(evaluation));
    EvalMode few = example(ContextMode::recompute, 3, 50);
    for (std::size_t i = 0; i < 50; ++i) {
        if (i % 7 != 3) few.result.curve[i] = {};
    }
    few.sample = 7;
    few.result.sample_nll = 3.14159;
    evaluation.modes = {few, example(ContextMode::streaming, 0, 1)};
    const std::string page = eval_page(evaluation);
    expect_numbers(page);
    EXPECT_NE(page.find("<th>at samples"), std::string::npos);
    EXPECT_NE(page.find("3.1416"), std::string::npos);
    EXPECT_NE(page.find("7 samples a document"), std::string::npos);
    evaluation.modes = {example(ContextMode::window, 800, 3)};  // exp() of it is none
    expect_numbers(eval_page(evaluation));
    EXPECT_NE(eval_page(evaluation).find("e^800.0"), std::string::npos);
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
