// The sorting sampler draws the same tokens as the engine's samplers; it is only slower.
#include <random>
#include <vector>

#include "bench/diffusion/diffusion.h"
#include "core/cuda/testing.h"

namespace mr::cuda {
namespace {

using SortedRowsTest = GpuTest;

TEST_F(SortedRowsTest, DrawsWhatTheCpuDraws) {
    constexpr int kVocab = 5000, kRows = 12;
    std::mt19937 random(5);
    std::normal_distribution<float> dist(0.0f, 3.0f);
    std::vector<float> logits(static_cast<std::size_t>(kVocab) * kRows);
    for (float& x : logits) x = dist(random);
    const Tensor t = memory_.tensor(DType::f32, {kRows, kVocab});
    stream_->to_device(t.data, logits.data(), t.bytes(), nullptr);
    const auto sorted = diffusion::SortedRows::make(ctx_, kRows, kVocab, 17);
    std::vector<ops::SampleParams> sampling(kRows);
    const ops::DenoiseParams how{.remask = ops::Remask::fixed};
    std::vector<model::Place> places;
    for (int i = 0; i < kRows; ++i) {
        ops::SampleParams& s = sampling[static_cast<std::size_t>(i)];
        s.temperature = i % 3 == 0 ? 0.0f : 1.0f;
        s.top_k = i % 2 ? 50 : 0;
        s.top_p = i % 4 == 1 ? 0.8f : i % 2 ? 1.0f : 0.95f;  // always filtered
        s.min_p = 0;
        s.seed = static_cast<std::uint64_t>(i);
        places.push_back({&s, &how, 100 + i, i % 5});
    }
    std::vector<ops::Guess> got(kRows);
    sorted->guess(t, places, got);
    ThreadPool pool(1);
    std::vector<std::byte> scratch(ops::sample_scratch_bytes(kVocab));
    Context cpu;
    cpu.pool = &pool;
    cpu.scratch = scratch;
    for (int i = 0; i < kRows; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const ops::Guess want = ops::guess(
            cpu, Tensor(logits.data() + at * kVocab, DType::f32, {kVocab}), sampling[at], how, 17,
            static_cast<std::uint64_t>(100 + i), static_cast<std::uint64_t>(i % 5));
        EXPECT_EQ(got[at].id, want.id) << i;
        EXPECT_NEAR(got[at].confidence, want.confidence, 1e-5f) << i;
        EXPECT_NEAR(got[at].logprob, want.logprob, 1e-4f) << i;
    }
}

}  // namespace
}  // namespace mr::cuda
