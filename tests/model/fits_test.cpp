#include "model/fits.h"

#include <gtest/gtest.h>

#include "model/cpu/repack.h"
#include "model/io/random.h"
#include "model/kv_cache.h"

namespace mr::model {
namespace {

constexpr DType kKv[] = {DType::f32, DType::f16, DType::bf16};

TEST(Fits, WeightsAreWhatALoadedModelHolds) {
    for (const char* source :
         {"random:stories-42m:f16", "random:stories-42m:q8_0", "random:stories-42m:q4_0"}) {
        const auto [spec, type] = random_shape(source);
        const Model model = random_model(source);
        const auto held =
            static_cast<double>(model.weights.owned_bytes + model.weights.mapped_bytes);
        // Except for the padding of an arena.
        EXPECT_NEAR(static_cast<double>(weight_bytes(spec, type)), held, 0.001 * held) << source;
    }
}

// qwen2.5's table is tied: where weights are repacked, there is a second copy for the head.
TEST(Fits, RepackedWeightsAreWhatARepackedModelHolds) {
    for (const char* source : {"random:stories-42m:q8_0", "random:stories-42m:bf16",
                               "random:qwen2.5-0.5b:q4_0", "random:tinyllama-1.1b:q8_0"}) {
        const auto [spec, type] = random_shape(source);
        Model model = planned_random_model(source);
        plan_repack(model);
        const auto held = static_cast<double>(model.weights.owned_bytes);
        EXPECT_NEAR(static_cast<double>(repacked_weight_bytes(spec, type)), held, 0.001 * held)
            << source;
    }
}

TEST(Fits, Llama7bIsWhatItsNumbersSay) {
    const auto [spec, type] = random_shape("random:llama-2-7b");
    // 6,738,415,616 parameters; the norms (65 of 4096 elements) are f32.
    const std::uint64_t norms = 65 * 4096, matrices = 6'738'415'616 - norms;
    EXPECT_EQ(weight_bytes(spec, DType::bf16), 2 * matrices + 4 * norms);
    EXPECT_EQ(weight_bytes(spec, DType::q8_0), matrices / 32 * 34 + 4 * norms);
    EXPECT_EQ(weight_bytes(spec, DType::q4_0), matrices / 32 * 18 + 4 * norms);
}

TEST(Fits, TheLargestContextFitsAndThePageAfterItDoesNot) {
    const auto [spec, type] = random_shape("random:llama-2-7b");
    constexpr std::uint64_t kMemory = std::uint64_t{24} << 30, kOther = std::uint64_t{300} << 20;
    const std::vector<Fit> fits = what_fits(spec, kMemory, kOther, kKv);
    ASSERT_EQ(fits.size(), 5u * 3);
    EXPECT_EQ(fits[0].weights, DType::f32);
    EXPECT_EQ(fits[0].context, 0);  // 25 GiB
    for (const Fit& fit : fits) {
        if (fit.weights == DType::f32) continue;
        ASSERT_GT(fit.context, 0);
        const auto taken = [&](std::int64_t context) {
            return fit.weight_bytes + kOther +
                   KvCache::bytes(spec, KvCache::pages_for(context), fit.kv);
        };
        EXPECT_LE(taken(fit.context), kMemory);
        EXPECT_GT(taken(fit.context + 1), kMemory);
    }
    // bf16, KV f16: 512 KiB per position.
    const std::uint64_t room = kMemory - kOther - weight_bytes(spec, DType::bf16);
    EXPECT_EQ(fits[7].kv, DType::f16);
    EXPECT_EQ(fits[7].context,
              static_cast<std::int64_t>(room / (std::uint64_t{512} << 10) / 32 * 32));
    EXPECT_EQ(fits[8].context, fits[7].context);  // bf16 is as large as f16
}

TEST(Fits, LearnedPositionsAreTheMost) {
    const auto [spec, type] = random_shape("random:gpt2");
    for (const Fit& fit : what_fits(spec, std::uint64_t{64} << 30, 0, kKv)) {
        EXPECT_EQ(fit.context, spec.context);
    }
    for (const Fit& fit : what_fits(spec, 1 << 20, 0, kKv)) EXPECT_EQ(fit.context, 0);
}

}  // namespace
}  // namespace mr::model
