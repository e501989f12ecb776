#include "observe/recorder.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace mr::observe {
namespace {

void work(Ledger& ledger, OpKind kind, int milliseconds) {
    const LedgerEntry entry(&ledger, kind, 100, 10, 5);
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

TEST(Recorder, TakesStagesFromTheLedgerStepByStep) {
    Ledger ledger;
    Recorder recorder;
    work(ledger, OpKind::norm, 0);  // not attached yet
    recorder.attach(&ledger);
    work(ledger, OpKind::norm, 0);  // no step has begun
    recorder.begin_step("prefill", 3);
    ledger.at(0, "qkv");
    work(ledger, OpKind::linear, 2);
    work(ledger, OpKind::attention, 0);
    ledger.add_host_to_device(12);
    recorder.begin_step("decode", 1);
    ledger.at(1);
    work(ledger, OpKind::linear, 0);
    ledger.add_device_to_host(4);
    recorder.attach(nullptr);
    work(ledger, OpKind::norm, 0);  // not attached any more

    ASSERT_EQ(recorder.steps().size(), 2u);
    const Step& prefill = recorder.steps()[0];
    EXPECT_EQ(prefill.phase, "prefill");
    EXPECT_EQ(prefill.tokens, 3);
    EXPECT_EQ(prefill.to_device, 12u);
    EXPECT_EQ(prefill.to_host, 0u);
    ASSERT_EQ(prefill.stages.size(), 2u);
    EXPECT_STREQ(prefill.stages[0].name, "qkv");
    EXPECT_EQ(prefill.stages[0].kind, OpKind::linear);
    EXPECT_EQ(prefill.stages[0].layer, 0);
    EXPECT_EQ(prefill.stages[0].work.bytes(), 110u);
    EXPECT_GE(prefill.stages[0].work.seconds, 0.002);
    EXPECT_STREQ(prefill.stages[1].name, "attention");  // a name is for one operation
    EXPECT_GE(prefill.stages[0].begin, 0);
    EXPECT_GE(prefill.stages[1].begin, prefill.stages[0].begin + prefill.stages[0].work.seconds);
    EXPECT_GE(prefill.seconds, prefill.stages[1].begin + prefill.stages[1].work.seconds);

    const Step& decode = recorder.steps()[1];
    EXPECT_GE(decode.begin, prefill.begin + prefill.seconds);
    ASSERT_EQ(decode.stages.size(), 1u);
    EXPECT_STREQ(decode.stages[0].name, "linear");
    EXPECT_EQ(decode.stages[0].layer, 1);
    EXPECT_EQ(decode.to_device, 0u);
    EXPECT_EQ(decode.to_host, 4u);
    EXPECT_EQ(ledger.op(OpKind::norm).calls, 3u);  // the ledger itself counts all
}

TEST(Recorder, StagesOfADeviceFollowEachOther) {
    Recorder recorder;
    const std::vector<Stage> two = {{OpKind::linear, "qkv", 0, {1, 8, 0, 0, 5.0}, 0},
                                    {OpKind::attention, "attention", 0, {1, 8, 0, 0, 1.0}, 6.0}};
    recorder.begin_step("decode", 1);
    recorder.add_stages(two, 100);
    recorder.begin_step("decode", 1);
    recorder.add_stages(two, 101);  // queued while the device was busy until 107
    recorder.end_step();
    const Step& a = recorder.steps()[0];
    const Step& b = recorder.steps()[1];
    ASSERT_EQ(a.stages.size(), 2u);
    ASSERT_EQ(b.stages.size(), 2u);
    EXPECT_DOUBLE_EQ(a.begin + a.stages[0].begin, 100);
    EXPECT_DOUBLE_EQ(a.begin + a.stages[1].begin, 106);
    EXPECT_DOUBLE_EQ(b.begin + b.stages[0].begin, 107);
    EXPECT_DOUBLE_EQ(b.begin + b.stages[1].begin, 113);
}

TEST(Recorder, CopiesOfStampsAreCountedApart) {
    Ledger ledger;
    Recorder recorder;
    recorder.attach(&ledger);
    recorder.begin_step("decode", 1);
    ledger.add_device_to_host(16);  // the token
    ledger.add_device_to_host(32);  // ... and when two stages ran
    recorder.add_stages({{OpKind::linear, "qkv", 0, {1, 8, 0, 0, 1.0}, 0},
                         {OpKind::linear, "out", 0, {1, 8, 0, 0, 1.0}, 1}},
                        0, 32);
    recorder.attach(nullptr);
    ASSERT_EQ(recorder.steps().size(), 1u);
    EXPECT_EQ(recorder.steps()[0].to_host, 48u);
    EXPECT_EQ(recorder.steps()[0].stamps, 32u);
}

TEST(Recorder, StepsThatAreTakenAreNotKept) {
    Ledger ledger;
    std::vector<Step> taken;
    Recorder recorder([&](const Step& step) { taken.push_back(step); });
    recorder.attach(&ledger);
    for (int i = 0; i < 3; ++i) {
        const Span span(&recorder, "decode");
        recorder.begin_step("decode", i);
        work(ledger, OpKind::linear, 0);
        recorder.add_stages({{OpKind::norm, "norm", 0, {}, 0}}, recorder.now());
    }
    recorder.attach(nullptr);
    ASSERT_EQ(taken.size(), 3u);
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(taken[static_cast<std::size_t>(i)].tokens, i);
        EXPECT_EQ(taken[static_cast<std::size_t>(i)].stages.size(), 2u);
    }
    EXPECT_TRUE(recorder.steps().empty());
    EXPECT_TRUE(recorder.spans().empty());
}

TEST(Recorder, SpansEndWithTheirScope) {
    Ledger ledger;
    Recorder recorder;
    recorder.attach(&ledger);
    {
        recorder.begin_step("decode", 1);
        const Span span(&recorder, "decode");
        work(ledger, OpKind::sample, 1);
        EXPECT_TRUE(recorder.spans().empty());
    }
    recorder.attach(nullptr);
    ASSERT_EQ(recorder.spans().size(), 1u);
    EXPECT_EQ(recorder.spans()[0].name, "decode");
    EXPECT_GE(recorder.spans()[0].seconds, 0.001);
    EXPECT_EQ(recorder.steps()[0].stages.size(), 1u);
    { const Span span(nullptr, "not recorded"); }
    work(ledger, OpKind::sample, 0);  // not attached any more
    EXPECT_EQ(recorder.steps().size(), 1u);
}

}  // namespace
}  // namespace mr::observe
