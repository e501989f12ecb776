// Tests of the reference itself: its gradients against finite differences, and edge cases.
#include "ops/attention/flash/reference.h"

#include <gtest/gtest.h>

namespace mr::ops::reference_test {
namespace {

using reference::Problem;
using reference::Result;
using Kind = AttentionMask::Kind;

constexpr AttentionMask kMasks[] = {
    {Kind::full},
    {Kind::causal},
    {Kind::block_causal, 4},
    {Kind::causal, 1, 6},           // a window
    {Kind::causal, 1, 6, 3},        // a window and sinks
    {Kind::block_causal, 4, 7, 2},  // block-causal with window and sinks
    {Kind::block_causal, 4, 0, 0, 3},
    {Kind::full, 1, 5, 2},
    {Kind::block_before, 4},
};

// The loss whose gradient by out is dout.
double loss(const Problem& p) {
    const Result r = reference::forward(p);
    double sum = 0;
    for (std::size_t i = 0; i < r.out.size(); ++i) sum += p.dout[i] * r.out[i];
    return sum;
}

// Central differences err by h^2 / 6 times a third derivative, here of order 10, and by the
// roundoff of the loss over h: both below 1e-7 of the gradients' size.
void expect_gradient(Problem& p, std::vector<double> Problem::*input,
                     const std::vector<double>& gradient) {
    constexpr double kStep = 1e-4;
    std::vector<double>& x = p.*input;
    ASSERT_EQ(x.size(), gradient.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double before = x[i];
        x[i] = before + kStep;
        const double above = loss(p);
        x[i] = before - kStep;
        const double below = loss(p);
        x[i] = before;
        ASSERT_NEAR(gradient[i], (above - below) / (2 * kStep), 1e-6 * (1 + std::abs(gradient[i])))
            << "element " << i;
    }
}

void expect_gradients(Problem p) {
    const Result r = reference::forward_backward(p);
    expect_gradient(p, &Problem::q, r.dq);
    expect_gradient(p, &Problem::k, r.dk);
    expect_gradient(p, &Problem::v, r.dv);
}

TEST(FlashReference, GradientsAreFiniteDifferences) {
    for (const AttentionMask& mask : kMasks) {
        for (int length : {1, 2, 5, 17}) {
            SCOPED_TRACE(::testing::Message()
                         << "mask " << static_cast<int>(mask.kind) << " window " << mask.window
                         << " sinks " << mask.sinks << " length " << length);
            expect_gradients(reference::random_problem(2, 1, 3, {length}, {length}, mask, 5));
            if (HasFatalFailure()) return;
        }
        expect_gradients(reference::random_problem(1, 1, 2, {33}, {33}, mask, 6));
        if (HasFatalFailure()) return;
    }
}

TEST(FlashReference, GradientsWithGroupsOfHeads) {
    for (int kv_heads : {1, 2, 3, 6}) {
        expect_gradients(reference::random_problem(6, kv_heads, 3, {5}, {5}, {}, 7));
    }
}

TEST(FlashReference, GradientsOfPackedSequencesOfDifferentQueriesAndKeys) {
    for (const AttentionMask& mask : kMasks) {
        expect_gradients(
            reference::random_problem(2, 1, 3, {3, 0, 1, 7, 2, 5}, {9, 4, 5, 2, 0, 5}, mask, 8));
        if (HasFatalFailure()) return;
    }
}

TEST(FlashReference, SequencesOfABatchAreAlone) {
    const Problem both = reference::random_problem(2, 2, 4, {3, 5}, {4, 5}, {}, 9);
    Problem second = both;
    second.cu_q = second.cu_k = {0, 5};
    for (auto part : {&Problem::q, &Problem::dout}) {
        (second.*part).erase((second.*part).begin(), (second.*part).begin() + 3 * 2 * 4);
    }
    for (auto part : {&Problem::k, &Problem::v}) {
        (second.*part).erase((second.*part).begin(), (second.*part).begin() + 4 * 2 * 4);
    }
    const Result all = reference::forward_backward(both);
    const Result alone = reference::forward_backward(second);
    EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), all.out.begin() + 3 * 2 * 4));
    EXPECT_TRUE(std::equal(alone.dq.begin(), alone.dq.end(), all.dq.begin() + 3 * 2 * 4));
    EXPECT_TRUE(std::equal(alone.dk.begin(), alone.dk.end(), all.dk.begin() + 4 * 2 * 4));
    EXPECT_TRUE(std::equal(alone.dv.begin(), alone.dv.end(), all.dv.begin() + 4 * 2 * 4));
}

