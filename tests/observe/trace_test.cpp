#include "observe/trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "temp_folder.h"

namespace mr::observe {
namespace {

using nlohmann::json;

const HostSpan kSpans[] = {{"load", 0, 0.5}, {"prefill", 0.6, 0.2}, {"decode", 0.9, 0.1}};

std::vector<Step> steps() {
    return {
        {"prefill", 5, 0.6, 0.3, {{OpKind::linear, "qkv", 0, {1, 1000, 24, 7, 0.25}, 0.01}}, 20, 0},
        {"decode",
         1,
         0.9,
         0.1,
         {{OpKind::linear, "qkv", 0, {1, 1000, 24, 7, 0.02}, 0.0},
          {OpKind::lm_head, "head", -1, {1, 500, 0, 3, 0}, 0.03}},
         0,
         4}};
}

json trace_of(const RunNames& names, std::span<const HostSpan> spans) {
    const test::TempFolder folder;
    const std::string path = folder / "trace.json";
    write_trace(path, names, spans, steps(), {.read = 1e6});
    EXPECT_EQ(folder.files(), 1u);  // nothing else is left behind
    return json::parse(test::read_all(path));
}

TEST(Trace, HasTracksCompleteEventsAndCountersInOrder) {
    const json trace = trace_of({"model.gguf", "cpu"}, kSpans);
    EXPECT_EQ(trace["otherData"]["model"], "model.gguf");
    double last = 0;
    std::map<std::string, int> kinds;
    std::set<std::string> counters;
    for (const json& event : trace["traceEvents"]) {
        const std::string kind = event["ph"];
        ++kinds[kind];
        if (kind == "M") continue;
        EXPECT_GE(event["ts"].get<double>(), last);
        last = event["ts"];
        if (kind == "X") {
            EXPECT_GE(event["dur"].get<double>(), 0);
        }
        if (kind == "C") counters.insert(event["name"].get<std::string>());
    }
    EXPECT_EQ(kinds["M"], 3);
    EXPECT_EQ(kinds["X"], 3 + 3);
    EXPECT_EQ(kinds["C"], 3 * 2 + 3);
    EXPECT_EQ(counters, (std::set<std::string>{"memory", "host to device", "device to host"}));
}

TEST(Trace, AStageSaysWhereItWasAndWhatItMoved) {
    const json trace = trace_of({"m", "cpu"}, kSpans);
    std::vector<json> device, host;
    for (const json& event : trace["traceEvents"]) {
        if (event["ph"] == "X") (event["tid"] == 2 ? device : host).push_back(event);
    }
    ASSERT_EQ(device.size(), 3u);
    EXPECT_EQ(device[0]["name"], "qkv");
    EXPECT_EQ(device[0]["cat"], "linear");
    EXPECT_NEAR(device[0]["ts"].get<double>(), 0.61e6, 1e-3);
    EXPECT_NEAR(device[0]["dur"].get<double>(), 0.25e6, 1e-3);
    EXPECT_EQ(device[0]["args"]["layer"], 0);
    EXPECT_EQ(device[0]["args"]["bytes_read"], 1000);
    EXPECT_NEAR(device[1]["args"]["percent_of_read_ceiling"].get<double>(), 100 * 1024 / 0.02 / 1e6,
                1e-9);
    EXPECT_FALSE(device[2]["args"].contains("layer"));
    EXPECT_FALSE(device[2]["args"].contains("gb_s"));  // too short to be measured
    ASSERT_EQ(host.size(), 3u);
    EXPECT_EQ(host[0]["name"], "load");
}

TEST(Trace, AnyStringIsValidJson) {
    const std::string hostile = "a\"b\\c\n\x01</script>\xff\xfe\xc3";
    const HostSpan spans[] = {{hostile, 0, 1}};
    const json trace = trace_of({hostile, hostile}, spans);  // parses, or throws
    bool found = false;
    for (const json& event : trace["traceEvents"]) {
        if (event["ph"] == "X" && event["tid"] == 1) {
            found = event["name"].get<std::string>().starts_with("a\"b\\c\n\x01</script>");
        }
    }
    EXPECT_TRUE(found);
}

TEST(Trace, AFolderThatIsNotThereIsAnError) {
    EXPECT_THROW(write_trace("/nonexistent/folder/trace.json", {}, {}, {}, {}), Error);
}

}  // namespace
}  // namespace mr::observe
