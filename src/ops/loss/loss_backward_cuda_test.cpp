#include "ops/loss/loss_backward_cuda.h"

#include <cmath>
#include <string>

#include "core/cuda/testing.h"
#include "core/error.h"

namespace mr::cuda {
namespace {

constexpr float kScale = 0.25f;

class LossBackwardTest : public GpuTest {
  protected:
    struct Run {
        std::vector<float> loss, gradient;
    };
    Run run(Tensor logits, std::int64_t vocab, const std::vector<std::int32_t>& targets,
            bool gradient = true) {
        const Tensor loss = poisoned(DType::f32, {logits.dim(0)});
        const std::int32_t* at = upload(std::span<const std::int32_t>(targets));
        cross_entropy_backward(ctx_, loss.f32(), logits, vocab, at, kScale, gradient);
        return {download(loss), download(logits)};
    }
};

// Vocabularies in eights or not, padded or not, that fit into shared memory or not.
TEST_F(LossBackwardTest, MatchesF64) {
    struct Case {
        std::int64_t vocab, cols;
    };
    for (const Case& c :
         {Case{1, 1}, Case{2, 8}, Case{5, 5}, Case{100, 104}, Case{257, 257}, Case{2048, 2048},
          Case{4097, 4104}, Case{16400, 16400}, Case{50257, 50304}, Case{50257, 50257},
          Case{151936, 151936}, Case{151936 - 3, 151936}, Case{151935, 151935}}) {
        SCOPED_TRACE(std::to_string(c.vocab) + " of " + std::to_string(c.cols));
        memory_.reset();
        constexpr std::int64_t kRows = 4;
        const auto vocab = static_cast<std::size_t>(c.vocab),
                   cols = static_cast<std::size_t>(c.cols);
        std::vector<float> values = normal(kRows * cols, 3);
        for (std::size_t i = 0; i < vocab; ++i) values[cols + i] += 200;  // a row far from 0
        for (std::size_t r = 0; r < kRows; ++r) {  // NaN in columns past the vocabulary
            for (std::size_t i = vocab; i < cols; ++i) values[r * cols + i] = NAN;
        }
        const Tensor logits = upload(DType::bf16, {kRows, c.cols}, values);
        const auto last = static_cast<std::int32_t>(c.vocab - 1);
        const std::vector<std::int32_t> targets{0, last, -1, last / 2};
        const std::vector<float> before = download(logits);
        const Run loss_alone = run(logits, c.vocab, targets, false);
        for (std::size_t i = 0; i < before.size(); ++i) {  // unchanged
            ASSERT_EQ(std::isnan(loss_alone.gradient[i]), std::isnan(before[i]));
            if (std::isnan(before[i])) continue;
            ASSERT_EQ(loss_alone.gradient[i], before[i]);
        }
        const Run got = run(logits, c.vocab, targets);
        for (std::size_t r = 0; r < kRows; ++r) {
            const float* row = values.data() + r * cols;
            ASSERT_EQ(got.loss[r], loss_alone.loss[r]);
            if (targets[r] < 0) {
                ASSERT_EQ(got.loss[r], 0);
                for (std::size_t i = 0; i < cols; ++i) ASSERT_EQ(got.gradient[r * cols + i], 0);
                continue;
            }
            double top = -INFINITY, sum = 0;
            for (std::size_t i = 0; i < vocab; ++i) top = std::max(top, double{row[i]});
            for (std::size_t i = 0; i < vocab; ++i) sum += std::exp(row[i] - top);
            const auto target = static_cast<std::size_t>(targets[r]);
            // A thread's chain is vocab / 512 long, then trees; the fast exponential errs by a few
            // roundoffs and by those of its argument, which is at most about 40.
            const double relative = 0x1p-24 * (static_cast<double>(vocab) / 512 + 80);
            const double loss = std::log(sum) + top - row[target];
            ASSERT_NEAR(got.loss[r], loss, relative + 0x1p-24 * 4 * (std::abs(loss) + 20));
            for (std::size_t i = 0; i < cols; ++i) {
                if (i >= vocab) {
                    ASSERT_EQ(got.gradient[r * cols + i], 0) << "padding " << i;
                    continue;
                }
                const double p = std::exp(row[i] - top) / sum;
                const double want = double{kScale} * (p - (i == target ? 1 : 0));
                ASSERT_NEAR(got.gradient[r * cols + i], want,
                            0x1p-8 * std::abs(want) + double{kScale} * relative)
                    << "row " << r << " column " << i;
            }
        }
    }
}

TEST_F(LossBackwardTest, WhatIsNotFiniteGivesNan) {
    for (const std::int64_t cols : {100, 104, 151936}) {
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
            memory_.reset();
            const auto width = static_cast<std::size_t>(cols);
            std::vector<float> values = normal(4 * width);
            values[width + 77] = bad;
            values[2 * width + 77] = bad;
            const Tensor logits = upload(DType::bf16, {4, cols}, values);
            // Row 2 does not count; row 3 has a target outside of the vocabulary.
            const Run got = run(logits, cols, {5, 5, -1, static_cast<std::int32_t>(cols)});
            EXPECT_TRUE(std::isfinite(got.loss[0]));
            EXPECT_TRUE(std::isnan(got.loss[1]));
            EXPECT_EQ(got.loss[2], 0);
            EXPECT_TRUE(std::isnan(got.loss[3]));
            for (std::size_t i = 0; i < width; ++i) {
                ASSERT_TRUE(std::isfinite(got.gradient[i]));
                ASSERT_TRUE(std::isnan(got.gradient[width + i]));
                ASSERT_EQ(got.gradient[2 * width + i], 0);
                ASSERT_TRUE(std::isnan(got.gradient[3 * width + i]));
            }
        }
    }
}

TEST_F(LossBackwardTest, BitsAndContract) {
    std::vector<float> values = normal(600 * 1000, 2);
    std::vector<std::int32_t> targets;
    for (int i = 0; i < 600; ++i) targets.push_back(i);
    std::vector<float> copy = values;
    const Run first = run(upload(DType::bf16, {600, 1000}, values), 1000, targets);
    const Run again = run(upload(DType::bf16, {600, 1000}, copy), 1000, targets);
    EXPECT_EQ(first.loss, again.loss);
    EXPECT_EQ(first.gradient, again.gradient);
    const Tensor logits = poisoned(DType::bf16, {2, 8});
    const std::int32_t* at = upload(std::span<const std::int32_t>(targets));
    float* loss = memory_.array<float>(2);
    EXPECT_THROW(cross_entropy_backward(ctx_, loss, logits, 9, at, 1), ContractError);
    EXPECT_THROW(cross_entropy_backward(ctx_, nullptr, logits, 8, at, 1), ContractError);
    EXPECT_THROW(cross_entropy_backward(ctx_, loss, poisoned(DType::f32, {2, 8}), 8, at, 1),
                 ContractError);
}

// Rows with weights and a hidden column with any content: the largest logit, the smallest, or NaN.
// For every way that a row is kept, multiples of eight or not; with vocabularies of which a thread
// has only the hidden column (5, 9, 2049), or all others of a piece (8).
TEST_F(LossBackwardTest, AMaskHasNoProbability) {
    struct Case {
        std::int64_t vocab, cols;
    };
    constexpr std::int64_t kRows = 6;
    const float hidden[kRows] = {90, -90, NAN, INFINITY, -INFINITY, 3e38f};
    const std::vector<float> weights{4.0f, 3.0f, 1.25f, 1.0f, 2.0f, 0.5f};
    for (const Case& c :
         {Case{2, 2}, Case{2, 8}, Case{5, 5}, Case{8, 8}, Case{9, 16}, Case{100, 100},
          Case{100, 104}, Case{2049, 2112}, Case{4097, 4097}, Case{4097, 4104}, Case{50257, 50257},
          Case{50257, 50304}, Case{151936, 151936}, Case{151935, 151935}}) {
        for (const std::int64_t mask : {std::int64_t{0}, c.vocab / 2, c.vocab - 1}) {
            SCOPED_TRACE(std::to_string(mask) + " of " + std::to_string(c.vocab) + " in " +
                         std::to_string(c.cols));
            memory_.reset();
            const auto vocab = static_cast<std::size_t>(c.vocab),
                       cols = static_cast<std::size_t>(c.cols),
                       column = static_cast<std::size_t>(mask);
            std::vector<float> values = normal(kRows * cols, 3);
            for (std::size_t r = 0; r < kRows; ++r) {
                values[r * cols + column] = hidden[r];
                for (std::size_t i = vocab; i < cols; ++i) values[r * cols + i] = NAN;
            }
            const Tensor logits = upload(DType::bf16, {kRows, c.cols}, values);
            const auto target = static_cast<std::int32_t>((mask + 1) % c.vocab);
            const std::vector<std::int32_t> targets{target, -1, target, target, target, target};
            const ops::MaskedLoss of{upload(std::span<const float>(weights)),
                                     static_cast<std::int32_t>(mask)};
            const std::int32_t* at = upload(std::span<const std::int32_t>(targets));
            const Tensor alone = poisoned(DType::f32, {kRows}),
                         loss = poisoned(DType::f32, {kRows});
            const std::vector<float> before = download(logits);
            masked_cross_entropy(ctx_, alone.f32(), logits, c.vocab, at, of, std::nullopt);
            const std::vector<float> after = download(logits);
            for (std::size_t i = 0; i < before.size(); ++i) {  // unchanged
                ASSERT_EQ(std::isnan(after[i]), std::isnan(before[i])) << i;
                if (std::isnan(before[i])) continue;
                ASSERT_EQ(after[i], before[i]) << i;
            }
            masked_cross_entropy(ctx_, loss.f32(), logits, c.vocab, at, of, kScale);
            const std::vector<float> got = download(loss), gradient = download(logits);
            EXPECT_EQ(got, download(alone));
            for (std::size_t r = 0; r < kRows; ++r) {
                SCOPED_TRACE("row " + std::to_string(r));
                const float* row = values.data() + r * cols;
                if (targets[r] < 0) {
                    ASSERT_EQ(got[r], 0);
                    for (std::size_t i = 0; i < cols; ++i) ASSERT_EQ(gradient[r * cols + i], 0);
                    continue;
                }
                double top = -INFINITY, sum = 0;
                for (std::size_t i = 0; i < vocab; ++i) {
                    if (i != column) top = std::max(top, double{row[i]});
                }
                for (std::size_t i = 0; i < vocab; ++i) {
                    if (i != column) sum += std::exp(row[i] - top);
                }
                const double want = std::log(sum) + top - row[target];
                const double relative = 0x1p-24 * (static_cast<double>(vocab) / 512 + 80);
                ASSERT_NEAR(got[r], weights[r] * want,
                            weights[r] * (relative + 0x1p-22 * (std::abs(want) + 20)));
                for (std::size_t i = 0; i < cols; ++i) {
                    if (i >= vocab || i == column) {
                        ASSERT_EQ(gradient[r * cols + i], 0) << i;
                        continue;
                    }
                    const double p = std::exp(row[i] - top) / sum;
                    const double one = i == static_cast<std::size_t>(target) ? 1 : 0;
                    const double slope = kScale * weights[r] * (p - one);
                    ASSERT_NEAR(gradient[r * cols + i], slope,
                                0x1p-8 * std::abs(slope) +
                                    kScale * weights[r] * relative * (p + one) + 0x1p-126)
                        << i;
                }
            }
        }
    }
}

// The other columns are checked as usual.
TEST_F(LossBackwardTest, AMaskHidesItselfAlone) {
    for (const std::int64_t cols : {5, 8, 100, 104, 151936}) {
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
            SCOPED_TRACE(std::to_string(cols) + " with " + std::to_string(bad));
            memory_.reset();
            const auto width = static_cast<std::size_t>(cols);
            std::vector<float> values = normal(2 * width);
            values[width + 3] = bad;  // next to the mask
            const Tensor logits = upload(DType::bf16, {2, cols}, values);
            const std::vector<std::int32_t> targets{1, 1};
            const std::vector<float> weights{1, 2};
            const Tensor loss = poisoned(DType::f32, {2});
            masked_cross_entropy(ctx_, loss.f32(), logits, cols,
                                 upload(std::span<const std::int32_t>(targets)),
                                 {upload(std::span<const float>(weights)), 2}, kScale);
            const std::vector<float> got = download(loss), gradient = download(logits);
            EXPECT_TRUE(std::isfinite(got[0]));
            EXPECT_TRUE(std::isnan(got[1]));
            for (std::size_t i = 0; i < width; ++i) {
                ASSERT_TRUE(std::isfinite(gradient[i])) << i;
                if (i == 2) continue;
                ASSERT_TRUE(std::isnan(gradient[width + i])) << i;
            }
        }
    }
}

}  // namespace
}  // namespace mr::cuda
