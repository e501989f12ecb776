// Samples of a run on a GPU: made there if there is room, else on the CPU.
#include "train/sampler.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/cuda/testing.h"
#include "model/model.h"
#include "support.h"
#include "train/noise.h"

namespace mr::train {
namespace {

class GpuSampler : public ::testing::Test {
  protected:
    void SetUp() override {
        MR_NEED_GPU();
        const model::Model model = model::load_model(test::bundled_model());
        tokenizer_ = model.tokenizer;
        options_.prompt = "Once upon a time";
        options_.sample_tokens = 60;
        options_.threads = 2;
        for (auto& engine : engines_) {
            engine = std::make_unique<model::TrainEngine>(
                model::trainable_spec(model.spec),
                model::TrainEngineOptions{
                    .cuda = true, .threads = 2, .shape = {.sequences = 2, .seq = 64}});
            engine->load(model);
        }
    }
    static double step(model::TrainEngine& engine, int number) {
        const auto host = engine.ops().host_slot(0);
        for (std::size_t i = 0; i < host.size(); ++i) {
            host[i] = static_cast<std::int32_t>((i * 7 + static_cast<std::size_t>(number)) % 500);
        }
        engine.put(0);
        engine.accumulate(0, 1.0 / 128);
        return engine.update({.lr = 1e-4f, .clip = 1.0f, .step = number}).loss;
    }

    std::shared_ptr<const text::Tokenizer> tokenizer_;
    TrainOptions options_;
    std::unique_ptr<model::TrainEngine> engines_[2];
};

TEST_F(GpuSampler, TakesWhatItSaysAndGivesItBack) {
    const std::uint64_t before = cuda::held_bytes();
    {
        Sampler sampler(*engines_[0], tokenizer_, options_);
        EXPECT_EQ(sampler.why_not_there(), "");
        EXPECT_GT(sampler.device_bytes(), 0u);
        EXPECT_EQ(cuda::held_bytes() - before, sampler.device_bytes());
        const auto text = sampler.text({});
        ASSERT_TRUE(text);
        EXPECT_TRUE(text->starts_with(options_.prompt)) << *text;
        EXPECT_GT(text->size(), options_.prompt.size() + 20);
        EXPECT_EQ(sampler.text({}), text);
        EXPECT_EQ(cuda::held_bytes() - before, sampler.device_bytes());
    }
    EXPECT_EQ(cuda::held_bytes(), before);
}

TEST_F(GpuSampler, WithoutRoomTheTextIsTheCpus) {
    const std::uint64_t before = cuda::held_bytes();
    Sampler sampler(*engines_[0], tokenizer_, options_, 1000);
    EXPECT_EQ(cuda::held_bytes(), before);
    EXPECT_EQ(sampler.device_bytes(), 0u);
    EXPECT_NE(sampler.why_not_there().find("1000 B are left"), std::string::npos)
        << sampler.why_not_there();
    const auto text = sampler.text({});
    ASSERT_TRUE(text);
    EXPECT_TRUE(text->starts_with(options_.prompt)) << *text;
}

TEST_F(GpuSampler, TextWholeOrCutShortChangesNoLoss) {
    Sampler sampler(*engines_[0], tokenizer_, options_);
    for (int i = 1; i <= 6; ++i) {
        EXPECT_EQ(step(*engines_[0], i), step(*engines_[1], i)) << i;
        const bool whole = i % 2 == 0;
        const auto text = sampler.text([&, asked = 0]() mutable { return !whole && ++asked > 5; });
        EXPECT_EQ(text.has_value(), whole);
    }
}

// A block diffusion model made from the same one: text in blocks, on the device, from the current
// parameters, without an effect on any loss.
TEST_F(GpuSampler, FillsInBlocks) {
    const model::Model model = model::load_model(test::bundled_model());
    const model::ModelSpec ar = model::trainable_spec(model.spec);
    for (const int block : {4, 16, 96}) {  // the decoder's maximum is 64
        SCOPED_TRACE(block);
        std::unique_ptr<model::TrainEngine> engines[2];
        for (auto& engine : engines) {
            engine = std::make_unique<model::TrainEngine>(
                model::diffusion_spec(ar, ar.vocab, block),
                model::TrainEngineOptions{.cuda = true,
                                          .threads = 2,
                                          .shape = {.sequences = 2, .seq = 96, .block = block}});
            engine->load(model);
        }
        const auto train = [](model::TrainEngine& engine, int number) {
            const model::TrainShape& shape = engine.options().shape;
            const std::vector<std::int32_t> ids(static_cast<std::size_t>(shape.half()), 7);
            const NoiseOptions noise{.seed = 1, .mask = engine.spec().diffusion->mask};
            engine.put(0, add_noise({engine.ops().host_slot(0), shape}, shape, ids, shape.sequences,
                                    static_cast<std::uint64_t>(number), noise));
            engine.accumulate(0, 1.0 / static_cast<double>(shape.half()));
            return engine.update({.lr = 1e-3f, .clip = 1.0f, .step = number}).loss;
        };
        const std::uint64_t before = cuda::held_bytes();
        Sampler sampler(*engines[0], tokenizer_, options_);
        EXPECT_EQ(sampler.why_not_there(), "");
        EXPECT_EQ(cuda::held_bytes() - before, sampler.device_bytes());
        const auto first = sampler.text({});
        ASSERT_TRUE(first);
        EXPECT_TRUE(first->starts_with(options_.prompt)) << *first;
        EXPECT_GT(first->size(), options_.prompt.size());
        EXPECT_EQ(sampler.text({}), first);
        for (int i = 1; i <= 4; ++i) {
            EXPECT_EQ(train(*engines[0], i), train(*engines[1], i)) << i;
            const bool whole = i % 2 == 0;
            const auto text =
                sampler.text([&, asked = 0]() mutable { return !whole && ++asked > 1; });
            EXPECT_EQ(text.has_value(), whole);
            if (i < 4) continue;
            EXPECT_NE(text, first);  // it is the current model
        }
    }
}

}  // namespace
}  // namespace mr::train
