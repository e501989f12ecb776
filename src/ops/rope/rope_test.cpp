#include "ops/rope/rope.h"

#include <cmath>

#include "ops/simd/testing.h"

namespace mr::ops {
namespace {

using namespace testing;

std::vector<double> frequencies(int rotary) {
    std::vector<double> out;
    for (int i = 0; i < rotary / 2; ++i) out.push_back(std::pow(10000.0, -2.0 * i / rotary));
    return out;
}

TEST(RopeTable, AnglesAreExactFarOut) {
    const std::vector<std::int32_t> positions{0, 1, 17, 4095, 1000003, 2000000000};
    const std::vector<double> inv_freq = frequencies(20);
    Floats table({6, 10, 2});
    Bench bench(2);
    rope_table(bench, table, positions, inv_freq, 1.25);
    for (std::int64_t t = 0; t < 6; ++t) {
        for (std::int64_t i = 0; i < 10; ++i) {
            const long double angle =
                static_cast<long double>(positions[static_cast<std::size_t>(t)]) *
                inv_freq[static_cast<std::size_t>(i)];
            // The angle is rounded once to f64, the result once to f32.
            const double error = std::abs(static_cast<double>(angle)) * 0x1p-53 + 2 * kRoundoff;
            EXPECT_NEAR(table[(t * 10 + i) * 2], static_cast<double>(std::cos(angle)) * 1.25,
                        1.25 * error);
            EXPECT_NEAR(table[(t * 10 + i) * 2 + 1], static_cast<double>(std::sin(angle)) * 1.25,
                        1.25 * error);
        }
    }
    const std::uint64_t read = 6 * 4 + 10 * 8;
    expect_record(bench.ledger.op(OpKind::rope), 1, read, 6 * 10 * 2 * 4, 5 * 60);
}

TEST(Rope, MatchesF64InBothStyles) {
    for_each_isa([] {
        struct Case {
            int heads, dim, rotary;
        };
        for (const Case& c : {Case{1, 2, 2}, {3, 10, 10}, {4, 64, 64}, {2, 80, 20}, {5, 7, 6}}) {
            const int tokens = 9, pairs = c.rotary / 2;
            const Floats x = Floats::normal({tokens, c.heads, c.dim}, 1);
            std::vector<std::int32_t> positions;
            for (int t = 0; t < tokens; ++t) positions.push_back(100 * t);
            Floats table({tokens, pairs, 2});
            Bench bench;
            rope_table(bench, table, positions, frequencies(c.rotary), 1);
            for (RopeStyle style : {RopeStyle::half, RopeStyle::interleaved}) {
                Floats y = x;
                rope(bench, y, table, style);
                for (int threads : {2, 3}) {
                    Floats again = x;
                    Bench many(threads);
                    rope(many, again, table, style);
                    EXPECT_TRUE(same_bits(y.values, again.values));
                }
                for (std::int64_t t = 0; t < tokens; ++t) {
                    for (std::int64_t h = 0; h < c.heads; ++h) {
                        const std::int64_t at = (t * c.heads + h) * c.dim;
                        for (std::int64_t i = 0; i < pairs; ++i) {
                            const bool half = style == RopeStyle::half;
                            const std::int64_t first = at + (half ? i : 2 * i);
                            const std::int64_t second = at + (half ? i + pairs : 2 * i + 1);
                            const double cosine = table[(t * pairs + i) * 2];
                            const double sine = table[(t * pairs + i) * 2 + 1];
                            const double a = x[first], b = x[second];
                            const double bound = 2 * kRoundoff * (std::abs(a) + std::abs(b));
                            ASSERT_NEAR(y[first], a * cosine - b * sine, bound);
                            ASSERT_NEAR(y[second], a * sine + b * cosine, bound);
                        }
                        for (std::int64_t d = c.rotary; d < c.dim; ++d) {
                            ASSERT_EQ(y[at + d], x[at + d]);  // beyond rotary: untouched
                        }
                    }
                }
            }
        }
    });
}

TEST(Rope, LedgerAndContract) {
    Floats x({2, 3, 8}, 1), table({2, 2, 2}, 1), wide({2, 5, 2}, 1), few({1, 2, 2}, 1);
    Bench bench;
    rope(bench, x, table, RopeStyle::half);
    const std::uint64_t rotated = 2 * 3 * 4;
    expect_record(bench.ledger.op(OpKind::rope), 1, rotated * 4 + 32, rotated * 4, rotated * 3);
    EXPECT_THROW(rope(bench, x, wide, RopeStyle::half), ContractError);
    EXPECT_THROW(rope(bench, x, few, RopeStyle::half), ContractError);
    const std::vector<std::int32_t> positions{0, 1, 2};
    EXPECT_THROW(rope_table(bench, table, positions, frequencies(4), 1), ContractError);
}

}  // namespace
}  // namespace mr::ops
