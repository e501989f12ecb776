// Records of tiles, and draws without filters, against f64 over the whole row.
#include "ops/denoise/tile_draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/error.h"
#include "ops/denoise/denoise.h"

namespace mr::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

SampleParams unfiltered(float temperature) {
    SampleParams out;
    out.temperature = temperature;
    out.top_k = 0;
    out.top_p = 1;
    out.min_p = 0;
    return out;
}

class TileDraw : public ::testing::Test {
  protected:
    Guess draw(std::vector<float> logits, const SampleParams& sampling, std::int32_t mask,
               std::uint64_t position, std::uint64_t step, const DenoiseParams& how = {}) {
        scratch_.resize(sample_scratch_bytes(std::ssize(logits)));
        Context ctx;
        ctx.pool = &pool_;
        ctx.scratch = scratch_;
        return guess(ctx, Tensor(logits.data(), DType::f32, {std::ssize(logits)}), sampling, how,
                     mask, position, step);
    }
    std::vector<float> normal(std::size_t count, float deviation) {
        std::normal_distribution<float> dist(-2, deviation);
        std::vector<float> out(count);
        for (float& x : out) x = dist(random_);
        return out;
    }
    // Softmax in f64, without the mask.
    static std::vector<double> probabilities(const std::vector<float>& logits, float temperature,
                                             std::int32_t mask) {
        std::vector<double> out;
        double sum = 0, best = -INFINITY;
        for (const float x : logits) best = std::max(best, static_cast<double>(x));
        for (std::size_t i = 0; i < logits.size(); ++i) {
            const double nats =
                (static_cast<double>(logits[i]) - best) / static_cast<double>(temperature);
            out.push_back(static_cast<std::int32_t>(i) == mask ? 0 : std::exp(nats));
            sum += out.back();
        }
        for (double& p : out) p /= sum;
        return out;
    }
    static std::vector<TileRecord> records(const std::vector<float>& logits, const TileAsk& ask) {
        std::vector<TileRecord> out;
        for (std::size_t first = 0; first < logits.size(); first += kDrawTile) {
            float x[kDrawTile];
            for (std::size_t i = 0; i < kDrawTile; ++i) {
                x[i] = first + i < logits.size() ? logits[first + i] : kNoLogit;
            }
            out.push_back(tile_record(x, static_cast<int>(first / kDrawTile), ask));
        }
        return out;
    }

    std::mt19937 random_{5};
    ThreadPool pool_{1};
    std::vector<std::byte> scratch_;
};

TEST_F(TileDraw, ExponentialsAreThoseOfF64) {
    EXPECT_EQ(tile::falling(0), 1.0f);
    for (float d = -1e-7f; d > -39.9f; d *= 1.0007f) {
        const double want = std::exp(static_cast<double>(d));
        ASSERT_NEAR(static_cast<double>(tile::falling(d)), want, want * 0x1p-22) << d;
    }
    for (const float d : {-41.0f, -1e30f, -kInf, std::nanf("")}) EXPECT_EQ(tile::falling(d), 0.0f);
}

// Chi-square with (number of tokens - 1) degrees of freedom f: mean f, deviation sqrt(2 f).
TEST_F(TileDraw, DrawsHaveTheProbabilitiesOfTheirTokens) {
    for (const int vocab : {2, 5, 16, 17, 40}) {
        for (const float temperature : {1.0f, 0.6f, 2.5f}) {
            const std::vector<float> logits = normal(static_cast<std::size_t>(vocab), 1);
            const std::int32_t mask = vocab > 2 ? vocab / 2 : -1;
            const std::vector<double> p = probabilities(logits, temperature, mask);
            constexpr int kDraws = 40000;
            std::vector<int> count(logits.size(), 0);
            const SampleParams sampling = unfiltered(temperature);
            for (int i = 0; i < kDraws; ++i) {
                const Guess got = draw(logits, sampling, mask, static_cast<std::uint64_t>(i / 200),
                                       static_cast<std::uint64_t>(i % 200));
                ++count[static_cast<std::size_t>(got.id)];
            }
            double chi = 0;
            int free = -1;
            for (std::size_t i = 0; i < p.size(); ++i) {
                if (p[i] == 0) {
                    EXPECT_EQ(count[i], 0) << "the mask was drawn";
                    continue;
                }
                const double expected = p[i] * kDraws;
                chi += (count[i] - expected) * (count[i] - expected) / expected;
                ++free;
            }
            EXPECT_LT(chi, free + 5 * std::sqrt(2.0 * std::max(free, 1)))
                << "vocabulary " << vocab << ", temperature " << temperature;
        }
    }
}

