// Guesses on the GPU against those of the CPU.
#include "ops/denoise/denoise_cuda.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "core/cuda/testing.h"
#include "core/error.h"

namespace mr::cuda {
namespace {

class GuessTest : public GpuTest {
  protected:
    std::vector<DeviceGuess> run(const std::vector<std::vector<float>>& logits,
                                 const std::vector<GuessRow>& rows, std::int32_t mask, int team) {
        memory_.reset();
        const auto count = static_cast<std::int64_t>(rows.size());
        const auto vocab = static_cast<std::int64_t>(logits[0].size());
        const Tensor t = memory_.tensor(DType::f32, {count, vocab});
        for (std::int64_t r = 0; r < count; ++r) {
            stream_->to_device(t.f32(r), logits[static_cast<std::size_t>(r)].data(),
                               static_cast<std::size_t>(vocab) * 4, nullptr);
        }
        // By the kernel for each row; rows of the other kernel are inactive.
        auto* const out = memory_.array<DeviceGuess>(rows.size());
        stream_->fill(out, 0xff, rows.size() * sizeof *out);
        for (const bool filtered : {false, true}) {
            std::vector<GuessRow> some = rows;
            for (GuessRow& row : some) row.sampling.active &= is_filtered(row, vocab) == filtered;
            auto* const on_device = upload<GuessRow>(some);
            if (filtered) {
                guess(ctx_, t, on_device, mask, out, team);
            } else {
                guess_by_tiles(ctx_, t, on_device, mask, out);
            }
        }
        return download(out, rows.size());
    }
    static bool is_filtered(const GuessRow& row, std::int64_t vocab) {
        ops::SampleParams sampling;
        sampling.temperature = row.sampling.temperature;
        sampling.top_k = row.sampling.top_k;
        sampling.top_p = row.sampling.top_p;
        sampling.min_p = row.sampling.min_p;
        return ops::draw_is_filtered(sampling, vocab, row.truth);
    }
    ops::Guess on_cpu(std::vector<float> logits, const ops::SampleParams& sampling,
                      const ops::DenoiseParams& how, std::int32_t mask, std::int64_t position,
                      std::int32_t step, std::int32_t truth) {
        scratch_.resize(ops::sample_scratch_bytes(std::ssize(logits)));
        Context cpu;
        cpu.pool = &pool_;
        cpu.scratch = scratch_;
        return ops::guess(cpu, Tensor(logits.data(), DType::f32, {std::ssize(logits)}), sampling,
                          how, mask, static_cast<std::uint64_t>(position),
                          static_cast<std::uint64_t>(step), truth);
    }

