// Adjusted draws on the GPU against those on the CPU.
#include "ops/sample/adjust_cuda.h"

#include <cmath>
#include <limits>
#include <vector>

#include "core/cuda/testing.h"
#include "core/philox.h"

namespace mr::cuda::adjust_cuda_test {
namespace {

constexpr int kRows = 6;
constexpr std::int64_t kVocab = 5003;  // not a multiple of a block or of a mask word
constexpr float kInf = std::numeric_limits<float>::infinity();

class Thirds final : public ops::TokenFilter {
  public:
    Thirds() : words_((kVocab + 31) / 32) { accept(-1); }
    std::span<const std::uint32_t> mask() override { return words_; }
    // After a token, only tokens with the next remainder are allowed.
    void accept(std::int32_t token) override {
        std::fill(words_.begin(), words_.end(), 0);
        for (std::int32_t i = 0; i < kVocab; ++i) {
            if (i % 3 == (token + 1) % 3) words_[static_cast<std::size_t>(i / 32)] |= 1u << i % 32;
        }
    }
    bool finished() const override { return false; }

  private:
    std::vector<std::uint32_t> words_;
};

class AdjusterTest : public GpuTest {
  protected:
    std::vector<float> logits_of(std::uint64_t step) const {
        std::vector<float> out(static_cast<std::size_t>(kRows * kVocab));
        for (std::size_t i = 0; i < out.size(); ++i) {
            // Few distinct values, so that many are equal.
            out[i] = static_cast<float>(philox(3, i, step)[0] % 41) / 4 - 5;
        }
        out[7] = -kInf;
        return out;
    }
};

TEST_F(AdjusterTest, HasTheLogitsAndNotesOfTheHost) {
    std::vector<ops::Adjustments> adjust(kRows);
    adjust[1].bias = {{2, 50.0f}, {4000, -kInf}, {17, -1.5f}};
    adjust[2].presence = 1.25f;
    adjust[2].frequency = 0.3f;
    adjust[4] = adjust[1];
    adjust[4].frequency = 100;
    const std::vector<int> logprobs = {20, 5, -1, 0, 7, -1};  // the last row is not adjusted
    Thirds thirds, theirs;
    Adjuster adjuster(*stream_, kRows + 2, kRows, kVocab);
    Sampler sampler(*stream_, kRows, 0);
    const auto slot_of = [](int row) { return kRows + 1 - row; };  // slots differ from rows
    for (int text = 0; text < 2; ++text) {                         // slots are reused
        std::vector<ops::TokenCounts> counts(kRows);
        for (int r = 0; r < kRows; ++r) {
            const auto i = static_cast<std::size_t>(r);
            sampler.set_row(r, {.temperature = r == 3 ? 0.9f : 0.0f, .seed = 5}, text, {}, 0,
                            nullptr);
            if (r == kRows - 1) continue;
            adjuster.open(slot_of(r), adjust[i], r == 3, logprobs[i], nullptr);
        }
        for (std::uint64_t step = 0; step < 40; ++step) {
            const std::vector<float> raw = logits_of(step + 100 * static_cast<unsigned>(text));
            auto* const device = upload<float>(raw);
            const Tensor rows{const_cast<float*>(device), DType::f32, {kRows, kVocab}};
            std::vector<Adjuster::Row> of(kRows);
            for (int r = 0; r + 1 < kRows; ++r) of[static_cast<std::size_t>(r)].slot = slot_of(r);
            of[3].filter = &thirds;
            adjuster.set_rows(of, nullptr);
            adjuster.before(ctx_, rows);
            sampler.sample(ctx_, rows);
            adjuster.after(ctx_, rows, sampler.state());
            const std::vector<float> got = download(static_cast<const float*>(device), raw.size());
            for (int r = 0; r < kRows; ++r) {
                SCOPED_TRACE("row " + std::to_string(r) + ", step " + std::to_string(step));
                const auto i = static_cast<std::size_t>(r);
                std::vector<float> want(raw.begin() + r * kVocab, raw.begin() + (r + 1) * kVocab);
                const std::vector<float> given = want;
                ops::adjust_logits(want, adjust[i], counts[i],
                                   r == 3 ? theirs.mask() : std::span<const std::uint32_t>());
                ASSERT_TRUE(std::equal(want.begin(), want.end(), got.begin() + r * kVocab));
                const std::int32_t id = sampler.wait(r, sampler.steps(r) - 1).id;
                if (adjust[i].counts()) ++counts[i][id];
                if (r == 3) {
                    ASSERT_EQ(theirs.mask()[static_cast<std::size_t>(id / 32)] >> id % 32 & 1, 1u);
                    theirs.accept(id);
                    thirds.accept(id);
                }
                if (logprobs[i] < 0) continue;
                const ops::DrawnLogprobs note = adjuster.wait(slot_of(r), step);
                const ops::DrawnLogprobs host = ops::logprobs_of(given, id, logprobs[i]);
                ASSERT_NEAR(note.logprob, host.logprob, 1e-9);
                ASSERT_EQ(note.top.size(), host.top.size());
                for (std::size_t k = 0; k < host.top.size(); ++k) {
                    ASSERT_EQ(note.top[k].id, host.top[k].id);
                    ASSERT_NEAR(note.top[k].logprob, host.top[k].logprob, 1e-9);
                }
            }
        }
    }
}

}  // namespace
}  // namespace mr::cuda::adjust_cuda_test
