// Attention on the GPU against f64 on the host.
#include "ops/attention/paged/attention_testing.h"

namespace mr::cuda::paged {
namespace {

TEST_F(AttentionGpu, DecodeMatchesF64) {
    const int lengths[] = {1, 31, 32, 33, 63, 64, 65, 127, 1000, 4100};
    int turn = 0;
    for (const int dim : kDims) {
        for (const auto& types : kTypes) {
            const int group = 1 << (turn++ % 4);
            const Shapes s{group < 4 ? 2 * group : group, group < 4 ? 2 : 1, dim, types.q,
                           types.cache};
            memory_.reset();
            const World w = make_world(s, {std::begin(lengths), std::end(lengths)});
            std::vector<Item> one;
            for (int i = 0; i < 10; ++i) one.push_back({i, lengths[i], 1});
            for (const AttentionMask& mask : kMasks) {
                const std::vector<float> got = compute(Form::decode, w, one, mask);
                expect_near(w, one, mask, s.scale(), got);
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST_F(AttentionGpu, DecodeOfSeveralRowsMatchesF64) {
    int turn = 0;
    for (const int dim : kDims) {
        for (const auto& types : kTypes) {
            const int group = 1 << (turn++ % 4);
            const Shapes s{2 * group, 2, dim, types.q, types.cache};
            memory_.reset();
            const World w = make_world(s, {5, 70, 300, 40, 64, 2500});
            const std::vector<Item> items{{0, 5, 5},   {1, 70, 3},  {2, 290, 17},
                                          {3, 40, 40}, {4, 64, 64}, {5, 2400, 7}};
            for (const AttentionMask& mask : kMasks) {
                const std::vector<float> got = compute(Form::decode, w, items, mask);
                expect_near(w, items, mask, s.scale(), got);
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST_F(AttentionGpu, EveryGroupAndTypeOnTensorCores) {
    for (const int group : {1, 2, 3, 4, 8, 12}) {
        for (const DType dtype : {kBf16, kF16}) {
            const Shapes s{group, 1, 128, dtype, dtype};
            memory_.reset();
            const World w = make_world(s, {200, 65, 130});
            const std::vector<Item> items{{0, 200, 1}, {1, 65, 2}, {2, 130, 90}};
            for (const Form form : kForms) {
                const std::vector<float> got = compute(form, w, items, kCausal);
                expect_near(w, items, kCausal, s.scale(), got);
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST_F(AttentionGpu, PrefillMatchesF64) {
    int turn = 0;
    for (const int dim : kDims) {
        for (const auto& types : kTypes) {
            const int group = 1 << (turn++ % 4);
            const Shapes s{2 * group, 2, dim, types.q, types.cache};
            memory_.reset();
            const World w = make_world(s, {65, 127, 400, 1000, 1, 33, 450});
            const std::vector<Item> items{{0, 65, 65}, {1, 127, 127}, {2, 390, 129}, {3, 900, 300},
                                          {4, 1, 1},   {5, 33, 33},   {6, 449, 1}};
            for (const AttentionMask& mask : kMasks) {
                for (const Form form : {Form::prefill, Form::steps}) {
                    const std::vector<float> got = compute(form, w, items, mask);
                    expect_near(w, items, mask, s.scale(), got, 6);
                    if (HasFatalFailure()) return;
                }
            }
        }
    }
}

TEST_F(AttentionGpu, PrefillOfLongSequences) {
    for (const int dim : {64, 128}) {
        const Shapes s{2, 1, dim, kBf16, kBf16};
        memory_.reset();
        const World w = make_world(s, {4100, 1000});
        const std::vector<Item> items{{0, 4100, 4100}, {1, 1000, 1000}};
        for (const AttentionMask& mask : {kCausal, kWideWindow, kFull, kSinks}) {
            for (const Form form : {Form::prefill, Form::steps}) {
                const std::vector<float> got = compute(form, w, items, mask);
                expect_near(w, items, mask, s.scale(), got, 9);
                if (HasFatalFailure()) return;
            }
        }
    }
}

// One key has all the weight, a different one for every head: a key that is skipped, read from a
// wrong place or read twice shows, unlike among thousands of equals.
TEST_F(AttentionGpu, NeedlesAreFound) {
    constexpr int kNeedles[] = {0,   1,   15,   16,   31,   32,   33,   63,   64,   65,
                                127, 128, 2047, 2048, 2111, 2303, 2304, 2560, 2698, 2699};
    constexpr int kHeads = 20, kLength = 2700;
    for (const int dim : {48, 64, 80, 96, 128, 256}) {
        for (const DType dtype : {kBf16, kF16, kF32}) {
            // Only kernels that differ: all types for 64 and 128, fewer for the other sizes.
            if (dtype != kBf16 && (dim == 80 || dim == 96)) continue;
            if (dtype == kF16 && (dim == 48 || dim == 256)) continue;
            const Shapes s{kHeads, kHeads, dim, dtype, dtype};
            memory_.reset();
            World w = make_world(s, {kLength}, 0.1f);
            const auto row = static_cast<std::size_t>(kHeads * dim);
            for (std::size_t h = 0; h < kHeads; ++h) {
                const std::size_t column = h * static_cast<std::size_t>(dim);
                float* q = w.q[0].data() + (kLength - 1) * row + column;
                float* k = w.k[0].data() + static_cast<std::size_t>(kNeedles[h]) * row + column;
                for (int d = 0; d < dim; ++d) {
                    q[d] = rounded(dtype, normal(1)[0]);
                    k[d] = rounded(dtype, 16 * q[d]);
                }
            }
            upload_cache(w, 3 + (kLength + 31) / 32);
            const std::vector<Item> items{{0, kLength, 1}};
            for (const Form form : kForms) {
                const std::vector<float> got = compute(form, w, items, kCausal);
                expect_near(w, items, kCausal, s.scale(), got);
                if (HasFatalFailure()) return;
                for (std::size_t h = 0; h < kHeads; ++h) {
                    for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) {
                        const std::size_t column = h * static_cast<std::size_t>(dim) + d;
                        const double v =
                            w.v[0][static_cast<std::size_t>(kNeedles[h]) * row + column];
                        // The others weigh about exp(-16 sqrt(dim)): nothing.
                        ASSERT_NEAR(got[column], v, 2 * epsilon(dtype) * std::abs(v) + 1e-6)
                            << s.str() << ", key " << kNeedles[h] << ", column " << d;
                    }
                }
            }
        }
    }
}

TEST_F(AttentionGpu, ExtremeScoresMatchF64) {
    for (const int dim : {40, 64, 80, 96, 128, 256}) {
        for (const auto& types : kTypes) {
            const Shapes s{4, 2, dim, types.q, types.cache};
            memory_.reset();
            // Products of 128 elements of deviation 30: scores of about +-1e4 at scale 1.
            const World w = make_world(s, {300, 70, 2200}, 30);
            const std::vector<Item> items{{0, 300, 20}, {1, 70, 70}, {2, 2200, 1}};
            for (const Form form : kForms) {
                const std::vector<float> got = compute(form, w, items, kCausal, 0, 1.0f);
                expect_near(w, items, kCausal, 1.0f, got);
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST_F(AttentionGpu, RowsWithoutWeightGiveZeros) {
    for (const int dim : {48, 64, 80, 96, 128, 256}) {
        for (const DType dtype : {kBf16, kF16, kF32}) {
            const Shapes s{2, 1, dim, dtype, dtype};
            memory_.reset();
            World w = make_world(s, {70, 100});
            for (float& x : w.q[0]) x = 1;
            for (float& x : w.k[0]) x = -std::numeric_limits<float>::infinity();
            upload_cache(w, 3 + 3 + 4);
            const std::vector<Item> items{{0, 70, 3}, {1, 100, 2}};
            for (const Form form : kForms) {
                const std::vector<float> got = compute(form, w, items, kCausal);
                for (const float x : rows_of(w, items, got, 0)) ASSERT_EQ(x, 0.0f) << s.str();
                for (const float x : rows_of(w, items, got, 1)) ASSERT_TRUE(std::isfinite(x));
            }
            // A sequence before its first position has no keys at all.
            for (const Form form : kForms) {
                const Run run = prepare(w, {{1, 100, 1}}, 2500);
                const std::int32_t before = -1;
                stream_->to_device(run.positions, &before, 4, nullptr);
                give_scratch(s, 1, 2500);
                launch_form(form, w, run, kCausal);
                for (const float x : download(run.out)) ASSERT_EQ(x, 0.0f) << s.str();
            }
        }
    }
}

}  // namespace
}  // namespace mr::cuda::paged
