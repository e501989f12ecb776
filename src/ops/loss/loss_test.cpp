#include "ops/loss/loss.h"

#include <cmath>

#include "ops/simd/testing.h"

namespace mr::ops {
namespace {

using namespace testing;

double exact_nll(const float* row, std::int64_t n, std::int32_t target) {
    double top = row[0], sum = 0;
    for (std::int64_t i = 0; i < n; ++i) top = std::max(top, double{row[i]});
    for (std::int64_t i = 0; i < n; ++i) sum += std::exp(double{row[i]} - top);
    return std::log(sum) + top - double{row[target]};
}

TEST(CrossEntropy, MatchesF64) {
    for_each_isa([] {
        for (std::int64_t vocab : {1, 2, 3, 31, 65, 512, 32003}) {
            for (float size : {0.01f, 3.0f, 50.0f}) {
                const std::int64_t tokens = 4;
                Floats logits = Floats::normal({tokens, vocab}, 3, size, 7);
                std::vector<std::int32_t> targets;
                for (std::int64_t t = 0; t < tokens; ++t) {
                    targets.push_back(static_cast<std::int32_t>((t * 7919) % vocab));
                }
                std::vector<double> nll(4, std::nan("")), threads(4, std::nan(""));
                Bench one(1), three(3);
                cross_entropy(one, nll, logits, targets);
                cross_entropy(three, threads, logits, targets);
                EXPECT_EQ(nll, threads);
                for (std::size_t t = 0; t < 4; ++t) {
                    const double want =
                        exact_nll(logits.values.data() + static_cast<std::int64_t>(t) * vocab,
                                  vocab, targets[t]);
                    // An exponential: 4 roundoffs, and the rounding of its argument, at most the
                    // argument's size; far terms weigh nothing. Sums of 8 in f32, then exact.
                    const double bound = (4 + 20 + 10) * kRoundoff;
                    ASSERT_NEAR(nll[t], want, bound) << "vocab " << vocab << " size " << size;
                }
            }
        }
    });
}

TEST(CrossEntropy, ExtremeRows) {
    for_each_isa([] {
        const float inf = std::numeric_limits<float>::infinity();
        const std::int64_t vocab = 37;
        Floats logits({4, vocab}, 0);
        logits[5] = 1e30f;             // certain
        logits[vocab + 36] = kPoison;  // NaN, in the tail of the row
        logits[2 * vocab + 3] = -inf;  // impossible elsewhere
        for (std::int64_t i = 0; i < vocab; ++i) logits[3 * vocab + i] = -1e30f;
        std::vector<double> nll(4);
        const std::vector<std::int32_t> targets{5, 0, 3, 1};
        Bench bench;
        cross_entropy(bench, nll, logits, targets);
        EXPECT_EQ(nll[0], 0);
        EXPECT_TRUE(std::isnan(nll[1]));
        EXPECT_EQ(nll[2], std::numeric_limits<double>::infinity());
        EXPECT_NEAR(nll[3], std::log(37.0), 8 * kRoundoff);
    });
}

TEST(CrossEntropy, LedgerAndContract) {
    Floats logits({3, 11}, 0);
    std::vector<double> nll(3);
    const std::vector<std::int32_t> targets{0, 10, 5}, wild{0, 11, 0}, few{0};
    Bench bench;
    cross_entropy(bench, nll, logits, targets);
    expect_record(bench.ledger.op(OpKind::loss), 1, 3 * 11 * 4 + 12, 24, 4 * 33);
    EXPECT_THROW(cross_entropy(bench, nll, logits, wild), ContractError);
    EXPECT_THROW(cross_entropy(bench, nll, logits, few), ContractError);
}

}  // namespace
}  // namespace mr::ops
