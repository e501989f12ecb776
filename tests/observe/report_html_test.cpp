#include "observe/report_html.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "observe/roofline_svg.h"
#include "temp_folder.h"

namespace mr::observe {
namespace {

const std::string kHostile =
    "</script><script>alert(1)</script><img src=x onerror='alert(2)'>\"&\xff";

struct Example {
    std::vector<HostSpan> spans = {{"load", 0, 0.5}, {"decode", 0.9, 0.1}};
    std::vector<Step> steps = {{"decode",
                                1,
                                0.9,
                                0.1,
                                {{OpKind::linear, "qkv", 0, {1, 1000, 24, 2000, 0.02}, 0.0},
                                 {OpKind::lm_head, "head", -1, {1, 500, 0, 900, 0.01}, 0.03}},
                                0,
                                4}};
    ReportPage page() const {
        ReportPage page{
            {"model.gguf", "cpu"}, "10 tok/s", "Once", "upon a time", spans, steps, {}, {}};
        page.phases = {make_roofline(steps, "decode", {.read = 1e6, .matrix = 1e7})};
        page.plan.add("KV cache", 1 << 20);
        return page;
    }
};

std::string between(const std::string& text, const std::string& begin, const std::string& end) {
    const std::size_t from = text.find(begin);
    if (from == std::string::npos) return "";
    const std::size_t start = from + begin.size();
    return text.substr(start, text.find(end, start) - start);
}

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
        ++found;
    }
    return found;
}

TEST(ReportHtml, HasTheTimelineTheTableThePictureAndThePlan) {
    const Example example;
    const std::string html = html_page(example.page());
    for (const char* part : {"<!doctype html>", "model.gguf", "10 tok/s", "<canvas>", "qkv", "head",
                             "between stages", "<svg", "memory:", "matrix:", "KV cache", "1.00 MiB",
                             "device to host 4", "upon a time", "prefers-color-scheme: dark"}) {
        EXPECT_NE(html.find(part), std::string::npos) << part;
    }
    EXPECT_EQ(count(html, "<circle"), 2u);  // a dot a stage
    const auto data = nlohmann::json::parse(between(html, "id=\"data\">", "</script>"));
    ASSERT_EQ(data["tracks"].size(), 2u);
    EXPECT_EQ(data["tracks"][0]["events"].size(), 2u);
    ASSERT_EQ(data["tracks"][1]["events"].size(), 2u);
    const auto head = data["tracks"][1]["events"][1];
    EXPECT_EQ(data["names"][head[0].get<std::size_t>()][0], "head");
    EXPECT_NEAR(head[1].get<double>(), 0.93e6, 1e-3);
    EXPECT_NEAR(head[2].get<double>(), 0.01e6, 1e-3);
    EXPECT_EQ(head[3], -1);
    EXPECT_EQ(head[4], 500);
}

TEST(ReportHtml, NeedsNothingButItself) {
    const std::string html = html_page(Example().page());
    EXPECT_FALSE(std::regex_search(html, std::regex("https?:|//[a-z]|src=|href=|@import|url\\(")));
    EXPECT_NE(html.find("default-src 'none'"), std::string::npos);
}

TEST(ReportHtml, HostileStringsStayText) {
    Example example;
    example.spans[0].name = kHostile;
    example.steps[0].stages[0].name = kHostile.c_str();
    ReportPage page = example.page();
    page.names = {kHostile, kHostile};
    page.summary = page.prompt = page.text = kHostile;
    page.plan.add(kHostile, 1);
    const std::string html = html_page(page);
    const std::string plain = html_page(Example().page());
    EXPECT_EQ(count(html, "<script"), count(plain, "<script"));
    EXPECT_EQ(count(html, "</script"), count(plain, "</script"));
    EXPECT_EQ(html.find("<img"), std::string::npos);
    EXPECT_EQ(html.find('\xff'), std::string::npos);
    const auto data = nlohmann::json::parse(between(html, "id=\"data\">", "</script>"));
    EXPECT_EQ(data["names"][0][0].get<std::string>().substr(0, 17), kHostile.substr(0, 17));
}

TEST(ReportHtml, EscapesWhatHtmlWouldRead) {
    EXPECT_EQ(html_escaped("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
    EXPECT_EQ(html_escaped("tab\tline\nbell\a"), "tab\tline\nbell\xef\xbf\xbd");
    EXPECT_EQ(html_escaped("\xc3\xa9"), "\xc3\xa9");
    EXPECT_EQ(html_escaped("\xff"), "\xef\xbf\xbd");
}

TEST(ReportHtml, ALongRunShowsItsFirstStepsAndSaysSo) {
    Example example;
    const std::size_t steps = kMostPageStages / example.steps[0].stages.size() + 10;
    example.steps.resize(steps, example.steps[0]);
    const std::string html = html_page(example.page());
    const auto data = nlohmann::json::parse(between(html, "id=\"data\">", "</script>"));
    EXPECT_EQ(data["tracks"][1]["events"].size(), kMostPageStages);
    EXPECT_NE(html.find("stages are shown"), std::string::npos);
}

TEST(ReportHtml, IsWrittenWhole) {
    const test::TempFolder folder;
    const Example example;
    write_html(folder / "page.html", example.page());
    EXPECT_EQ(test::read_all(folder / "page.html"), html_page(example.page()));
    EXPECT_EQ(folder.files(), 1u);
}

TEST(RooflineSvg, WithoutCeilingsOrWorkThereIsStillNoNonsense) {
    Example example;
    const std::string bare = roofline_svg(make_roofline(example.steps, "decode", {}));
    EXPECT_EQ(bare.find("class=\"roof\""), std::string::npos);
    EXPECT_EQ(count(bare, "<circle"), 2u);
    for (Stage& s : example.steps[0].stages) s.work.flops = 0;
    EXPECT_EQ(roofline_svg(make_roofline(example.steps, "decode", {})), "");
    for (const char* bad : {"nan", "inf"}) EXPECT_EQ(bare.find(bad), std::string::npos);
}

}  // namespace
}  // namespace mr::observe