// The share of a tile times that of a token in it: the probabilities that draws are made by.
TEST_F(TileDraw, SharesAreProbabilities) {
    const std::vector<float> logits = normal(16 * 40 + 7, 3);
    for (const float temperature : {1.0f, 0.3f, 1.7f}) {
        const std::vector<double> p = probabilities(logits, temperature, -1);
        const TileAsk ask{.temperature = temperature};
        const std::vector<TileRecord> tiles = records(logits, ask);
        const float best = *std::max_element(logits.begin(), logits.end());
        std::vector<std::uint64_t> shares;
        std::uint64_t kept = 0;
        for (const TileRecord& tile : tiles) {
            const float d = tile::cooled(tile::below(tile.best, best), tile::rate_of(temperature));
            shares.push_back(tile::share(tile.weight, d));
            kept += shares.back();
        }
        for (std::size_t i = 0; i < logits.size(); ++i) {
            const TileRecord& tile = tiles[i / kDrawTile];
            const float d =
                tile::cooled(tile::below(logits[i], tile.best), tile::rate_of(temperature));
            const double inside = tile::units(tile::falling(d)) / static_cast<double>(tile.weight);
            const double got =
                inside * static_cast<double>(shares[i / kDrawTile]) / static_cast<double>(kept);
            // Units of 2^-27 in the tile and of 2^-40 in the row; x / temperature in f32.
            EXPECT_NEAR(got, p[i], 4e-6 * p[i] + 0x1p-26) << i << ", temperature " << temperature;
        }
    }
}

TEST_F(TileDraw, StatisticsOfRecordsAreThoseOfTheRow) {
    for (const float deviation : {0.1f, 3.0f, 12.0f}) {
        const std::vector<float> logits = normal(3000 + 5, deviation);
        const std::vector<double> p = probabilities(logits, 1, -1);
        const float best = *std::max_element(logits.begin(), logits.end());
        double entropy = 0;
        for (const double x : p) entropy -= x > 0 ? x * std::log(x) : 0;
        std::uint64_t sum = 0, spread = 0;
        for (const TileRecord& tile : records(logits, {.entropy = true})) {
            const float d = tile::below(tile.best, best);
            sum += tile::share(tile.sum, d);
            spread += tile::spread_share(tile, d);
            EXPECT_FALSE(tile.nan());
            EXPECT_EQ(tile.weight, 0u);
            EXPECT_EQ(tile.logit, tile.best);  // greedy
        }
        const double all = static_cast<double>(sum) * 0x1p-40;
        EXPECT_NEAR(1 / all, *std::max_element(p.begin(), p.end()), 2e-6 / all);
        EXPECT_NEAR(std::log(all) + static_cast<double>(spread) * 0x1p-40 / all, entropy, 2e-5);
    }
}

