// The backward of attention on plain tensors, every path that this device can run, against the
// reference in f64, with bounds for every element.
#include <utility>

#include "ops/attention/flash/backward/testing.h"
#include "ops/attention/mask_testing.h"

namespace mr::cuda {
namespace {

namespace reference = ops::reference;

TEST_F(FlashBackwardTest, EveryMaskHeadDimAndType) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
        for (const int dim : {64, 80, 96, 128}) {
            for (const AttentionMask& mask : kBackwardMasks) {
                expect_reference(random(2, 1, dim, {150, 1}, {150, 1}, mask, dtype), dtype,
                                 "dim " + std::to_string(dim) + " " + text(mask));
                if (HasFatalFailure()) return;
            }
        }
    }
}

// Every path on small inputs, for compute-sanitizer.
TEST_F(FlashBackwardTest, EveryPathOnAFewTokens) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
        for (const int dim : {64, 128}) {
            expect_reference(random(2, 1, dim, {70, 1}, {70, 9}, {Kind::causal, 1, 20, 3}, dtype),
                             dtype, "dim " + std::to_string(dim));
            if (HasFatalFailure()) return;
        }
    }
}

TEST_F(FlashBackwardTest, OddHeadDims) {
    for (const int dim : {8, 16, 32, 40, 72, 104, 120}) {
        for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
            expect_reference(random(2, 1, dim, {70}, {70}, {}, dtype), dtype,
                             "dim " + std::to_string(dim));
            if (HasFatalFailure()) return;
        }
    }
}

TEST_F(FlashBackwardTest, RaggedLengths) {
    const std::vector<int> lengths{1, 63, 64, 65, 127, 128, 129, 300};
    for (const AttentionMask& mask : kBackwardMasks) {
        for (const int dim : {64, 80, 96, 128}) {
            const DType dtype = dim == 64 || dim == 96 ? DType::f16 : DType::bf16;
            expect_reference(random(1, 1, dim, lengths, lengths, mask, dtype), dtype,
                             "dim " + std::to_string(dim) + " " + text(mask));
            if (HasFatalFailure()) return;
        }
    }
}

TEST_F(FlashBackwardTest, LongSequence) {
    for (const Kind kind : {Kind::full, Kind::causal}) {
        for (const int dim : {64, 96, 128}) {
            if (dim != 64 && kind == Kind::full) continue;
            expect_reference(random(1, 1, dim, {1000}, {1000}, {kind}, DType::bf16), DType::bf16,
                             "1000 tokens of " + std::to_string(dim));
            if (HasFatalFailure()) return;
        }
    }
}

// More tiles of keys than a device runs at once, all of which add to the same tiles of dq.
TEST_F(FlashBackwardTest, ManyTilesOfKeys) {
    for (const Kind kind : {Kind::full, Kind::causal}) {
        for (const int dim : {64, 128}) {
            expect_reference(random(1, 1, dim, {70}, {17300}, {kind}, DType::bf16), DType::bf16,
                             "17,300 keys, dim " + std::to_string(dim));
            if (HasFatalFailure()) return;
        }
    }
}

TEST_F(FlashBackwardTest, QueriesAndKeysThatDiffer) {
    for (const AttentionMask& mask : kBackwardMasks) {
        for (const int dim : {64, 128}) {
            expect_reference(random(2, 1, dim, {5, 64, 1, 40, 0, 3, 270, 300},
                                    {270, 64, 300, 17, 9, 0, 150, 20}, mask, DType::bf16),
                             DType::bf16, "dim " + std::to_string(dim) + " " + text(mask));
            if (HasFatalFailure()) return;
        }
    }
}

TEST_F(FlashBackwardTest, BlocksFromEveryOrigin) {
    for (const AttentionMask& mask : ops::reference::origin_masks()) {
        for (const auto& [dim, dtype] :
             {std::pair{64, DType::bf16}, {128, DType::bf16}, {96, DType::f16}, {64, DType::f32}}) {
            expect_reference(random(2, 1, dim, {70, 9, 40}, {70, 41, 13}, mask, dtype), dtype,
                             "dim " + std::to_string(dim) + " " + text(mask));
            if (HasFatalFailure()) return;
        }
    }
}

