#include "observe/compute_peak.h"

#include <gtest/gtest.h>

#include "core/cpu.h"
#include "observe/device_bandwidth.h"

namespace mr::observe {
namespace {

TEST(ComputePeak, IsPlausible) {
    ThreadPool pool(cpu_info().cores);
    const ComputePeak peak = measure_compute_peak(pool, 0.005);
    EXPECT_GT(peak.f32, 50e6);  // slower than any machine, even under a sanitizer
    EXPECT_LT(peak.f32, 1e14);  // faster than any: the products would have been left out
    EXPECT_GT(peak.int8, 50e6);
    EXPECT_LT(peak.int8, 1e15);
    const Isa isa = active_isa();
    if (isa == Isa::neon_dot || isa == Isa::neon_i8mm || isa == Isa::avx512) {
        EXPECT_GT(peak.int8, peak.f32);
    }
    EXPECT_EQ(peak.bf16 > 0, isa == Isa::neon_i8mm);
}

TEST(ComputePeak, IsMeasuredOnce) {
    ThreadPool one(1), other(1);
    const ComputePeak first = compute_peak(one), again = compute_peak(other);
    EXPECT_EQ(first.f32, again.f32);
    EXPECT_EQ(first.int8, again.int8);
}

TEST(ComputePeak, IsMeasuredOnlyWhereItIsAskedFor) {
    ThreadPool pool(1);
    const Ceilings plain = ceilings_of(false, pool, 0.01);
    EXPECT_GT(plain.read, 0);
    EXPECT_EQ(plain.f32, 0);
    const Ceilings all = ceilings_of(false, pool, 0.01, true);
    EXPECT_GT(all.f32, 0);
    EXPECT_GT(all.int8, 0);
    EXPECT_EQ(all.matrix, 0);
}

}  // namespace
}  // namespace mr::observe