    ThreadPool pool_{1};
    std::vector<std::byte> scratch_;
};

TEST_F(GuessTest, RowsAreThoseOfTheCpu) {
    std::mt19937 random(7);
    for (const int vocab : {5, 96, 4097, 9000, 151936}) {
        std::vector<std::vector<float>> logits;
        std::vector<GuessRow> rows;
        std::vector<ops::Guess> want;
        const std::int32_t mask = vocab - 2;
        for (int i = 0; i < 24; ++i) {
            const float spread[] = {0.1f, 1.0f, 3.0f, 10.0f};
            std::normal_distribution<float> dist(-1.0f, spread[i % 4]);
            std::vector<float> row(static_cast<std::size_t>(vocab));
            for (float& x : row) x = dist(random);
            if (i % 5 == 0) row[static_cast<std::size_t>(mask)] = 50;  // must not count
            ops::SampleParams sampling;
            sampling.temperature = i % 3 == 0 ? 0.0f : i % 3 == 1 ? 1.0f : 0.7f;
            sampling.top_k = i % 2 ? 50 : 0;
            sampling.top_p = i % 4 == 3 ? 0.9f : 1.0f;
            sampling.min_p = 0;
            sampling.seed = static_cast<std::uint64_t>(i);
            const ops::DenoiseParams how{
                .remask = i % 2 ? ops::Remask::entropy : ops::Remask::dynamic, .drawn = i % 7 == 6};
            const std::int32_t truth = i % 6 == 5 ? i % (vocab - 2) : -1;
            const std::int64_t position = 1000 + i;
            const std::int32_t step = i % 9;
            rows.push_back(guess_row(sampling, how, position, step, truth));
            want.push_back(on_cpu(row, sampling, how, mask, position, step, truth));
            logits.push_back(std::move(row));
        }
        for (const int team : {1, 8}) {
            if (!sample_team_fits(vocab, team)) continue;
            const std::vector<DeviceGuess> got = run(logits, rows, mask, team);
            for (std::size_t i = 0; i < rows.size(); ++i) {
                SCOPED_TRACE("vocabulary " + std::to_string(vocab) + ", team " +
                             std::to_string(team) + ", row " + std::to_string(i));
                EXPECT_EQ(got[i].flags, 0u);
                EXPECT_EQ(got[i].guess.id, want[i].id);
                EXPECT_NEAR(got[i].guess.confidence, want[i].confidence,
                            2e-5f * want[i].confidence);
                EXPECT_NEAR(got[i].guess.entropy, want[i].entropy, 2e-4f);
                EXPECT_NEAR(got[i].guess.logprob, want[i].logprob, 1e-4f);
            }
        }
    }
}

TEST_F(GuessTest, RowsDoNotDependOnOthersOrOnTheTeam) {
    std::mt19937 random(3);
    std::normal_distribution<float> dist(0.0f, 2.0f);
    std::vector<std::vector<float>> logits(16, std::vector<float>(20000));
    std::vector<GuessRow> rows;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        for (float& x : logits[i]) x = dist(random);
        ops::SampleParams sampling;
        if (i % 2) sampling = {.temperature = 0.9f, .top_k = 0, .top_p = 1, .min_p = 0};
        sampling.seed = i;
        rows.push_back(guess_row(sampling, {.remask = ops::Remask::entropy},
                                 static_cast<std::int64_t>(i), 1, -1));
    }
    const std::vector<DeviceGuess> all = run(logits, rows, 7, 1);
    for (const int team : {1, 8}) {
        if (!sample_team_fits(20000, team)) continue;
        for (std::size_t i = 0; i < rows.size(); ++i) {
            const DeviceGuess alone = run({logits[i]}, {rows[i]}, 7, team)[0];
            EXPECT_EQ(std::memcmp(&alone, &all[i], sizeof alone), 0) << i << ", team " << team;
        }
    }
}

// Records made on the host by the kernels' functions, and logits, give the same result.
TEST_F(GuessTest, RecordsGiveWhatLogitsGive) {
    std::mt19937 random(11);
    for (const int vocab : {1, 17, 96, 9001, 151936}) {
        const int mask = vocab > 1 ? vocab / 3 : -1;
        std::vector<std::vector<float>> logits;
        std::vector<GuessRow> rows;
        std::vector<ops::TileRecord> records;
        for (int i = 0; i < 12; ++i) {
            std::normal_distribution<float> dist(0.0f, i % 2 ? 4.0f : 0.2f);
            std::vector<float> row(static_cast<std::size_t>(vocab));
            for (float& x : row) x = dist(random);
            if (i == 7) row[0] = std::numeric_limits<float>::infinity();
            if (i == 8) row[static_cast<std::size_t>(vocab) - 1] = std::nanf("");
            if (i == 9) std::fill(row.begin(), row.end(), ops::kNoLogit);
            if (i == 10) std::fill(row.begin(), row.end(), 1.5f);
            ops::SampleParams sampling{.top_k = 0, .top_p = 1, .min_p = 0};
            sampling.temperature = i % 3 == 0 ? 0.0f : i % 3 == 1 ? 1.0f : 0.7f;
            sampling.seed = 90 + static_cast<std::uint64_t>(i);
            const std::int32_t truth = i == 6 ? vocab - 1 : -1;
            rows.push_back(guess_row(
                sampling,
                {.remask = i % 4 ? ops::Remask::entropy : ops::Remask::fixed, .drawn = i % 5 == 0},
                50 + i, i, truth));
            const ops::TileAsk ask{sampling.temperature,
                                   truth,
                                   i % 4 != 0,
                                   sampling.seed,
                                   50ull + static_cast<unsigned>(i),
                                   static_cast<std::uint32_t>(i)};
            for (int first = 0; first < vocab; first += ops::kDrawTile) {
                float x[ops::kDrawTile];
                for (int j = 0; j < ops::kDrawTile; ++j) {
                    const int id = first + j;
                    x[j] = id < vocab && id != mask ? row[static_cast<std::size_t>(id)]
                                                    : ops::kNoLogit;
                }
                records.push_back(ops::tile_record(x, first / ops::kDrawTile, ask));
            }
            logits.push_back(std::move(row));
        }
        const std::vector<DeviceGuess> want = run(logits, rows, mask, 1);
        memory_.reset();
        auto* const out = memory_.array<DeviceGuess>(rows.size());
        stream_->fill(out, 0xff, rows.size() * sizeof *out);
        guess_by_records(ctx_, upload<ops::TileRecord>(records), std::ssize(rows), vocab,
                         upload<GuessRow>(rows), out);
        const std::vector<DeviceGuess> got = download(out, rows.size());
        for (std::size_t i = 0; i < rows.size(); ++i) {
            EXPECT_EQ(std::memcmp(&got[i], &want[i], sizeof got[i]), 0)
                << "vocabulary " << vocab << ", row " << i << ": " << got[i].guess.id << " and "
                << want[i].guess.id << ", confidence " << got[i].guess.confidence << " and "
                << want[i].guess.confidence;
        }
        EXPECT_EQ(got[8].flags, mask == vocab - 1 ? 0u : std::uint32_t{kSampleNan});
        EXPECT_EQ(got[9].flags, std::uint32_t{kSampleNone});
    }
}

TEST_F(GuessTest, RowsWithoutATokenSaySo) {
    const float inf = std::numeric_limits<float>::infinity();
    std::vector<std::vector<float>> logits(3, std::vector<float>(100, 0.0f));
    logits[0][5] = std::numeric_limits<float>::quiet_NaN();
    std::fill(logits[1].begin(), logits[1].end(), -inf);
    logits[1][9] = 1;  // the mask
    logits[2][3] = logits[2][4] = inf;
    for (const bool filters : {true, false}) {
        ops::SampleParams sampling;
        if (!filters) sampling = {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0};
        const GuessRow row = guess_row(sampling, {.remask = ops::Remask::entropy}, 0, 0, -1);
        const std::vector<DeviceGuess> got = run(logits, {row, row, row}, 9, 1);
        EXPECT_EQ(got[0].flags, kSampleNan);
        EXPECT_EQ(got[1].flags, kSampleNone);
        EXPECT_EQ(got[2].flags, 0u);
        EXPECT_EQ(got[2].guess.confidence, 0.5f);
        EXPECT_NEAR(got[2].guess.entropy, std::log(2.0f), 1e-6);
    }
}

}  // namespace
}  // namespace mr::cuda