TEST_F(TileDraw, CandidatesAreTheBestTheTruthOrDrawn) {
    float x[kDrawTile];
    std::fill(x, x + kDrawTile, 0.0f);
    x[9] = x[11] = 2;
    EXPECT_EQ(tile_record(x, 3, {}).candidate(), 9);  // the first of equals
    const TileRecord truth = tile_record(x, 3, {.temperature = 1, .truth = 3 * kDrawTile + 4});
    EXPECT_EQ(truth.candidate(), 4);
    EXPECT_EQ(truth.logit, 0.0f);
    // Every token with probability is drawn by some tile number, and no other.
    x[0] = x[15] = kNoLogit;
    std::vector<int> count(kDrawTile, 0);
    for (int number = 0; number < 4000; ++number) {
        ++count[static_cast<std::size_t>(tile_record(x, number, {.temperature = 2}).candidate())];
    }
    for (int i = 0; i < kDrawTile; ++i) {
        EXPECT_EQ(count[static_cast<std::size_t>(i)] > 0, i != 0 && i != 15) << i;
    }
    x[3] = std::nanf("");
    EXPECT_TRUE(tile_record(x, 3, {.temperature = 1}).nan());
}

TEST_F(TileDraw, RowsAtTheEdges) {
    std::vector<float> row(17, -kInf);
    row[16] = -3;  // the only possible token, alone in its tile
    for (std::uint64_t step = 0; step < 20; ++step) {
        const Guess got = draw(row, unfiltered(1), 5, 1, step, {.drawn = true});
        EXPECT_EQ(got.id, 16);
        EXPECT_EQ(got.confidence, 1.0f);
        EXPECT_EQ(got.logprob, 0.0f);
    }
    EXPECT_THROW(draw(row, unfiltered(1), 16, 1, 0), Error);
    row[2] = row[16] = kInf;  // they share all the probability
    row[3] = 100;
    int first = 0;
    for (std::uint64_t step = 0; step < 200; ++step) {
        const Guess got = draw(row, unfiltered(0.5f), -1, 1, step, {.drawn = true});
        EXPECT_TRUE(got.id == 2 || got.id == 16) << got.id;
        EXPECT_EQ(got.confidence, 0.5f);
        first += got.id == 2;
    }
    EXPECT_NEAR(first, 100, 40);
    // A temperature whose inverse is infinite draws the best token.
    EXPECT_EQ(draw({1, 3, 2}, unfiltered(1e-45f), -1, 0, 0).id, 1);
    EXPECT_EQ(draw({1, 3, 2}, unfiltered(1e-45f), -1, 0, 7).id, 1);
    row[4] = std::nanf("");
    EXPECT_THROW(draw(row, unfiltered(1), -1, 1, 0), Error);
}

TEST_F(TileDraw, ConfidenceOfTheDrawnTokenIsItsProbability) {
    const std::vector<float> logits = normal(100, 2);
    const std::vector<double> p = probabilities(logits, 0.8f, 7);
    for (std::uint64_t step = 0; step < 50; ++step) {
        const Guess got = draw(logits, unfiltered(0.8f), 7, 2, step, {.drawn = true});
        const double want = p[static_cast<std::size_t>(got.id)];
        EXPECT_NEAR(static_cast<double>(got.confidence), want, 4e-6 * want + 1e-7);
    }
}

// Filters that keep everything count as none; any other one makes the draw that of sample().
TEST_F(TileDraw, FiltersThatTakeNothingAwayAreNone) {
    const std::vector<float> logits = normal(60, 1);
    SampleParams all = unfiltered(1);
    all.top_k = 60;
    EXPECT_FALSE(draw_is_filtered(all, 60, -1));
    for (std::uint64_t step = 0; step < 30; ++step) {
        EXPECT_EQ(draw(logits, all, -1, 4, step).id, draw(logits, unfiltered(1), -1, 4, step).id);
    }
    SampleParams some = unfiltered(1);
    some.top_k = 59;
    EXPECT_TRUE(draw_is_filtered(some, 60, -1));
    EXPECT_FALSE(draw_is_filtered(some, 60, 3));  // nothing is drawn
    some.temperature = 0;
    EXPECT_FALSE(draw_is_filtered(some, 60, -1));
    some = unfiltered(1);
    some.top_p = 0.999f;
    EXPECT_TRUE(draw_is_filtered(some, 60, -1));
    some = unfiltered(1);
    some.min_p = 0.001f;
    EXPECT_TRUE(draw_is_filtered(some, 60, -1));
}

}  // namespace
}  // namespace mr::ops
