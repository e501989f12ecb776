// report.html of a training run: it shows what its metrics say.
#include "train/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "page_data.h"

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
    run.plan.add("parameters", 1 << 20);
    run.ledger.add(OpKind::linear, {10, 1000, 1000, 1u << 30, 0.75});
    run.ledger.add(OpKind::attention, {10, 1000, 1000, 1u << 20, 0.25});
    run.samples = {{500, "Once upon a time"}};
    return run;
}

const nlohmann::json* row_of(const nlohmann::json& table, const std::string& name) {
    for (const auto& row : table.at("rows")) {
        if (row.at("cells")[0] == name) return &row.at("cells");
    }
    return nullptr;
}

TEST(TrainReport, ShowsTheRun) {
    const auto steps = curve(1000);
    const observe::Page page = train_page(example(), steps);
    const nlohmann::json data = test::checked_page(page.html());
    EXPECT_EQ(data["title"], "runs/story");
    const std::string summary = data["lines"][0];
    for (const char* part : {"step 1000 of 1000", "32.8M tokens in 8:20 min", "65.5k tok/s",
                             "1.97 TFLOP/s", "49.2% of the matrix peak", "data wait 0.00%"}) {
        EXPECT_NE(summary.find(part), std::string::npos) << part << " in " << summary;
    }
    for (const char* chart : {"Loss, nats per token", "Learning rate",
                              "Gradient norm, before clipping", "Throughput"}) {
        EXPECT_FALSE(test::section_of(data, "chart", chart).is_null()) << chart;
    }
    EXPECT_EQ(test::sections_of(data, "chart"), 4u);
    const nlohmann::json loss = test::section_of(data, "chart", "Loss, nats per token");
    EXPECT_EQ(loss["curves"][1]["points"].size(), 10u);  // each validation
    EXPECT_EQ(loss["curves"][1]["dots"], true);
    const nlohmann::json stages = test::section_of(data, "table", "Stages");
    EXPECT_EQ(stages["rows"][0]["cells"][0], "linear");  // the longer first
    EXPECT_DOUBLE_EQ((*row_of(stages, "linear"))[3].get<double>(), 0.75);
    EXPECT_EQ((*row_of(test::section_of(data, "table", "Memory plan"), "parameters"))[1], 1 << 20);
    const nlohmann::json facts = test::section_of(data, "table", "The run");
    EXPECT_EQ((*row_of(facts, "model"))[1], "llama, 6 layers of 256");
    EXPECT_EQ((*row_of(facts, "device"))[1], "CPU, 2 threads");
    EXPECT_EQ((*row_of(facts, "batch"))[1], "64 rows of 512 tokens");
    EXPECT_EQ(test::section_of(data, "texts", "Command")["parts"][0]["text"],
              "millrace train --out runs/story");
    EXPECT_EQ(test::section_of(data, "texts", "Samples")["parts"][0]["text"], "Once upon a time");
    if (const char* out = std::getenv("MILLRACE_REPORT_OUT")) {  // to look at it
        observe::write_page(out, page);
    }
}

TEST(TrainReport, StaysSmall) {
    EXPECT_LT(train_page(example(), curve(50000)).html().size(), 140'000u);
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
            test::checked_page(train_page(run, some).html());
        }
    }
    EXPECT_EQ(test::page_data(train_page({}, {}).html())["lines"][0], "no step yet");
    const std::string summary = test::page_data(train_page(example(), steps).html())["lines"][0];
    EXPECT_NE(summary.find("3 steps skipped"), std::string::npos);
}

}  // namespace
}  // namespace mr::train
