#include "decode/eval_diffusion.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "core/error.h"
#include "decode/diffusion_cases.h"
#include "decode/live_cases.h"

namespace mr::decode {
namespace {

// A vocabulary so small that all texts can be enumerated.
std::unique_ptr<model::Engine> counted(int block, bool shifted, int sub_block = 0) {
    model::ModelSpec spec = test::diffusion_spec({"", block, sub_block, shifted});
    spec.vocab = 5;
    spec.diffusion->mask = 2;
    model::EngineOptions options;
    options.threads = 1;
    options.context = 64;
    options.block = block > 0 ? block : 4;
    options.max_logits = 16;
    return model::make_engine(
        std::make_shared<const model::Model>(model::random_model(spec, DType::f32, 3)), options);
}

constexpr std::int32_t kWords[] = {0, 1, 3, 4};  // all but the mask

TEST(DiffusionEval, TheLikelihoodsOfAllTextsSumToOne) {
    struct Case {
        int block, sub_block;
        bool shifted;
    };
    for (const Case& of : {Case{4, 0, false},
                           {2, 0, false},
                           {4, 2, true},
                           {3, 0, true},
                           {0, 0, false},
                           {0, 0, true}}) {
        const auto engine = counted(of.block, of.shifted, of.sub_block);
        const int block = of.block > 0 ? of.block : 4;
        for (ops::DenoiseParams denoise : test::denoise_cases(block)) {
            if (denoise.drawn) continue;
            denoise.threshold = 0.4f;
            denoise.entropy_bound /= 4;
            DiffusionOptions decoder;
            decoder.block = of.sub_block > 0 ? 0 : block;
            decoder.denoise = denoise;
            double sum = 0;
            for (int n = 0; n < 4 * 4 * 4 * 4; ++n) {
                const std::vector<std::int32_t> text = {1, kWords[n % 4], kWords[n / 4 % 4],
                                                        kWords[n / 16 % 4], kWords[n / 64]};
                sum += std::exp(-replayed_nats(*engine, decoder, text, 1));
            }
            EXPECT_NEAR(sum, 1, 1e-5)
                << "block " << of.block << ", shifted " << of.shifted << ", "
                << ops::remask_name(denoise.remask) << ", steps " << denoise.steps;
        }
    }
}

TEST(DiffusionEval, BlocksOfOneTokenAreExactByBothNumbers) {
    // There is one order, and the bound's expectation over the rate is the cross-entropy itself.
    const auto engine = counted(1, false);
    const std::vector<std::int32_t> text = {1, 0, 3, 4, 4, 1, 0, 0, 3, 1};
    const double exact = replayed_nats(*engine, {}, text, 1);
    const double bound = masked_nats(*engine, {{}, 4000}, text, 1);
    EXPECT_NEAR(bound, exact, 0.03 * exact);
    EXPECT_GT(exact, 1);
}

TEST(DiffusionEval, TheBoundIsThatOfRandomOrders) {
    // The mean of the exact number over orders: all 24 orders of a block of four, by hand.
    const auto engine = counted(4, false);
    const std::vector<std::int32_t> text = {1, 0, 3, 4, 0, 1, 4, 3};  // the first block is known
    const auto logprobs = [&](unsigned known) {
        std::vector<std::int32_t> noisy(text.begin(), text.end());
        for (unsigned i = 0; i < 4; ++i) {
            if (!(known >> i & 1)) noisy[4 + i] = 2;
        }
        const auto logits = test::all_logits(*engine, noisy, std::nullopt);
        std::vector<double> out;
        for (std::size_t i = 4; i < 8; ++i) {
            double sum = 0;
            for (const std::int32_t w : kWords) {
                sum += std::exp(static_cast<double>(logits[i][static_cast<std::size_t>(w)]));
            }
            out.push_back(static_cast<double>(logits[i][static_cast<std::size_t>(text[i])]) -
                          std::log(sum));
        }
        return out;
    };
    std::vector<int> order = {0, 1, 2, 3};
    double mean = 0;
    do {
        unsigned known = 0;
        for (const int at : order) {
            mean -= logprobs(known)[static_cast<std::size_t>(at)] / 24;
            known |= 1u << at;
        }
    } while (std::next_permutation(order.begin(), order.end()));
    EXPECT_NEAR(masked_nats(*engine, {{}, 6000}, text, 4), mean, 0.02 * mean);
}

TEST(DiffusionEval, TheErrorOfTheBoundIsThatOfItsDraws) {
    const auto engine = counted(4, false);
    const std::vector<std::int32_t> text = {1, 0, 3, 4, 0, 1, 4, 3, 3, 0, 0, 1};
    for (const int rates : {2, 4, 16}) {
        constexpr int kDraws = 400;
        double mean = 0, squares = 0, variance = 0;
        for (int draw = 0; draw < kDraws; ++draw) {
            const MaskedSample got =
                masked_sample(*engine, {{}, rates}, text, 4, static_cast<std::size_t>(draw));
            mean += got.nats / kDraws;
            squares += got.nats * got.nats / kDraws;
            variance += got.variance / kDraws;
        }
        // The variance over draws. The estimate also counts the spread between the rates.
        const double seen = squares - mean * mean;
        EXPECT_GT(variance, 0.85 * seen) << rates;
        EXPECT_LT(variance, 2 * seen) << rates;
        EXPECT_NEAR(masked_nats(*engine, {{}, 6000}, text, 4), mean, 4 * std::sqrt(seen / kDraws))
            << rates;
    }
    EXPECT_EQ(masked_sample(*engine, {{}, 1}, text, 4).variance, 0);  // one rate has no spread
}

}  // namespace
}  // namespace mr::decode
