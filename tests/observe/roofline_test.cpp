#include "observe/roofline.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace mr::observe {
namespace {

Stage stage(const char* name, int layer, double begin, double seconds, std::uint64_t read,
            std::uint64_t written, std::uint64_t flops) {
    return {OpKind::linear, name, layer, {1, read, written, flops, seconds}, begin};
}

// Two decode steps of two layers on a machine with 100 B/s and 1000 FLOP/s. A step takes 10 s on
// the host: qkv [0.5, 1.5) and [2, 3), attention [1.5, 2) and [3, 4), head [5, 9).
std::vector<Step> two_steps() {
    Step step{"decode", 1, 0, 10, {}, 0, 4};
    step.stages = {stage("qkv", 0, 0.5, 1, 40, 10, 100), stage("attention", 0, 1.5, 0.5, 5, 5, 450),
                   stage("qkv", 1, 2, 1, 40, 10, 100), stage("attention", 1, 3, 1, 5, 5, 450),
                   stage("head", -1, 5, 4, 900, 0, 0)};
    Step prefill{"prefill", 7, 0, 3, {stage("qkv", 0, 0, 1, 1, 0, 0)}, 28, 0};
    Step second = step;
    second.begin = 10;
    return {prefill, step, second};
}
constexpr Ceilings kCeilings{
    .read = 100, .copy = 90, .to_device = 20, .to_host = 20, .matrix = 1000};

TEST(Roofline, AddsUpLayersAndStepsInTheOrderOfTheModel) {
    const Roofline r = make_roofline(two_steps(), "decode", kCeilings);
    EXPECT_EQ(r.steps, 2);
    EXPECT_EQ(r.tokens, 2);
    EXPECT_DOUBLE_EQ(r.seconds, 20);
    ASSERT_EQ(r.stages.size(), 3u);
    EXPECT_EQ(r.stages[0].name, "qkv");
    EXPECT_EQ(r.stages[1].name, "attention");
    EXPECT_EQ(r.stages[2].name, "head");
    EXPECT_EQ(r.stages[0].calls, 4u);
    EXPECT_DOUBLE_EQ(r.stages[0].seconds, 4);
    EXPECT_EQ(r.stages[0].bytes, 200u);
    EXPECT_EQ(r.stages[0].flops, 400u);
    EXPECT_DOUBLE_EQ(r.stages[0].share, 4.0 / 20);
    EXPECT_DOUBLE_EQ(r.stages[0].bytes_per_second(), 50);
    EXPECT_DOUBLE_EQ(r.stages[0].flops_per_second(), 100);
    EXPECT_DOUBLE_EQ(r.stages[0].flops_per_byte(), 2);
    EXPECT_EQ(r.all.calls, 10u);
    EXPECT_DOUBLE_EQ(r.all.seconds, 15);
}

TEST(Roofline, CountsPassesThatFillInTokens) {
    std::vector<Step> steps = two_steps();
    EXPECT_EQ(counts_of(make_roofline(steps, "decode", kCeilings)), "2 steps, 2 tokens");
    EXPECT_FALSE(
        roofline_json(make_roofline(steps, "decode", kCeilings)).contains("tokens_per_pass"));
    steps[1].tokens = 4;
    steps[1].made = 0;  // an incomplete block
    steps[2].tokens = 4;
    steps[2].made = 3;
    const Roofline r = make_roofline(steps, "decode", kCeilings);
    EXPECT_EQ(counts_of(r), "2 passes, 8 rows, 3 tokens (1.50 per pass)");
    EXPECT_EQ(counts_of(make_roofline(steps, "prefill", kCeilings)), "1 step, 7 tokens");
    const std::string table = roofline_table(r);
    EXPECT_NE(table.find("decode: 2 passes, 8 rows, 3 tokens (1.50 per pass)"), std::string::npos);
    EXPECT_NE(table.find("time/pass"), std::string::npos);
    EXPECT_NE(table.find("between passes"), std::string::npos);
    EXPECT_NE(table.find(" B per row"), std::string::npos);
    EXPECT_EQ(table.find("step"), std::string::npos);
    const nlohmann::ordered_json json = roofline_json(r);
    EXPECT_EQ(json["steps"], 2);
    EXPECT_EQ(json["tokens"], 8);
    EXPECT_EQ(json["rows"], 8);
    EXPECT_EQ(json["passes"], 2);
    EXPECT_EQ(json["decode_tokens"], 3);
    EXPECT_EQ(json["tokens_per_pass"], 1.5);
}

TEST(Roofline, HoldsEachStageAgainstTheRoofThatBindsIt) {
    const Roofline r = make_roofline(two_steps(), "decode", kCeilings);
    // qkv: 200 B are 2 s at the ceiling, 400 FLOPs 0.4 s; it took 4.
    EXPECT_EQ(r.stages[0].roof, Roof::memory);
    EXPECT_DOUBLE_EQ(r.stages[0].of_ceiling, 0.5);
    // attention: 40 B are 0.4 s, 1800 FLOPs 1.8 s; it took 3.
    EXPECT_EQ(r.stages[1].roof, Roof::matrix);
    EXPECT_DOUBLE_EQ(r.stages[1].of_ceiling, 0.6);
    // head: 1800 B are 18 s; it took 8, so they came from a cache.
    EXPECT_DOUBLE_EQ(r.stages[2].of_ceiling, 18.0 / 8);
    EXPECT_NE(roofline_table(r).find("came out of a cache"), std::string::npos);

    // The matrix roof was not measured: memory is the only one.
    const Roofline memory = make_roofline(two_steps(), "decode", {.read = 100});
    EXPECT_EQ(memory.stages[1].roof, Roof::memory);
    EXPECT_NEAR(memory.stages[1].of_ceiling, 0.4 / 3, 1e-15);
    const Roofline none = make_roofline(two_steps(), "decode", {});
    EXPECT_EQ(none.stages[0].roof, Roof::none);
    EXPECT_EQ(none.stages[0].of_ceiling, 0);
}

// A CPU that reads 100 B/s and does 1000 FLOP/s in f32, 4000 in int8.
TEST(Roofline, ACpuHasARoofForEachKindOfProduct) {
    constexpr Ceilings kCpu{.read = 100, .f32 = 1000, .int8 = 4000};
    const auto least = [&](std::uint64_t bytes, std::uint64_t flops, std::uint64_t int8) {
        return least_time(OpRecord{1, bytes, 0, flops, 0, int8}, kCpu);
    };
    EXPECT_EQ(least(200, 1000, 0).roof, Roof::memory);
    EXPECT_DOUBLE_EQ(least(200, 1000, 0).seconds, 2);
    EXPECT_EQ(least(200, 3000, 0).roof, Roof::f32);
    EXPECT_DOUBLE_EQ(least(200, 3000, 0).seconds, 3);
    EXPECT_EQ(least(200, 3000, 3000).roof, Roof::memory);
    EXPECT_EQ(least(200, 12000, 12000).roof, Roof::int8);
    EXPECT_DOUBLE_EQ(least(200, 12000, 12000).seconds, 3);
    // Both kinds take the same pipes: 1 s of f32, 2 s of int8.
    EXPECT_EQ(least(200, 9000, 8000).roof, Roof::int8);
    EXPECT_DOUBLE_EQ(least(200, 9000, 8000).seconds, 3);
    EXPECT_EQ(least(0, 0, 0).roof, Roof::none);

    Step step{"prefill", 8, 0, 20, {}, 0, 0};
    step.stages = {stage("qkv", 0, 0, 6, 100, 100, 12000), stage("attention", 0, 6, 4, 10, 0, 2000),
                   stage("head", -1, 10, 10, 900, 0, 1000)};
    step.stages[0].work.int8_flops = 12000;
    const Roofline r = make_roofline({&step, 1}, "prefill", kCpu);
    EXPECT_EQ(r.stages[0].roof, Roof::int8);
    EXPECT_DOUBLE_EQ(r.stages[0].of_ceiling, 0.5);  // 3 of 6 s
    EXPECT_EQ(r.stages[1].roof, Roof::f32);
    EXPECT_DOUBLE_EQ(r.stages[1].of_ceiling, 0.5);  // 2 of 4 s
    EXPECT_EQ(r.stages[2].roof, Roof::memory);
    EXPECT_DOUBLE_EQ(r.stages[2].of_ceiling, 0.9);
    // All: 3 + 2 + 9 of 20 s, most of it under the memory's roof.
    EXPECT_EQ(r.all.roof, Roof::memory);
    EXPECT_DOUBLE_EQ(r.all.of_ceiling, 0.7);

    const std::string table = roofline_table(r);
    for (const char* part : {"int8", "f32", "0.00 GFLOP/s in f32", "GFLOP/s in int8"}) {
        EXPECT_NE(table.find(part), std::string::npos) << part << " in\n" << table;
    }
    EXPECT_EQ(table.find("host to device"), std::string::npos);
    const nlohmann::ordered_json json = roofline_json(r);
    EXPECT_EQ(json["stages"][0]["roof"], "int8");
    EXPECT_EQ(json["stages"][0]["int8_flops"], 12000);
    EXPECT_EQ(json["stages"][1]["roof"], "f32");
    EXPECT_DOUBLE_EQ(json["ceilings"]["f32_gflop_s"].get<double>(), 1e-6);
    EXPECT_DOUBLE_EQ(json["ceilings"]["int8_gflop_s"].get<double>(), 4e-6);
    EXPECT_FALSE(json["ceilings"].contains("matrix_gflop_s"));
}

TEST(Roofline, TimeThatNoStageTookIsGapsAndOutside) {
    const Roofline r = make_roofline(two_steps(), "decode", kCeilings);
    // Within a step 1 s between attention and head; 0.5 s before the first stage, 1 s after.
    EXPECT_DOUBLE_EQ(r.gaps, 2);
    EXPECT_DOUBLE_EQ(r.outside, 3);
    EXPECT_DOUBLE_EQ(r.all.seconds + r.gaps + r.outside, r.seconds);
}

TEST(Roofline, OverlappingStagesLeaveNoNegativeGap) {
    Step step{"decode", 1, 0, 0, {}, 0, 0};  // the host did not time it
    step.stages = {stage("a", 0, 0, 4, 1, 0, 0), stage("b", 0, 1, 1, 1, 0, 0),
                   stage("c", 0, 6, 1, 1, 0, 0)};
    const Roofline r = make_roofline({&step, 1}, "decode", kCeilings);
    EXPECT_DOUBLE_EQ(r.seconds, 7);
    EXPECT_DOUBLE_EQ(r.gaps, 2);
    EXPECT_DOUBLE_EQ(r.outside, 0);
}

TEST(Roofline, CountsHostDeviceBytesAToken) {
    const Roofline decode = make_roofline(two_steps(), "decode", kCeilings);
    EXPECT_DOUBLE_EQ(decode.to_device_per_token, 0);
    EXPECT_DOUBLE_EQ(decode.to_host_per_token, 4);
    const Roofline prefill = make_roofline(two_steps(), "prefill", kCeilings);
    EXPECT_DOUBLE_EQ(prefill.to_device_per_token, 4);
    EXPECT_NE(roofline_table(decode).find("device to host 4 B per token"), std::string::npos);
}

// The cost of recording is not part of a token's, but it is not hidden either.
TEST(Roofline, StampsAreCountedApart) {
    std::vector<Step> steps = two_steps();
    for (Step& step : steps) {
        if (step.phase != "decode") continue;
        step.to_host += 96;
        step.stamps = 96;
    }
    const Roofline r = make_roofline(steps, "decode", kCeilings);
    EXPECT_DOUBLE_EQ(r.to_host_per_token, 4);
    EXPECT_DOUBLE_EQ(r.stamps_per_token, 96);
    EXPECT_NE(roofline_table(r).find("device to host 4 B per token (and 96 B of stamps"),
              std::string::npos);
    EXPECT_DOUBLE_EQ(roofline_json(r)["stamp_bytes_per_token"].get<double>(), 96);
    EXPECT_EQ(roofline_table(make_roofline(two_steps(), "decode", kCeilings)).find("stamps"),
              std::string::npos);
}

TEST(Roofline, NothingIsNoDivisionByZero) {
    const Roofline r = make_roofline({}, "decode", kCeilings);
    EXPECT_EQ(r.steps, 0);
    EXPECT_EQ(r.all.share, 0);
    EXPECT_FALSE(roofline_table(r).empty());
    EXPECT_EQ(roofline_json(r)["stages"].size(), 0u);
}

TEST(Roofline, TableAndJsonSayTheSame) {
    const Roofline r = make_roofline(two_steps(), "decode", kCeilings);
    const std::string table = roofline_table(r);
    for (const char* part : {"qkv", "attention", "head", "all stages", "between stages", "50.0%",
                             "60.0%", "225.0%", "memory", "matrix"}) {
        EXPECT_NE(table.find(part), std::string::npos) << part << " in\n" << table;
    }
    const nlohmann::ordered_json json = roofline_json(r);
    EXPECT_EQ(json["stages"][0]["stage"], "qkv");
    EXPECT_DOUBLE_EQ(json["stages"][0]["percent_of_ceiling"].get<double>(), 50);
    EXPECT_EQ(json["stages"][1]["roof"], "matrix");
    EXPECT_DOUBLE_EQ(json["gap_seconds"].get<double>(), 2);
    EXPECT_DOUBLE_EQ(json["ceilings"]["read_gb_s"].get<double>(), 100e-9);
    EXPECT_FALSE(json["ceilings"].contains("f32_gflop_s"));  // not measured
}

}  // namespace
}  // namespace mr::observe
