// The noise of the diffusion objective: rates, places, weights, and their dependencies.
#include "train/noise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "core/error.h"

namespace mr::train {
namespace {

constexpr std::int32_t kMask = 777;

struct Noisy {
    std::vector<std::int32_t> slot;
    std::int64_t count = 0;
    model::TrainShape shape;
    model::SlotParts<const std::int32_t> parts() const { return {slot, shape}; }
    bool masked(std::size_t at) const { return parts().ids[at] == kMask; }
    float weight(std::size_t i) const {
        float out = 0;
        std::memcpy(&out, &parts().weights[i], sizeof out);
        return out;
    }
};

Noisy noisy(int sequences, int seq, int block, std::uint64_t seed, std::uint64_t step,
            bool complementary = false, std::int64_t rows = -1) {
    Noisy out;
    out.shape = {.sequences = sequences, .seq = seq, .block = block};
    out.slot.assign(static_cast<std::size_t>(out.shape.slot_words()), -5);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(sequences * seq));
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const std::size_t text = i / static_cast<std::size_t>(seq) / (complementary ? 2 : 1);
        ids[i] = static_cast<std::int32_t>((text * 131 + i % static_cast<std::size_t>(seq)) % 700);
    }
    out.count =
        add_noise({std::span(out.slot), out.shape}, out.shape, ids, rows < 0 ? sequences : rows,
                  step, {.seed = seed, .mask = kMask, .complementary = complementary});
    return out;
}

TEST(Noise, MasksStandForTheTokensThatCount) {
    const int sequences = 6, seq = 24, block = 8;
    const Noisy n = noisy(sequences, seq, block, 3, 9);
    const auto parts = n.parts();
    const std::size_t half = sequences * seq;
    std::size_t count = 0;
    for (std::size_t first = 0; first < half; first += block) {
        int masked = 0;
        for (std::size_t i = first; i < first + block; ++i) masked += n.masked(i);
        ASSERT_GE(masked, 1);
        for (std::size_t i = first; i < first + block; ++i) {
            ASSERT_NE(parts.ids[half + i], kMask);  // the clean half
            if (!n.masked(i)) {
                ASSERT_EQ(parts.ids[i], parts.ids[half + i]);
                continue;
            }
            ASSERT_EQ(parts.rows[count], static_cast<std::int32_t>(i));
            ASSERT_EQ(parts.targets[count], parts.ids[half + i]);
            ASSERT_EQ(n.weight(count), static_cast<float>(block) / static_cast<float>(masked));
            ++count;
        }
    }
    EXPECT_EQ(n.count, static_cast<std::int64_t>(count));
}

// If the number of blocks is a multiple of their length, every k is equally frequent: the sum of
// weights (the loss if every token's were 1) is then exactly the number of tokens.
TEST(Noise, RatesAreStratifiedOverTheBatch) {
    const int sequences = 8, seq = 64, block = 8;
    for (std::uint64_t step = 0; step < 20; ++step) {
        std::map<int, int> times;
        for (std::uint64_t i = 0; i < 64; ++i) ++times[masked_in_block(5, step, i, 64, block)];
        ASSERT_EQ(times.size(), 8u);
        for (const auto& [masked, count] : times) ASSERT_EQ(count, 8) << masked;
        const Noisy n = noisy(sequences, seq, block, 5, step);
        double sum = 0;
        for (std::int64_t i = 0; i < n.count; ++i) sum += n.weight(static_cast<std::size_t>(i));
        ASSERT_NEAR(sum, sequences * seq, 1e-3);
    }
    // With other numbers this holds on average.
    std::map<int, int> times;
    for (std::uint64_t step = 0; step < 4000; ++step) {
        for (std::uint64_t i = 0; i < 5; ++i) ++times[masked_in_block(6, step, i, 5, 4)];
    }
    for (int k = 1; k <= 4; ++k) EXPECT_NEAR(times[k], 5000, 150) << k;
    for (std::uint64_t i = 0; i < 9; ++i) EXPECT_EQ(masked_in_block(1, i, i, 9, 1), 1);
}

// A block's rate does not depend on its place, and every place is masked equally often: half of (B
// + 1) / B.
TEST(Noise, PlacesAndRatesAreSpread) {
    const int sequences = 2, seq = 16, block = 4, steps = 4000;
    std::vector<double> masked(sequences * seq);
    double pairs = 0;  // adjacent places of a block, both masked
    for (std::uint64_t step = 0; step < steps; ++step) {
        const Noisy n = noisy(sequences, seq, block, 11, step);
        for (std::size_t i = 0; i < masked.size(); ++i) masked[i] += n.masked(i);
        pairs += n.masked(0) && n.masked(1);
    }
    for (const double m : masked) EXPECT_NEAR(m / steps, 0.625, 0.03);
    // Sum over k of k (k - 1) / (B (B - 1)), each k a quarter: (0 + 2 + 6 + 12) / 12 / 4.
    EXPECT_NEAR(pairs / steps, 20.0 / 48, 0.03);
}

