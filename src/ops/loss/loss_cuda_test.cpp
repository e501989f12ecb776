#include "ops/loss/loss_cuda.h"

#include <cmath>
#include <limits>

#include "core/cuda/testing.h"

namespace mr::cuda::loss_cuda_test {
namespace {

constexpr double kRoundoff = 0x1p-24;

double exact_nll(const float* row, std::int64_t n, std::int32_t target) {
    double top = row[0], sum = 0;
    for (std::int64_t i = 0; i < n; ++i) top = std::max(top, double{row[i]});
    for (std::int64_t i = 0; i < n; ++i) sum += std::exp(double{row[i]} - top);
    return std::log(sum) + top - double{row[target]};
}

class LossTest : public GpuTest {
  protected:
    std::vector<double> nll_of(std::int64_t rows, std::int64_t vocab, std::vector<float>& logits,
                               const std::vector<std::int32_t>& targets) {
        const Tensor on_device = upload(DType::f32, {rows, vocab}, logits);
        double* nll = memory_.array<double>(targets.size());
        stream_->fill(nll, 0xff, 8 * targets.size());
        cross_entropy(ctx_, nll, on_device, upload(std::span<const std::int32_t>(targets)));
        return download(nll, targets.size());
    }
};

TEST_F(LossTest, MatchesF64AndARowsBitsAreItsOwn) {
    for (const std::int64_t vocab : {1, 2, 3, 31, 65, 511, 512, 2049, 32003, 151936}) {
        for (const float size : {0.01f, 3.0f, 50.0f}) {
            memory_.reset();
            const std::int64_t rows = vocab > 100000 ? 3 : 9;
            std::vector<float> logits = normal(static_cast<std::size_t>(rows * vocab), size);
            for (float& v : logits) v += 7;
            std::vector<std::int32_t> targets;
            for (std::int64_t t = 0; t < rows; ++t) {
                targets.push_back(static_cast<std::int32_t>((t * 7919) % vocab));
            }
            const std::vector<double> nll = nll_of(rows, vocab, logits, targets);
            for (std::size_t t = 0; t < targets.size(); ++t) {
                const auto from = logits.begin() + static_cast<std::ptrdiff_t>(t) * vocab;
                // An exponential: 4 roundoffs, and the rounding of its argument, at most the
                // argument's size, where far terms weigh nothing; the sum is f64.
                ASSERT_NEAR(nll[t], exact_nll(&*from, vocab, targets[t]), (4 + 20) * kRoundoff)
                    << "vocab " << vocab << " size " << size;
                std::vector<float> alone(from, from + vocab);
                ASSERT_EQ(nll_of(1, vocab, alone, {targets[t]})[0], nll[t]);
            }
        }
    }
}

TEST_F(LossTest, ExtremeRows) {
    const float inf = std::numeric_limits<float>::infinity();
    const std::size_t vocab = 1037;
    std::vector<float> logits(8 * vocab, 0.0f);
    logits[5] = 1e30f;             // certain
    logits[2 * vocab - 1] = NAN;   // in the tail of the row
    logits[2 * vocab + 3] = -inf;  // impossible, and the target
    for (std::size_t i = 0; i < vocab; ++i) logits[3 * vocab + i] = -1e30f;
    for (std::size_t i = 0; i < vocab; ++i) logits[4 * vocab + i] = -inf;
    logits[5 * vocab + 600] = inf;
    const std::vector<double> nll = nll_of(8, vocab, logits, {5, 0, 3, 1, 0, 600, -1, 1037});
    EXPECT_EQ(nll[0], 0);
    EXPECT_TRUE(std::isnan(nll[1]));
    EXPECT_EQ(nll[2], std::numeric_limits<double>::infinity());
    EXPECT_NEAR(nll[3], std::log(1037.0), 8 * kRoundoff);
    for (std::size_t row : {4, 5, 6, 7}) EXPECT_TRUE(std::isnan(nll[row])) << row;
}

TEST_F(LossTest, LedgerAndContract) {
    std::vector<float> logits(33, 0.0f);
    nll_of(3, 11, logits, {0, 10, 5});
    const OpRecord& record = ledger_.op(OpKind::loss);
    EXPECT_EQ(record.bytes_read, 3u * 11 * 4 + 12);
    EXPECT_EQ(record.bytes_written, 24u);
    EXPECT_EQ(record.flops, 4u * 33);
    double* nll = memory_.array<double>(3);
    const std::int32_t* targets = memory_.array<std::int32_t>(3);
    EXPECT_THROW(cross_entropy(ctx_, nll, poisoned(DType::f16, {3, 11}), targets), ContractError);
    EXPECT_THROW(cross_entropy(ctx_, nll, poisoned(DType::f32, {3, 11}), nullptr), ContractError);
}

}  // namespace
}  // namespace mr::cuda::loss_cuda_test
