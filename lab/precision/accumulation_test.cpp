// Sums of a small number, compared with the same sums in integers.
#include "lab/precision/accumulation.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>

namespace mr::precision {
namespace {

constexpr std::int64_t kTimes = 1000;
constexpr double kValue = 0.01;

// Every value here is an integer multiple of 2^-30, the last bit of 0.01 in f32.
constexpr int kUnit = 30;

int bits_of(Format format) {  // of the significand, with the implicit one
    return format == Format::f32 ? 24 : format == Format::f16 ? 11 : 8;
}

// numerator / denominator to the nearest integer, ties to even.
std::uint64_t divide(std::uint64_t numerator, std::uint64_t denominator) {
    const std::uint64_t whole = numerator / denominator;
    const std::uint64_t twice = 2 * (numerator % denominator);
    const bool up = twice > denominator || (twice == denominator && whole % 2 == 1);
    return whole + (up ? 1 : 0);
}

// To `bits` significant bits.
std::uint64_t rounded(std::uint64_t value, int bits) {
    const int extra = static_cast<int>(std::bit_width(value)) - bits;
    return extra <= 0 ? value : divide(value, std::uint64_t{1} << extra) << extra;
}

// 1/100 in units of 2^-30, to `bits` bits: 2^-7 is the power of two below it.
std::uint64_t hundredth(int bits) {
    const int last = 6 + bits;  // the exponent of the last bit
    return divide(std::uint64_t{1} << last, 100) << (kUnit - last);
}

TEST(Accumulation, IsThatOfWholeNumbers) {
    for (const Accumulation& row : accumulation_rows()) {
        if (row.rounding == Rounding::stochastic) continue;
        SCOPED_TRACE(std::to_string(bits_of(row.addend)) + " bits into " +
                     std::to_string(bits_of(row.sum)));
        const std::uint64_t addend = hundredth(bits_of(row.addend));
        std::uint64_t sum = 0;
        std::int64_t changed = 0;
        for (std::int64_t i = 1; i <= kTimes; ++i) {
            const std::uint64_t next = rounded(sum + addend, bits_of(row.sum));
            if (next != sum) changed = i;
            sum = next;
        }
        const Accumulated got = accumulate(row, kValue, kTimes, 1);
        EXPECT_EQ(got.addend, std::ldexp(static_cast<double>(addend), -kUnit));
        EXPECT_EQ(got.result, std::ldexp(static_cast<double>(sum), -kUnit));
        EXPECT_EQ(got.stalled_after, changed < kTimes ? changed : -1);
    }
}

// A sum stalls at the first power of two from which on half of its last bit is more than 0.01: 4
// for bf16, whose numbers from 4 to 8 are 1/32 apart. Those of f16 from 8 to 16 are 1/128 apart, so
// that its sum does not stall.
TEST(Accumulation, StallsWhereHalfOfTheLastBitIsMore) {
    double power = 1;
    while (power / 128 / 2 <= kValue) power *= 2;  // bf16: 7 bits after the first
    const Accumulated bf16 = accumulate({Format::bf16, Format::bf16}, kValue, kTimes, 1);
    EXPECT_EQ(bf16.result, power);
    EXPECT_GT(bf16.stalled_after, 0);
    EXPECT_EQ(accumulate({Format::bf16, Format::bf16}, kValue, 100 * kTimes, 1).result, power);
    EXPECT_EQ(accumulate({Format::f16, Format::f16}, kValue, kTimes, 1).stalled_after, -1);
}

// An f32 sum of 16-bit summands has little more than the error of the summand.
TEST(Accumulation, MixedKeepsTheErrorOfTheAddendAlone) {
    for (const Format half : {Format::f16, Format::bf16}) {
        const Accumulated got = accumulate({half, Format::f32}, kValue, kTimes, 1);
        const double exact = got.addend * static_cast<double>(kTimes);
        // Each addition is off by at most half of the last bit of a number below 16.
        EXPECT_LE(std::abs(got.result - exact), static_cast<double>(kTimes) * std::ldexp(1.0, -21));
        EXPECT_GT(std::abs(exact - 10), 1e-3);
    }
}

TEST(Accumulation, StochasticIsRightOnAverage) {
    const Accumulation row{Format::f32, Format::bf16, Rounding::stochastic};
    const Accumulated one = accumulate(row, kValue, kTimes, 7);
    EXPECT_EQ(one.result, accumulate(row, kValue, kTimes, 7).result);  // depends only on the seed
    EXPECT_EQ(one.stalled_after, -1);
    EXPECT_NE(one.result, accumulate(row, kValue, kTimes, 8).result);
    // An addition whose exact result lies p of the way between two numbers that are u apart has the
    // variance u^2 p (1 - p), and p u = 0.01 if u is more than that; otherwise at most u^2 / 4. So
    // a sum has at most 1000 * 0.01 * u with u = 1/16, the spacing from 8 to 16.
    constexpr std::int64_t kSeeds = 1000;
    const Spread spread = accumulate_often(row, kValue, kTimes, kSeeds);
    const double most = std::sqrt(static_cast<double>(kTimes) * kValue / 16);
    EXPECT_LE(spread.deviation, most * 1.1);  // error of the estimate: 5 / sqrt(2 seeds)
    EXPECT_GT(spread.deviation, 0.1);
    EXPECT_NEAR(spread.mean, 10, 5 * most / std::sqrt(static_cast<double>(kSeeds)));
}

}  // namespace
}  // namespace mr::precision