// The estimate is unbiased: the mean of weight * loss over noise is the sum over k of (1/k) * the
// mean over places, here for a loss that depends on the number of known tokens.
TEST(Noise, TheMeanIsTheBound) {
    const int block = 4, sequences = 2, seq = 8, steps = 3000;
    double sum = 0;
    for (std::uint64_t step = 0; step < steps; ++step) {
        const Noisy n = noisy(sequences, seq, block, 2, step);
        for (std::int64_t i = 0; i < n.count; ++i) {
            const float weight = n.weight(static_cast<std::size_t>(i));
            sum += static_cast<double>(weight) * std::sqrt(block / static_cast<double>(weight));
        }
    }
    double want = 0;  // a token's loss is sqrt(k) if k of the block are unknown
    for (int k = 1; k <= block; ++k) want += std::sqrt(k) / block;
    EXPECT_NEAR(sum / (static_cast<double>(steps) * sequences * seq), want, 0.01);
}

TEST(Noise, DependsOnSeedAndStepAlone) {
    const Noisy a = noisy(4, 16, 4, 7, 100), again = noisy(4, 16, 4, 7, 100);
    EXPECT_EQ(a.slot, again.slot);
    EXPECT_EQ(a.count, again.count);
    EXPECT_NE(a.slot, noisy(4, 16, 4, 8, 100).slot);
    EXPECT_NE(a.slot, noisy(4, 16, 4, 7, 101).slot);
}

TEST(Noise, ComplementaryRowsHaveEveryTokenOnce) {
    const int sequences = 4, seq = 32, block = 8;
    const Noisy n = noisy(sequences, seq, block, 1, 2, true);
    EXPECT_EQ(n.count, sequences * seq / 2);
    for (std::size_t row = 0; row < sequences; row += 2) {
        for (std::size_t i = 0; i < seq; ++i) {
            EXPECT_NE(n.masked(row * seq + i), n.masked((row + 1) * seq + i));
        }
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(n.count); ++i) {
        EXPECT_EQ(n.weight(i), 1);
    }
    EXPECT_THROW(noisy(3, seq, block, 1, 2, true), ContractError);
}

// A given token is known in both halves, and never counts; the others of its block have the rates
// of a block without it.
TEST(Noise, GivenTokensAreNeverMasked) {
    const int seq = 8, block = 4;
    for (const bool complementary : {false, true}) {
        for (std::uint64_t step = 0; step < 50; ++step) {
            Noisy n;
            n.shape = {.sequences = 2, .seq = seq, .block = block};
            n.slot.assign(static_cast<std::size_t>(n.shape.slot_words()), -5);
            std::vector<std::int32_t> ids{~3, 1, 1, 1, 2, 2, 2, 2, ~3, 1, 1, 1, 2, 2, 2, 2};
            n.count = add_noise({std::span(n.slot), n.shape}, n.shape, ids, 2, step,
                                {.seed = 1, .mask = kMask, .complementary = complementary});
            const auto parts = n.parts();
            for (const std::size_t at : {0, 8, 16, 24}) ASSERT_EQ(parts.ids[at], 3);
            for (std::size_t i = 0; i < static_cast<std::size_t>(n.count); ++i) {
                const auto row = static_cast<std::size_t>(parts.rows[i]);
                ASSERT_EQ(parts.targets[i], ids[row]);
                if (complementary || row % seq >= block) continue;
                int masked = 0;
                for (std::size_t j = row / seq * seq; j < row / seq * seq + block; ++j) {
                    masked += n.masked(j);
                }
                ASSERT_EQ(n.weight(i), 3.0f / static_cast<float>(masked));
            }
            if (complementary) {
                ASSERT_EQ(n.count, 7);
            }
        }
    }
    // Nothing else in the block: nothing to fill in.
    Noisy n;
    n.shape = {.sequences = 1, .seq = 2, .block = 1};
    n.slot.assign(static_cast<std::size_t>(n.shape.slot_words()), -5);
    const std::vector<std::int32_t> ids{~3, 1};
    EXPECT_EQ(add_noise({std::span(n.slot), n.shape}, n.shape, ids, 1, 0, {.mask = kMask}), 1);
    EXPECT_EQ(n.parts().rows[0], 1);
}

TEST(Noise, RowsThatAreNotThereDoNotCount) {
    const Noisy all = noisy(4, 16, 4, 7, 1), some = noisy(4, 16, 4, 7, 1, false, 3);
    EXPECT_LT(some.count, all.count);
    for (std::int64_t i = 0; i < some.count; ++i) {
        EXPECT_LT(some.parts().rows[static_cast<std::size_t>(i)], 3 * 16);
    }
}

}  // namespace
}  // namespace mr::train
