#include "observe/run_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

namespace mr::observe {
namespace {

// Ten steps that read 2 MB each in one second in all, on a machine that reads 40 MB/s.
RunReport ten_steps() {
    RunReport report;
    report.load_seconds = 0.25;
    report.prompt_tokens = 7;
    report.prefill_tokens = 5;
    report.prefill_seconds = 0.5;
    report.decode_steps = 10;
    report.decode_seconds = 1;
    report.decode.add(OpKind::linear, {20, 15'000'000, 4'000, 60'000'000, 0.75});
    report.decode.add(OpKind::attention, {10, 5'000'000, 1'000, 1'000'000, 0.25});
    report.read_bandwidth = 40e6;
    return report;
}

TEST(RunReport, RatesFollowFromTheLedger) {
    const RunReport report = ten_steps();
    EXPECT_DOUBLE_EQ(report.tokens_per_second(), 10);
    EXPECT_DOUBLE_EQ(report.prefill_tokens_per_second(), 10);
    EXPECT_DOUBLE_EQ(report.bytes_per_token(), 2e6);  // writes do not count
    EXPECT_DOUBLE_EQ(report.bytes_per_second(), 20e6);
    EXPECT_DOUBLE_EQ(report.fraction_of_bandwidth(), 0.5);
}

TEST(RunReport, SummaryIsOneLineWithEveryFigure) {
    const std::string line = summary_line(ten_steps());
    EXPECT_EQ(line.find('\n'), std::string::npos);
    for (const char* part : {"10.0 tok/s", "0.02 GB/s", "50%", "0.04 GB/s", "2.0 MB per token",
                             "prompt 5 tokens", "loaded in 0.25 s"}) {
        EXPECT_NE(line.find(part), std::string::npos) << part << " in: " << line;
    }
    EXPECT_EQ(line.find("cache"), std::string::npos);
}

TEST(RunReport, OneIsSingular) {
    RunReport report = ten_steps();
    report.decode_steps = report.prefill_tokens = 1;
    const std::string line = summary_line(report);
    EXPECT_NE(line.find("; 1 step in 1.00 s; prompt 1 token at "), std::string::npos) << line;
}

TEST(RunReport, SaysWhereTheCacheHoldsAToken) {
    EXPECT_NE(summary_line(ten_steps(), {.cache_bytes = 3'000'000}).find("cache"),
              std::string::npos);
    EXPECT_EQ(summary_line(ten_steps(), {.cache_bytes = 1'000'000}).find("cache"),
              std::string::npos);
    const std::string gpu = summary_line(
        ten_steps(), {.reader = "this GPU", .cache = "its L2", .cache_bytes = 3'000'000});
    EXPECT_NE(gpu.find("(it fits into its L2)"), std::string::npos) << gpu;
    EXPECT_NE(gpu.find("GB/s this GPU reads"), std::string::npos) << gpu;
}

TEST(RunReport, SaysThatTheMeasurementWasDisturbed) {
    RunReport report = ten_steps();  // it read 20 MB/s
    report.read_bandwidth = 17e6;
    const std::string line = summary_line(report);
    EXPECT_NE(line.find("more than the 0.02 GB/s this machine read when that was measured: other "
                        "work disturbed it"),
              std::string::npos)
        << line;
    EXPECT_EQ(line.find('%'), std::string::npos) << line;
    // From the cache it may well be faster than the memory.
    const std::string cached = summary_line(report, {.cache_bytes = 3'000'000});
    EXPECT_NE(cached.find("118% of the 0.02 GB/s"), std::string::npos) << cached;
    // A per cent of a wrong measurement is no figure for a program either.
    EXPECT_TRUE(report_json(report).at("percent_of_bandwidth").is_null());
    EXPECT_DOUBLE_EQ(report_json(report).at("read_bandwidth_gb_s"), 0.017);
    EXPECT_GT(report_json(report, {.cache_bytes = 3'000'000}).at("percent_of_bandwidth"), 117);
    // A rate that the user states was not measured.
    report.stated = true;
    EXPECT_NE(summary_line(report).find("118% of the 0.02 GB/s that this machine is said to read"),
              std::string::npos)
        << summary_line(report);
    EXPECT_GT(report_json(report).at("percent_of_bandwidth"), 117);
    report.stated = false;
    report.read_bandwidth = 20e6;  // exactly
    EXPECT_NE(summary_line(report).find("100% of"), std::string::npos) << summary_line(report);
}

TEST(RunReport, WhatWasNotMeasuredIsNull) {
    RunReport report = ten_steps();
    report.read_bandwidth = 0;
    EXPECT_TRUE(report_json(report).at("read_bandwidth_gb_s").is_null());
    EXPECT_TRUE(report_json(report).at("percent_of_bandwidth").is_null());
    EXPECT_EQ(summary_line(report).find('%'), std::string::npos);
}

TEST(RunReport, NothingDoneDividesByNothing) {
    const RunReport nothing;
    EXPECT_EQ(nothing.tokens_per_second(), 0);
    EXPECT_EQ(nothing.bytes_per_token(), 0);
    EXPECT_EQ(nothing.fraction_of_bandwidth(), 0);
    EXPECT_EQ(summary_line(nothing), "loaded in 0.00 s");
}

TEST(RunReport, JsonHasTheKeysThatScriptsRead) {
    const auto json = report_json(ten_steps());
    EXPECT_DOUBLE_EQ(json.at("tok_s").get<double>(), 10);
    EXPECT_DOUBLE_EQ(json.at("gb_s").get<double>(), 0.02);
    EXPECT_DOUBLE_EQ(json.at("read_bandwidth_gb_s").get<double>(), 0.04);
    EXPECT_DOUBLE_EQ(json.at("percent_of_bandwidth").get<double>(), 50);
    EXPECT_DOUBLE_EQ(json.at("bytes_per_token").get<double>(), 2e6);
    const auto ledger = ledger_json(ten_steps().decode);
    EXPECT_EQ(ledger.at("linear").at("calls").get<int>(), 20);
    EXPECT_FALSE(ledger.contains("norm"));  // nothing happened there
    EXPECT_EQ(ledger.at("host_to_device_bytes").get<int>(), 0);
}

TEST(RunReport, TokensThatAreFilledInAreNoSteps) {
    RunReport report = ten_steps();
    EXPECT_EQ(report_json(report).at("decode_steps").get<int>(), 10);
    EXPECT_FALSE(report_json(report).contains("passes"));
    EXPECT_NE(summary_line(report).find("; 10 steps in"), std::string::npos);
    report.passes = 4;
    const auto json = report_json(report);
    EXPECT_FALSE(json.contains("decode_steps"));
    EXPECT_EQ(json.at("decode_tokens").get<int>(), 10);
    EXPECT_EQ(json.at("passes").get<int>(), 4);
    EXPECT_DOUBLE_EQ(json.at("tokens_per_pass").get<double>(), 2.5);
    EXPECT_NE(summary_line(report).find("; 10 tokens in"), std::string::npos);
    report.passes = report.decode_steps = 0;
    EXPECT_EQ(report_json(report).at("tokens_per_pass").get<double>(), 0);
}

TEST(RunReport, TableHasARowForEachOpThatRan) {
    const std::string table = op_table(ten_steps().decode);
    EXPECT_NE(table.find("linear"), std::string::npos);
    EXPECT_NE(table.find("75.0%"), std::string::npos);
    EXPECT_EQ(table.find("norm"), std::string::npos);
    EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 4);  // title, two ops, all
}

}  // namespace
}  // namespace mr::observe
