// Text of a model during its training, from the trainer's own parameters: the bits of the same
// model loaded in bf16, without any effect on the training.
#include "model/train/live_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "core/cuda/testing.h"
#include "core/half.h"
#include "decode/loop.h"
#include "families.h"
#include "gpu/engines.h"
#include "model/train/train_engine.h"
#include "support.h"

namespace mr::model::live_weights_test {
namespace {

constexpr const char* kTrained[] = {"llama2", "llama3", "mistral",  "qwen2",       "qwen2-window",
                                    "qwen3",  "gpt2",   "gpt-neox", "gpt-neox-seq"};
constexpr int kSequences = 2, kSeq = 16, kPrompt = 20, kDrawn = 12;

class LiveEngine : public ::testing::TestWithParam<const char*> {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
    static Model model() { return load_model(test::reference(GetParam())); }

    static std::unique_ptr<TrainEngine> make_trainer(bool bf16_masters) {
        const TrainEngineOptions options{.cuda = true,
                                         .threads = 2,
                                         .shape = {.sequences = kSequences, .seq = kSeq},
                                         .bf16_masters = bf16_masters};
        auto engine = std::make_unique<TrainEngine>(trainable_spec(model().spec), options);
        engine->load(model());
        return engine;
    }
    static double step(TrainEngine& engine, int number) {
        const auto host = engine.ops().host_slot(0);
        for (std::size_t i = 0; i < host.size(); ++i) {
            host[i] = static_cast<std::int32_t>((i * 37 + static_cast<std::size_t>(number) * 11) %
                                                static_cast<std::size_t>(engine.spec().vocab));
        }
        engine.put(0);
        engine.accumulate(0, 1.0 / (kSequences * kSeq));
        return engine
            .update({.lr = 0.01f, .weight_decay = 0.1f, .clip = 1.0f, .step = number, .seed = 3})
            .loss;
    }

    static std::shared_ptr<Model> described(const TrainEngine& engine) {
        auto out = std::make_shared<Model>();
        out->spec = engine.spec();
        out->weights = engine.weights();
        release_host_weights(*out);
        return out;
    }
    static EngineOptions engine_options() {
        EngineOptions options;
        options.cuda = true;
        options.context = kPrompt + kDrawn + 1;
        options.max_batch = options.max_logits = kPrompt;
        return options;
    }
    // The same parameters, through the host.
    static test::OnDevice loaded(TrainEngine& engine) {
        const auto count = static_cast<std::size_t>(engine.layout().count);
        std::vector<float> params(count);
        engine.get_state(params.data(), nullptr, nullptr);
        std::vector<std::uint16_t> half(count);
        for (std::size_t i = 0; i < count; ++i) half[i] = f32_to_bf16(params[i]);
        Model model;
        model.spec = engine.spec();
        model.weights = param_views(engine.layout(), half.data(), DType::bf16, params.data(), 0);
        test::OnDevice out = test::to_device(std::move(model));
        release_host_weights(*out.model);
        return out;
    }

    // Logits of a prompt at once and token by token, and tokens drawn after it.
    struct Said {
        std::vector<float> whole, single;
        std::vector<std::int32_t> drawn;
    };
    static Said say(Engine& engine) {
        std::vector<std::int32_t> ids;
        for (int i = 0; i < kPrompt; ++i) ids.push_back((i * 13 + 5) % engine.model().spec.vocab);
        Said out;
        out.whole = test::logits_of(engine, ids, kPrompt);
        out.single = test::logits_of(engine, ids, 1);
        const SeqId seq = engine.cache().open();
        const BatchItem item = prompt_item(seq, ids);
        decode::DecodeRow row;
        row.seq = seq;
        row.params.temperature = 0.8f;
        row.params.seed = 4;
        row.recent = ids;
        row.most = kDrawn;
        decode::DecodeLoop loop(engine, engine.submit({&item, 1}), {row});
        for (int i = 0; i < kDrawn; ++i) out.drawn.push_back(loop.next().front().id);
        engine.synchronize();
        engine.cache().close(seq);
        return out;
    }
    static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
        return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
    }
};

TEST_P(LiveEngine, SaysWhatTheModelLoadedInBf16Says) {
    for (const bool bf16_masters : {false, true}) {
        const auto trained = make_trainer(bf16_masters);
        const auto model = described(*trained);
        const std::uint64_t before = cuda::held_bytes();
        const LiveWeights live = live_weights(model->spec, trained->weights());
        EXPECT_EQ(cuda::held_bytes() - before, live_bytes(model->spec, trained->weights()));
        const std::unique_ptr<Engine> opened = make_engine(model, engine_options(), live.weights);
        Engine& engine = *opened;
        EXPECT_EQ(cuda::held_bytes() - before, plan_engine(*model, engine_options()).total() -
                                                   device_weight_bytes(*model) +
                                                   live_bytes(model->spec, trained->weights()));
        std::vector<float> earlier;
        for (int i = 1; i <= 4; ++i) {
            step(*trained, i);
            if (i % 2 != 0) continue;
            refresh(live);
            const Said said = say(engine);
            const Said wanted = say(*loaded(*trained).engine(engine_options()));
            EXPECT_TRUE(same_bits(said.whole, wanted.whole)) << bf16_masters << ", step " << i;
            EXPECT_TRUE(same_bits(said.single, wanted.single)) << bf16_masters << ", step " << i;
            EXPECT_EQ(said.drawn, wanted.drawn) << bf16_masters << ", step " << i;
            EXPECT_FALSE(same_bits(said.whole, earlier)) << "the model has learned";
            earlier = said.whole;
        }
    }
}

TEST_P(LiveEngine, LeavesTheTrainingAsItIs) {
    const auto watched = make_trainer(false), alone = make_trainer(false);
    const auto model = described(*watched);
    const LiveWeights live = live_weights(model->spec, watched->weights());
    const std::unique_ptr<Engine> opened = make_engine(model, engine_options(), live.weights);
    Engine& engine = *opened;
    for (int i = 1; i <= 5; ++i) {
        EXPECT_EQ(step(*watched, i), step(*alone, i)) << i;
        refresh(live);
        say(engine);
    }
    const auto count = static_cast<std::size_t>(watched->layout().count);
    std::vector<float> params[2], m[2], v[2];
    for (int i = 0; i < 2; ++i) {
        for (auto* state : {&params[i], &m[i], &v[i]}) state->resize(count);
        (i == 0 ? watched : alone)->get_state(params[i].data(), m[i].data(), v[i].data());
    }
    EXPECT_TRUE(same_bits(params[0], params[1]));
    EXPECT_TRUE(same_bits(m[0], m[1]));
    EXPECT_TRUE(same_bits(v[0], v[1]));
}

INSTANTIATE_TEST_SUITE_P(Families, LiveEngine, ::testing::ValuesIn(kTrained), test::family_name);

}  // namespace
}  // namespace mr::model::live_weights_test