TEST_F(FlashBackwardTest, GroupsOfHeads) {
    for (const int kv_heads : {1, 2, 3, 6}) {
        for (const Kind kind : {Kind::full, Kind::causal}) {
            expect_reference(random(6, kv_heads, 64, {145, 3}, {145, 8}, {kind}, DType::f16),
                             DType::f16, std::to_string(kv_heads) + " kv heads");
            if (HasFatalFailure()) return;
        }
    }
    for (const auto& [dim, dtype] : {std::pair{64, DType::bf16},
                                     {80, DType::bf16},
                                     {96, DType::bf16},
                                     {96, DType::f16},
                                     {128, DType::bf16},
                                     {128, DType::f16}}) {
        for (const int kv_heads : {1, 2, 4}) {
            for (const Kind kind : {Kind::full, Kind::causal}) {
                expect_reference(random(4, kv_heads, dim, {70, 3}, {70, 8}, {kind}, dtype), dtype,
                                 std::to_string(kv_heads) + " kv heads of " + std::to_string(dim));
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST_F(FlashBackwardTest, ExtremeScoresGiveNoNan) {
    for (const int dim : {64, 80, 96, 128}) {
        for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
            for (const AttentionMask& mask : kBackwardMasks) {
                // All masks once; elsewhere full, causal, and a window with sinks.
                const std::ptrdiff_t number = &mask - kBackwardMasks.data();
                if ((dim != 64 || dtype != DType::bf16) && number != 1 && number % 4 != 0) continue;
                Problem p = random(2, 1, dim, {150}, {150}, mask, dtype);
                make_extreme(p);
                if (HasFatalFailure()) return;
                expect_reference(p, dtype, "dim " + std::to_string(dim) + " " + text(mask));
                if (HasFatalFailure()) return;
            }
        }
    }
}

// Rows that see no key, and rows whose scores were all -infinity, give no gradient to anything.
TEST_F(FlashBackwardTest, RowsWithoutWeightGiveNothing) {
    for (const int dim : {64, 128}) {
        const Problem p = random(2, 1, dim, {300}, {140}, {}, DType::bf16);
        expect_reference(p, DType::bf16, "more queries than keys");
        if (HasFatalFailure()) return;
        const Wanted want = wanted(p, DType::bf16);
        memory_.reset();
        Device d = device_copy(p, want.value, DType::bf16);
        std::vector<float> lse(Problem::at(2 * 300), -std::numeric_limits<float>::infinity());
        d.lse = upload(DType::f32, {2, 300}, lse);
        backward(d, p);
        for (const Tensor& t : {d.dq, d.dk, d.dv}) {
            for (const float x : download(t)) ASSERT_EQ(x, 0.0f);
        }
    }
}

// Forward, and backward from its results, with scores that overflow to -infinity: finite queries of
// -3e38 and keys above 0.5. (f16 has no numbers so large.) Such a row has no weight: it contributes
// nothing, as if its dout were 0, which is the reference's input.
TEST_F(FlashBackwardTest, ScoresThatOverflowGiveRowsWithoutWeight) {
    const std::vector<int> rows{0, 3, 63, 64, 99, 149};
    for (const int dim : {64, 80, 96, 128}) {
        for (const DType dtype : {DType::bf16, DType::f32}) {
            for (const AttentionMask& mask :
                 {AttentionMask{Kind::full}, AttentionMask{Kind::causal},
                  AttentionMask{Kind::block_causal, 50, 70, 2}}) {
                Problem p = random(2, 1, dim, {150}, {150}, mask, dtype);
                const auto width = Problem::at(2 * dim);
                for (double& x : p.k) x = rounding(dtype)(static_cast<float>(std::abs(x) + 0.5));
                Problem overflown = p;
                for (const int i : rows) {
                    const std::size_t at = p.q_at(0, i, 0);
                    std::fill_n(p.dout.begin() + static_cast<std::ptrdiff_t>(at), width, 0.0);
                    std::fill_n(overflown.q.begin() + static_cast<std::ptrdiff_t>(at), width,
                                double{rounding(dtype)(-3e38f)});
                }
                const Wanted want = wanted(p, dtype);
                for (const Path path : paths(dtype, dim)) {
                    memory_.reset();
                    const Device d = device_copy(overflown, want.value, dtype);
                    for (const Tensor& t : {d.out, d.lse}) stream_->fill(t.data, 0xff, t.bytes());
                    flash_forward(ctx_, d.out, d.lse, d.q, d.k, d.v, d.batch, mask,
                                  static_cast<float>(p.scale));
                    const std::vector<float> out = download(d.out), lse = download(d.lse);
                    for (const float x : out) ASSERT_TRUE(std::isfinite(x)) << text(mask);
                    for (const int i : rows) {
                        for (std::size_t x = 0; x < width; ++x) {
                            ASSERT_EQ(out[p.q_at(0, i, 0) + x], 0.0f) << text(mask) << " row " << i;
                        }
                        for (int h = 0; h < 2; ++h) {
                            ASSERT_EQ(lse[p.lse_at(0, i, h)],
                                      -std::numeric_limits<float>::infinity());
                        }
                    }
                    backward(d, p, path);
                    expect_close(
                        d, want,
                        "dim " + std::to_string(dim) + " " + text(mask) + ", " + name(path));
                    if (HasFatalFailure()) return;
                }
            }
        }
    }
}

// NaN in tokens that belong to no sequence neither spreads nor is overwritten.
TEST_F(FlashBackwardTest, TokensOfNoSequenceAreNeitherReadNorWritten) {
    for (const AttentionMask& mask : kBackwardMasks) {
        for (const int dim : {64, 80, 128}) {
            expect_reference(random(2, 1, dim, {150, 30}, {100, 70}, mask, DType::bf16),
                             DType::bf16, "dim " + std::to_string(dim) + " " + text(mask), 40);
            if (HasFatalFailure()) return;
        }
    }
}

// Keys without queries have gradients of 0; queries without keys too.
TEST_F(FlashBackwardTest, EmptyProblems) {
    Problem p = random(2, 1, 64, {0}, {70}, {}, DType::bf16);
    Device d = device_copy(p, reference::forward_backward(p), DType::bf16);
    backward(d, p);
    for (const Tensor& t : {d.dk, d.dv}) {
        for (const float x : download(t)) ASSERT_EQ(x, 0.0f);
    }
    p = random(2, 1, 64, {70}, {0}, {}, DType::bf16);
    d = device_copy(p, reference::forward_backward(p), DType::bf16);
    backward(d, p);
    for (const float x : download(d.dq)) ASSERT_EQ(x, 0.0f);
}

// Refused before anything is launched.
TEST(FlashBackwardLimits, TooManyTilesForAGridAreRefused) {
    flash::Problem p;
    p.max_queries = 1;
    p.tokens_q = 1;
    p.max_keys = 65535 * 64 + 1;
    EXPECT_THROW(flash::backward_mma({}, p, {}, nullptr), ContractError);
    p.max_keys = 65535 * 32 + 1;
    EXPECT_THROW(flash::backward_plain({}, p, {}, nullptr), ContractError);
}

TEST_F(FlashBackwardTest, ScratchIsAskedFor) {
    const Tensor q = poisoned(DType::bf16, {7, 2, 64}), lse = poisoned(DType::f32, {2, 7});
    ctx_.scratch = {};
    EXPECT_THROW(flash_backward(ctx_, {q, q, q}, q, q, q, q, q, lse, {}, {}, 1), ContractError);
}

}  // namespace
}  // namespace mr::cuda