// By hand: two keys, the second query sees both with scores 0 and ln 3.
TEST(FlashReference, ByHand) {
    Problem p{1, 1, 1, {0, 2}, {0, 2}, {}, 1, {1, 1}, {1, 1}, {0, std::log(3.0)}, {4, 8}};
    const Result r = reference::forward_backward(p);
    EXPECT_DOUBLE_EQ(r.out[0], 4);
    EXPECT_DOUBLE_EQ(r.lse[0], 0);
    EXPECT_DOUBLE_EQ(r.out[1], 7);  // 1/4 and 3/4
    EXPECT_DOUBLE_EQ(r.lse[1], std::log(4.0));
    EXPECT_DOUBLE_EQ(r.dv[0], 1.25);
    EXPECT_DOUBLE_EQ(r.dv[1], 0.75);
    EXPECT_DOUBLE_EQ(r.dk[1], 0.75);   // 3/4 (8 - 7)
    EXPECT_DOUBLE_EQ(r.dk[0], -0.75);  // 1/4 (4 - 7)
    EXPECT_DOUBLE_EQ(r.dq[1], 0.75 * std::log(3.0));
}

// More queries than keys: the first queries are before every key.
TEST(FlashReference, RowsThatSeeNothingAreZero) {
    const Problem p = reference::random_problem(2, 1, 4, {5}, {2}, {}, 10);
    const Result r = reference::forward_backward(p);
    for (int i = 0; i < 5; ++i) {
        for (int head = 0; head < 2; ++head) {
            const double lse = r.lse[p.lse_at(0, i, head)];
            EXPECT_EQ(lse == -std::numeric_limits<double>::infinity(), i < 3);
            for (int d = 0; d < 4; ++d) {
                const std::size_t at = p.q_at(0, i, head) + Problem::at(d);
                EXPECT_EQ(r.out[at] == 0, i < 3);
                if (i <= 3) {
                    EXPECT_EQ(r.dq[at], 0);  // a single key has weight 1 for any q
                } else {
                    EXPECT_NE(r.dq[at], 0);
                }
            }
        }
    }
}

TEST(FlashReference, ExtremeScoresGiveNoNan) {
    for (const AttentionMask& mask : kMasks) {
        if (mask.kind == Kind::block_before) continue;  // rows that see nothing have no finite lse
        Problem p = reference::random_problem(2, 1, 4, {17}, {17}, mask, 11);
        for (double& q : p.q) q = q < 0 ? -100 : 100;  // scores are multiples of 1e4
        for (double& k : p.k) k = k < 0 ? -100 : 100;
        const Result r = reference::forward_backward(p);
        for (const auto* part : {&r.out, &r.lse, &r.dq, &r.dk, &r.dv}) {
            for (double x : *part) ASSERT_TRUE(std::isfinite(x));
        }
    }
    Problem p = reference::random_problem(1, 1, 2, {3}, {3}, {}, 12);
    for (double& q : p.q) q = 1;
    for (double& k : p.k) k = -std::numeric_limits<double>::infinity();
    const Result r = reference::forward(p);
    for (double x : r.out) EXPECT_EQ(x, 0);
    for (double x : r.lse) EXPECT_EQ(x, -std::numeric_limits<double>::infinity());
}

// The models' own expression, bit for bit, and the quotient to an ulp.
TEST(AttentionScale, IsTheModels) {
    for (int dim = 8; dim <= 256; dim += 8) {
        EXPECT_EQ(default_scale(dim), 1.0f / std::sqrt(static_cast<float>(dim)));
        const double exact = 1 / std::sqrt(double(dim));
        EXPECT_LE(std::abs(default_scale(dim) - exact), 0x1p-23 * exact) << dim;
    }
}

}  // namespace
}  // namespace mr::ops::reference_test
