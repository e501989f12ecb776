#include "core/ledger.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <string>
#include <thread>

namespace mr {
namespace {

TEST(Ledger, AddsUpByOperation) {
    Ledger ledger;
    { const LedgerEntry entry(&ledger, OpKind::linear, 100, 10, 1000); }
    { const LedgerEntry entry(&ledger, OpKind::linear, 200, 20, 2000); }
    { const LedgerEntry entry(&ledger, OpKind::norm, 1, 2, 3); }
    { const LedgerEntry entry(nullptr, OpKind::norm, 1, 2, 3); }  // without a ledger
    EXPECT_EQ(ledger.op(OpKind::linear).calls, 2u);
    EXPECT_EQ(ledger.op(OpKind::linear).bytes_read, 300u);
    EXPECT_EQ(ledger.op(OpKind::linear).bytes(), 330u);
    EXPECT_EQ(ledger.op(OpKind::linear).flops, 3000u);
    EXPECT_EQ(ledger.op(OpKind::norm).calls, 1u);
    EXPECT_EQ(ledger.op(OpKind::rope).calls, 0u);
    EXPECT_EQ(ledger.total().calls, 3u);
    EXPECT_EQ(ledger.total().bytes(), 333u);
}

TEST(Ledger, SinceIsTheDifference) {
    Ledger ledger;
    ledger.add(OpKind::add, {1, 10, 20, 30, 0.5});
    ledger.add_host_to_device(7);
    const Ledger before = ledger;
    ledger.add(OpKind::add, {1, 1, 2, 3, 0.25});
    ledger.add_host_to_device(5);
    ledger.add_device_to_host(4);
    const Ledger step = ledger.since(before);
    EXPECT_EQ(step.op(OpKind::add).calls, 1u);
    EXPECT_EQ(step.op(OpKind::add).bytes(), 3u);
    EXPECT_EQ(step.op(OpKind::add).flops, 3u);
    EXPECT_DOUBLE_EQ(step.op(OpKind::add).seconds, 0.25);
    EXPECT_EQ(step.host_to_device().calls, 1u);
    EXPECT_EQ(step.host_to_device().bytes, 5u);
    EXPECT_EQ(step.device_to_host().bytes, 4u);
    EXPECT_EQ(ledger.host_to_device().bytes, 12u);
}

TEST(Ledger, MeasuresTime) {
    Ledger ledger;
    {
        const LedgerEntry entry(&ledger, OpKind::sample, 0, 0, 0);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_GE(ledger.op(OpKind::sample).seconds, 0.005);
}

TEST(Ledger, EveryOperationHasAName) {
    std::set<std::string> names;
    for (std::size_t i = 0; i < Ledger::kOps; ++i) {
        const std::string name = op_name(static_cast<OpKind>(i));
        EXPECT_NE(name, "?");
        EXPECT_TRUE(names.insert(name).second) << name << " twice";
    }
}

}  // namespace
}  // namespace mr
