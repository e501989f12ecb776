#include "ops/sample/sample.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/philox.h"
#include "ops/simd/testing.h"

namespace mr::ops::sample_test {
namespace {

using namespace testing;

constexpr float kInf = std::numeric_limits<float>::infinity();

SampleParams plain() {
    return {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .repeat_penalty = 1, .seed = 1};
}

Sampled draw(Floats& logits, const SampleParams& params, std::uint64_t position,
             std::span<const std::int32_t> recent = {}) {
    Bench bench(1, sample_scratch_bytes(logits.size()));
    return sample(bench, logits, params, recent, position);
}

struct Reference {
    std::vector<std::int32_t> ids;      // in order
    std::vector<double> probabilities;  // among those left
};

// The contract, by sorting everything and cutting step by step.
Reference brute_force(const std::vector<float>& raw, const SampleParams& params,
                      std::span<const std::int32_t> recent) {
    std::vector<float> logits = raw;
    for (std::int32_t id : std::set<std::int32_t>(recent.begin(), recent.end())) {
        float& x = logits[static_cast<std::size_t>(id)];
        x = x > 0 ? x / params.repeat_penalty : x * params.repeat_penalty;
    }
    Reference out;
    for (std::size_t i = 0; i < logits.size(); ++i) out.ids.push_back(static_cast<int>(i));
    const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
    std::stable_sort(out.ids.begin(), out.ids.end(),
                     [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b); });
    const auto normalise = [&] {
        double sum = 0;
        for (double p : out.probabilities) sum += p;
        for (double& p : out.probabilities) p /= sum;
    };
    const auto keep = [&](std::size_t n) {
        out.ids.resize(n);
        out.probabilities.resize(n);
        normalise();
    };
    for (std::int32_t id : out.ids) {
        out.probabilities.push_back(
            std::exp((double{logit(id)} - double{logit(out.ids[0])}) / double{params.temperature}));
    }
    normalise();
    if (params.top_k > 0) keep(std::min(out.ids.size(), static_cast<std::size_t>(params.top_k)));
    if (params.top_p < 1) {
        double sum = 0;
        std::size_t n = 0;
        while (n < out.ids.size() && (n == 0 || sum < double{params.top_p})) {
            sum += out.probabilities[n++];
        }
        keep(n);
    }
    if (params.min_p > 0) {
        std::size_t n = 1;
        const double floor = double{params.min_p} * out.probabilities[0];
        while (n < out.ids.size() && out.probabilities[n] >= floor) ++n;
        keep(n);
    }
    return out;
}

TEST(Sample, GreedyTakesTheFirstOfTheBest) {
    for_each_isa([] {
        for (std::int64_t vocab : {1, 2, 9, 1000}) {
            Floats logits = Floats::normal({vocab}, 1);
            SampleParams params;
            params.temperature = 0;
            params.top_k = 1;
            const auto best = std::max_element(logits.values.begin(), logits.values.end());
            EXPECT_EQ(draw(logits, params, 0).id, best - logits.values.begin());
            std::fill(logits.values.begin(), logits.values.end(), 2.0f);
            logits[0] = 1;
            EXPECT_EQ(draw(logits, params, 0).id, vocab > 1 ? 1 : 0);
        }
    });
}

TEST(Sample, GreedyIgnoresTheFiltersButNotThePenalty) {
    Floats logits({4}, 0);
    logits.values = {1, 3, 2.9f, -1};
    SampleParams params{
        .temperature = 0, .top_k = 1, .top_p = 0, .min_p = 1, .repeat_penalty = 1.1f};
    EXPECT_EQ(draw(logits, params, 0).id, 1);
    const std::vector<std::int32_t> recent{1, 1, 1};
    const Sampled got = draw(logits, params, 0, recent);
    EXPECT_EQ(got.id, 2);
    EXPECT_EQ(got.probability, 1.0f);
    // The confidence uses the raw logits.
    const double sum = std::exp(1.0) + std::exp(3.0) + std::exp(double{2.9f}) + std::exp(-1.0);
    EXPECT_NEAR(got.confidence, std::exp(double{2.9f}) / sum, 8 * kRoundoff);
}

TEST(Sample, PenaltyDividesPositiveAndMultipliesNegativeOnce) {
    Floats logits({3}, 0);
    logits.values = {2, -1, 0.5f};
    SampleParams params = plain();
    params.repeat_penalty = 2;
    const std::vector<std::int32_t> recent{0, 1, 0, 0};
    const double a = std::exp(1.0), b = std::exp(-2.0), c = std::exp(0.5);
    std::map<std::int32_t, double> seen;
    for (std::uint64_t i = 0; i < 200; ++i) {
        const Sampled got = draw(logits, params, i, recent);
        seen[got.id] = double{got.probability};
    }
    EXPECT_NEAR(seen[0], a / (a + b + c), 4 * kRoundoff);
    EXPECT_NEAR(seen[2], c / (a + b + c), 4 * kRoundoff);
    EXPECT_NEAR(seen[1], b / (a + b + c), 4 * kRoundoff);
}

// Filters in all combinations against the sorting reference: the same token and probability for the
// same draw.
TEST(Sample, EveryFilterMatchesBruteForce) {
    for_each_isa([] {
        for (std::int64_t vocab : {1, 2, 7, 300, 3001}) {
            for (float spread : {0.1f, 2.0f, 8.0f}) {
                Floats logits = Floats::normal({vocab}, 17, spread);
                if (vocab > 8) {  // ties and impossible tokens
                    logits[3] = logits[5] = logits[8];
                    logits[6] = -kInf;
                }
                std::vector<std::int32_t> recent;
                for (std::int64_t i = 0; i < std::min<std::int64_t>(vocab, 20); ++i) {
                    recent.push_back(static_cast<std::int32_t>((i * i) % vocab));
                }
                for (int top_k : {0, 1, 2, 5, 40, 299, 4000}) {
                    for (float top_p : {0.0f, 0.3f, 0.95f, 1.0f}) {
                        for (float min_p : {0.0f, 0.05f, 1.0f}) {
                            SampleParams params{.temperature = 0.7f,
                                                .top_k = top_k,
                                                .top_p = top_p,
                                                .min_p = min_p,
                                                .repeat_penalty = min_p == 0 ? 1.3f : 1.0f,
                                                .seed = 99};
                            const Reference want = brute_force(logits.values, params, recent);
                            for (std::uint64_t position = 0; position < 6; ++position) {
                                const Sampled got = draw(logits, params, position, recent);
                                const double u = unit_float(philox(99, position)[0]);
                                double sum = 0;
                                std::size_t i = 0;
                                while (i + 1 < want.ids.size() &&
                                       (sum += want.probabilities[i]) <= u) {
                                    ++i;
                                }
                                ASSERT_EQ(got.id, want.ids[i])
                                    << "vocab " << vocab << " k " << top_k << " p " << top_p
                                    << " min " << min_p << " position " << position;
                                ASSERT_NEAR(got.probability, want.probabilities[i], 2 * kRoundoff);
                            }
                        }
                    }
                }
            }
        }
    });
}

// Chi-square of 2e5 draws against the exact distribution. With 29 degrees of freedom a correct
// sampler stays under 70 in all but 3 of 100000 seeds; this seed is fixed.
TEST(Sample, DrawsFollowTheDistribution) {
    const std::int64_t vocab = 30;
    Floats logits = Floats::normal({vocab}, 2, 1.5f);
    SampleParams params = plain();
    params.temperature = 1.3f;
    params.seed = 12345;
    const Reference want = brute_force(logits.values, params, {});
    Bench bench(1, sample_scratch_bytes(vocab));
    std::vector<double> counts(static_cast<std::size_t>(vocab), 0);
    const int draws = 200000;
    for (int i = 0; i < draws; ++i) {
        const Sampled got = sample(bench, logits, params, {}, static_cast<std::uint64_t>(i));
        ++counts[static_cast<std::size_t>(got.id)];
    }
    double chi = 0;
    for (std::size_t i = 0; i < want.ids.size(); ++i) {
        const double expected = want.probabilities[i] * draws;
        ASSERT_GT(expected, 5);
        chi += std::pow(counts[static_cast<std::size_t>(want.ids[i])] - expected, 2) / expected;
    }
    EXPECT_LT(chi, 70);
    EXPECT_GT(chi, 8);  // a better fit would mean that draws are not independent
}

TEST(Sample, SeedsAndPositionsGiveDifferentDraws) {
    Floats logits({1000}, 0);
    SampleParams params = plain();
    std::set<std::int32_t> by_position, by_seed;
    for (std::uint64_t i = 0; i < 100; ++i) {
        by_position.insert(draw(logits, params, i).id);
        params.seed = i;
        by_seed.insert(draw(logits, params, 5).id);
        params.seed = 1;
    }
    EXPECT_GT(by_position.size(), 80u);
    EXPECT_GT(by_seed.size(), 80u);
}

TEST(Sample, DependsOnNothingElse) {
    for_each_isa([] {
        Floats logits = Floats::normal({5000}, 3, 3);
        SampleParams params;
        const Sampled first = draw(logits, params, 77);
        for (int threads : {1, 2, 3}) {
            Bench bench(threads, sample_scratch_bytes(5000));
            for (std::byte& b : bench.scratch) b = std::byte{0xff};  // any previous contents
            const Sampled again = sample(bench, logits, params, {}, 77);
            EXPECT_EQ(again.id, first.id);
            EXPECT_EQ(again.probability, first.probability);
            EXPECT_EQ(again.confidence, first.confidence);
        }
    });
}

TEST(Sample, PathsAgreeOnTheSameLogits) {
    Floats logits = Floats::normal({32000}, 3, 3);
    for (std::uint64_t position = 0; position < 20; ++position) {
        SampleParams params;
        params.top_k = position % 2 ? 40 : 0;
        std::set<std::int32_t> ids;
        std::set<float> probabilities;
        for_each_isa([&] {
            const Sampled got = draw(logits, params, position);
            ids.insert(got.id);
            probabilities.insert(got.probability);
        });
        EXPECT_EQ(ids.size(), 1u);
        EXPECT_EQ(probabilities.size(), 1u);
    }
}

TEST(Sample, LargeVocabularyConfidence) {
    for_each_isa([] {
        Floats logits = Floats::normal({151936}, 3, 2);
        SampleParams params = plain();
        const Sampled got = draw(logits, params, 3);
        const Reference want = brute_force(logits.values, params, {});
        const auto at = std::find(want.ids.begin(), want.ids.end(), got.id) - want.ids.begin();
        const double exact = want.probabilities[static_cast<std::size_t>(at)];
        EXPECT_NEAR(got.probability, exact, 2 * kRoundoff * exact);
        // Exponentials in f32: argument and value, about 20 roundoffs.
        EXPECT_NEAR(got.confidence, exact, 40 * kRoundoff * exact);
    });
}

TEST(Sample, InfiniteLogits) {
    for_each_isa([] {
        Floats logits({9}, 0);
        logits[2] = logits[7] = kInf;
        logits[4] = -kInf;
        std::map<std::int32_t, int> seen;
        for (std::uint64_t i = 0; i < 100; ++i) {
            SampleParams params = plain();
            params.top_k = i % 2 ? 3 : 0;
            const Sampled got = draw(logits, params, i);
            ++seen[got.id];
            EXPECT_EQ(got.probability, 0.5f);
            EXPECT_EQ(got.confidence, 0.5f);
        }
        EXPECT_EQ(seen.size(), 2u);
        EXPECT_GT(seen[2], 20);
        EXPECT_GT(seen[7], 20);
    });
}

TEST(Sample, NeverDrawsTheImpossible) {
    Floats logits({64}, -kInf);
    logits[10] = -5;
    for (std::uint64_t i = 0; i < 50; ++i) {
        EXPECT_EQ(draw(logits, plain(), i).id, 10);
        SampleParams params;
        params.top_k = 20;
        EXPECT_EQ(draw(logits, params, i).id, 10);
    }
}

TEST(Sample, BadLogitsAreTheInputsFault) {
    for_each_isa([] {
        for (std::int64_t at : {0, 7, 36}) {
            Floats logits({37}, 1);
            logits[at] = kPoison;
            for (float temperature : {0.0f, 1.0f}) {
                SampleParams params;
                params.temperature = temperature;
                try {
                    draw(logits, params, 0);
                    FAIL() << "a NaN was sampled";
                } catch (const Error& error) {
                    EXPECT_EQ(error.kind(), ErrorKind::input);
                    EXPECT_NE(std::string(error.what()).find("not a number"), std::string::npos);
                }
            }
        }
        Floats none({37}, -kInf);
        EXPECT_THROW(draw(none, plain(), 0), Error);
    });
}

TEST(Sample, BadParametersAreNamed) {
    Floats logits({5}, 1);
    const auto field_of = [&](const SampleParams& params) -> std::string {
        try {
            draw(logits, params, 0);
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::usage);
            return error.info().field;
        }
        return "none";
    };
    EXPECT_EQ(field_of({.temperature = -1}), "temperature");
    EXPECT_EQ(field_of({.temperature = kPoison}), "temperature");
    EXPECT_EQ(field_of({.temperature = kInf}), "temperature");
    EXPECT_EQ(field_of({.top_k = -1}), "top-k");
    EXPECT_EQ(field_of({.top_p = 1.5f}), "top-p");
    EXPECT_EQ(field_of({.min_p = -0.1f}), "min-p");
    EXPECT_EQ(field_of({.repeat_penalty = 0}), "repeat-penalty");
    EXPECT_EQ(field_of({}), "none");
}

TEST(Sample, LedgerAndContract) {
    Floats logits({50}, 1);
    Bench bench(1, sample_scratch_bytes(50)), bare(1);
    const std::vector<std::int32_t> recent{1, 2}, wild{50};
    sample(bench, logits, plain(), recent, 0);
    expect_record(bench.ledger.op(OpKind::sample), 1, 200 + 8, 0, 200);
    EXPECT_THROW(sample(bare, logits, plain(), {}, 0), ContractError);
    EXPECT_THROW(sample(bench, logits, plain(), wild, 0), ContractError);
}

}  // namespace
}  // namespace mr::ops::sample_test
