// Texts that are filled in on a GPU: token for token those of a plain decoder over the same
// kernels, whatever shares their passes.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "core/cuda/testing.h"
#include "decode/diffusion_cases.h"
#include "decode/eval_diffusion.h"
#include "gpu/engines.h"
#include "model/io/random.h"

namespace mr::decode {
namespace {

using test::DiffusionCase;

std::unique_ptr<model::Engine> engine_of(const DiffusionCase& of, DType type, int sequences,
                                         std::int64_t pool) {
    static std::map<std::string, std::unique_ptr<test::OnDevice>> models;
    auto& model = models[std::string(of.name) + dtype_name(type)];
    if (!model) {
        model = std::make_unique<test::OnDevice>(
            test::to_device(model::deferred_random_model(test::diffusion_spec(of), type, 11)));
    }
    model::EngineOptions options;
    options.context = 300;
    options.max_sequences = sequences;
    options.max_batch = 320;
    options.max_logits = 320;
    options.pool = pool;
    return model->engine(options);
}

class GpuDiffusion : public testing::TestWithParam<DiffusionCase> {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
    auto make(DType type) const {
        return [of = GetParam(), type](int sequences, std::int64_t pool) {
            return engine_of(of, type, sequences, pool);
        };
    }
};
INSTANTIATE_TEST_SUITE_P(Models, GpuDiffusion, testing::ValuesIn(test::kDiffusionCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(GpuDiffusion, EveryStrategyIsThatOfAPlainDecoder) {
    // Up to 64 tokens all have the decode form, in blocks and as a whole: the same bits.
    for (const DType type : {DType::f32, DType::bf16}) {
        SCOPED_TRACE(dtype_name(type));
        test::every_strategy_is_that_of_a_plain_decoder(GetParam(), make(type), 64);
    }
}

TEST_P(GpuDiffusion, CommittingWithTheNextBlockIsCommittingApart) {
    test::committing_with_the_next_block_is_committing_apart(GetParam(), make(DType::bf16));
}

TEST_P(GpuDiffusion, TextsHaveTheBitsTheyHaveAlone) {
    test::texts_have_the_bits_they_have_alone(GetParam(), make(DType::bf16));
}

TEST_P(GpuDiffusion, LikelihoodsAreThoseOfTheCpu) {
    const DiffusionCase& of = GetParam();
    const auto gpu = engine_of(of, DType::f32, 1, 0);
    model::EngineOptions options;
    options.context = 300;
    options.max_batch = options.max_logits = 320;
    const auto cpu = model::make_engine(test::diffusion_model(of), options);
    const int block = of.block > 0 ? of.block : model::kUsualBlock;
    DiffusionEvalOptions how{{}, 4};
    how.decoder.denoise.remask = ops::Remask::sequential;  // no near tie can change the order
    const auto text = test::some_tokens(4 * block, 9, 95);
    EXPECT_NEAR(replayed_nats(*gpu, how.decoder, text, 1),
                replayed_nats(*cpu, how.decoder, text, 1), 1e-2);
    EXPECT_NEAR(masked_nats(*gpu, how, text, 1), masked_nats(*cpu, how, text, 1), 1e-2);
}

}  // namespace
}  // namespace mr::decode
