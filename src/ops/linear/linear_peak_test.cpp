// The measured compute peak (observe/compute_peak.h) is a ceiling: no product is faster.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/ledger.h"
#include "observe/compute_peak.h"
#include "ops/linear/linear.h"
#include "ops/simd/testing.h"
#include "sanitized.h"

namespace mr::ops {
namespace {

constexpr std::int64_t kTokens = 48, kRows = 64, kColumns = 1024;

// FLOP/s of the fastest of many short runs, on operands that stay in the cache.
double best_rate(ThreadPool& pool, DType dtype) {
    std::vector<unsigned char> w(dtype_bytes(dtype, kRows * kColumns));
    // Bytes of 0x20 to 0x3f make scales and floats that are finite and not denormal: an x86 core
    // takes over a hundred cycles for a denormal operand.
    for (std::size_t i = 0; i < w.size(); ++i) {
        w[i] = static_cast<unsigned char>((i * 0x9e3779b9u >> 24 & 0x1fu) | 0x20u);
    }
    std::vector<float> x(kTokens * kColumns), out(kTokens * kRows);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 37) - 18.0f;
    std::vector<std::byte> scratch(linear_scratch_bytes(kTokens, kColumns, pool.size()));
    Ledger ledger;
    const Context ctx{&pool, &ledger, scratch};
    double best = 0;
    for (int run = 0; run < 100; ++run) {
        const Ledger before = ledger;
        linear(ctx, {x.data(), DType::f32, {kTokens, kColumns}},
               {{w.data(), dtype, {kRows, kColumns}}, {out.data(), DType::f32, {kTokens, kRows}}});
        const OpRecord op = ledger.since(before).op(OpKind::linear);
        EXPECT_EQ(op.flops, 2u * kTokens * kRows * kColumns);
        EXPECT_EQ(op.int8_flops, is_quantised(dtype) ? op.flops : 0);
        best = std::max(best, static_cast<double>(op.flops) / op.seconds);
    }
    return best;
}

TEST(LinearPeak, NoProductIsFasterThanTheMeasuredPeak) {
    if (test::sanitized()) GTEST_SKIP() << "it measures time";
    ThreadPool pool(1);
    testing::for_each_isa([&] {
        const observe::ComputePeak peak = observe::measure_compute_peak(pool);
        ASSERT_GT(peak.f32, 0);
        ASSERT_GT(peak.int8, 0);
        for (const DType dtype : {DType::f32, DType::bf16, DType::q8_0, DType::q4_0}) {
            const double ceiling = is_quantised(dtype) ? peak.int8 : peak.f32;
            const double share = best_rate(pool, dtype) / ceiling;
            // A clock may rise between the two measurements.
            EXPECT_LE(share, 1.05) << dtype_name(dtype);
            // And it is no fantasy: products come near enough to it.
            EXPECT_GE(share, 0.05) << dtype_name(dtype);
            RecordProperty(std::string(isa_name(active_isa())) + "_" + dtype_name(dtype),
                           std::to_string(share));
        }
    });
}

}  // namespace
}  // namespace mr::ops
