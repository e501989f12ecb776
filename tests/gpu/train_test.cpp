// Training on the GPU compared with the CPU, and changes that must not affect bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/cuda/device.h"
#include "core/cuda/testing.h"
#include "core/error.h"
#include "core/half.h"
#include "families.h"
#include "model/grain_cases.h"
#include "model/io/source.h"
#include "model/train/train_engine.h"

namespace mr::model::train_test {
namespace {

constexpr const char* kTrained[] = {"llama2", "llama3", "mistral",  "qwen2",       "qwen2-window",
                                    "qwen3",  "gpt2",   "gpt-neox", "gpt-neox-seq"};
constexpr int kSequences = 3, kSeq = 24;
constexpr double kScale = 1.0 / (kSequences * kSeq);

TrainEngineOptions options_of(bool cuda, Recompute recompute = Recompute::none,
                              std::int64_t head_rows = 0) {
    return {.cuda = cuda,
            .threads = 2,
            .shape = {.sequences = kSequences, .seq = kSeq, .head_rows = head_rows},
            .recompute = recompute};
}

// Next tokens of a repeating noise, so that there is something to learn.
void put_batch(TrainEngine& engine, int slot = 0) {
    const auto host = engine.ops().host_slot(slot);
    const std::size_t tokens = host.size() / 2;
    const auto vocab = static_cast<std::uint32_t>(engine.spec().vocab);
    std::uint32_t x = 99;
    for (std::size_t i = 0; i <= tokens; ++i) {
        x = i % 11 == 0 ? 99u + static_cast<std::uint32_t>(i / 33) : x * 1664525u + 1013904223u;
        const auto id = static_cast<std::int32_t>((x >> 8) % vocab);
        if (i < tokens) host[i] = id;
        if (i > 0) host[tokens + i - 1] = id;
    }
    host[tokens + 5] = -1;  // one that does not count
    engine.put(slot);
}

std::vector<float> grads_of(TrainEngine& engine) {
    engine.accumulate(0, kScale);
    std::vector<float> out(static_cast<std::size_t>(engine.layout().count));
    engine.read_grads(out);
    return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

class GpuTrain : public ::testing::TestWithParam<const char*> {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
    static Model model() {
        return load_model(std::string(MR_SOURCE_DIR) + "/tests/reference/" + GetParam());
    }
    // Parameters that are exact in bf16: both engines use the same values.
    static std::vector<float> parameters(TrainEngine& engine) {
        engine.load(model());
        std::vector<float> out(static_cast<std::size_t>(engine.layout().count));
        engine.get_state(out.data(), nullptr, nullptr);
        for (float& v : out) v = bf16_to_f32(f32_to_bf16(v));
        return out;
    }
};

TEST_P(GpuTrain, GradientsAreThoseOfTheCpu) {
    const ModelSpec spec = trainable_spec(model().spec);
    TrainEngine cpu(spec, options_of(false)), gpu(spec, options_of(true));
    const std::vector<float> params = parameters(cpu);
    std::vector<std::vector<float>> grads, losses(2, std::vector<float>(kSequences * kSeq));
    for (TrainEngine* engine : {&cpu, &gpu}) {
        engine->set_state(params.data(), nullptr, nullptr);
        put_batch(*engine);
        grads.push_back(grads_of(*engine));
    }
    cpu.read_losses(losses[0]);
    gpu.read_losses(losses[1]);
    // Activations are rounded to 2^-9, about ten times per layer, and logits once more; a loss is a
    // difference of logits.
    for (std::size_t t = 0; t < losses[0].size(); ++t) {
        EXPECT_NEAR(losses[1][t], losses[0][t], 0.05 * (1 + std::abs(losses[0][t]))) << t;
    }
    EXPECT_EQ(losses[1][5], 0);
    double whole = 0;
    for (const float g : grads[0]) whole += double{g} * double{g};
    whole = std::sqrt(whole);
    for (const ParamLayout::Entry& entry : cpu.layout().entries) {
        double error = 0, size = 0, dot = 0, other = 0;
        for (std::int64_t i = 0; i < entry.shape.count(); ++i) {
            const auto at = static_cast<std::size_t>(entry.offset + i);
            const double want = grads[0][at], got = grads[1][at];
            error += (got - want) * (got - want);
            size += want * want;
            other += got * got;
            dot += want * got;
        }
        const std::string name = "role " + std::to_string(static_cast<int>(entry.at.role)) +
                                 " of layer " + std::to_string(entry.at.layer) + ", cosine " +
                                 std::to_string(dot / std::sqrt(size * other));
        // Rounding of all the activations between; a tensor whose own gradient nearly cancels has
        // the error of its terms.
        EXPECT_LT(std::sqrt(error), 0.06 * std::sqrt(size) + 0.004 * whole) << name;
    }
}

TEST_P(GpuTrain, RepetitionAndRecomputationChangeNoBit) {
    const ModelSpec spec = trainable_spec(model().spec);
    std::vector<float> first;
    for (const Recompute recompute :
         {Recompute::none, Recompute::none, Recompute::light, Recompute::full}) {
        TrainEngine engine(spec, options_of(true, recompute));
        engine.load(model());
        put_batch(engine);
        const std::vector<float> grads = grads_of(engine);
        if (first.empty()) first = grads;
        EXPECT_TRUE(same_bits(grads, first)) << recompute_name(recompute);
    }
    // The head in chunks of rows: its own gradient and the final norm's are summed in another
    // order.
    TrainEngine engine(spec, options_of(true, Recompute::none, 17));
    engine.load(model());
    put_batch(engine);
    EXPECT_LT(test::relative_rms(grads_of(engine), first), 0.02);
}

TEST_P(GpuTrain, LearnsAsTheCpuDoes) {
    const ModelSpec spec = trainable_spec(model().spec);
    std::vector<double> last;
    for (const bool cuda : {false, true, true}) {
        TrainEngine engine(spec, options_of(cuda));
        engine.load(model());
        put_batch(engine, 1);
        double loss = 0;
        for (int step = 1; step <= 20; ++step) {
            engine.accumulate(1, kScale);
            const auto result =
                engine.update({.lr = 0.003f, .weight_decay = 0.1f, .clip = 1.0f, .step = step});
            EXPECT_FALSE(result.skipped);
            loss = result.loss;
        }
        last.push_back(loss);
    }
    EXPECT_NEAR(last[1], last[0], 0.05 * (1 + last[0]));
    EXPECT_EQ(last[1], last[2]);
}

INSTANTIATE_TEST_SUITE_P(Families, GpuTrain, ::testing::ValuesIn(kTrained), test::family_name);

ModelSpec small_spec() {
    ModelSpec spec;
    spec.family = "llama";
    spec.vocab = 1001;  // padded to 1024
    spec.dim = 64;
    spec.layers = 2;
    spec.heads = 4;
    spec.kv_heads = 2;
    spec.head_dim = 16;
    spec.hidden = 128;
    spec.context = 64;
    spec.tied_embeddings = true;
    spec.rope.rotary = 16;
    return spec;
}

class GpuTraining : public ::testing::Test {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
};

TEST_F(GpuTraining, LearnsOneBatchByHeart) {
    TrainEngine engine(small_spec(), options_of(true));
    engine.init(1);
    put_batch(engine);
    double loss = 0;
    for (int step = 1; step <= 300; ++step) {
        engine.accumulate(0, kScale);
        loss = engine.update({.lr = 0.01f, .weight_decay = 0, .clip = 1.0f, .step = step}).loss;
    }
    EXPECT_LT(loss, 0.02);
}

// bf16 masters take 4 bytes less per matrix parameter, learn as f32 ones do, and a state that is
// read and set again continues with the same bits.
TEST_F(GpuTraining, Bf16Masters) {
    TrainEngineOptions options = options_of(true);
    const std::uint64_t with_f32 = TrainEngine::plan(small_spec(), options).total();
    options.bf16_masters = true;
    TrainEngine engine(small_spec(), options), other(small_spec(), options);
    const auto n = static_cast<std::size_t>(engine.layout().count);
    EXPECT_EQ(engine.plan().total() + 4 * static_cast<std::uint64_t>(engine.layout().decayed),
              with_f32);
    engine.init(1);
    std::vector<float> params(n), m(n), v(n), again(n);
    engine.get_state(params.data(), nullptr, nullptr);
    put_batch(engine);
    put_batch(other);
    const auto step_of = [](TrainEngine& e, int step) {
        e.accumulate(0, kScale);
        return e.update({.lr = 0.005f, .weight_decay = 0, .clip = 1.0f, .step = step, .seed = 7})
            .loss;
    };
    double loss = 0;
    for (int step = 1; step <= 150; ++step) loss = step_of(engine, step);
    engine.get_state(params.data(), m.data(), v.data());
    for (std::int64_t i = 0; i < engine.layout().decayed; ++i) {
        const float p = params[static_cast<std::size_t>(i)];
        ASSERT_EQ(p, bf16_to_f32(f32_to_bf16(p))) << i;
    }
    EXPECT_EQ(std::vector<float>(engine.host(TrainEngine::State::params),
                                 engine.host(TrainEngine::State::params) + n),
              params);
    other.set_state(params.data(), m.data(), v.data());
    for (int step = 151; step <= 300; ++step) {
        loss = step_of(engine, step);
        ASSERT_EQ(step_of(other, step), loss) << step;
    }
    EXPECT_LT(loss, 0.1);
    engine.get_state(params.data(), nullptr, nullptr);
    other.get_state(again.data(), nullptr, nullptr);
    EXPECT_TRUE(same_bits(params, again));
}

TEST_F(GpuTraining, AStepWithoutAFiniteGradientChangesNothing) {
    TrainEngine engine(small_spec(), options_of(true));
    engine.init(1);
    std::vector<float> params(static_cast<std::size_t>(engine.layout().count));
    engine.get_state(params.data(), nullptr, nullptr);
    std::vector<float> broken = params;
    for (float& v : broken) v = NAN;
    engine.set_state(broken.data(), nullptr, nullptr);
    put_batch(engine);
    engine.accumulate(0, kScale);
    EXPECT_TRUE(engine.update({.lr = 0.01f}).skipped);
    std::vector<float> m(params.size()), v(params.size());
    engine.get_state(nullptr, m.data(), v.data());
    EXPECT_EQ(m, std::vector<float>(m.size()));
    EXPECT_EQ(v, std::vector<float>(v.size()));
    engine.set_state(params.data(), nullptr, nullptr);
    engine.accumulate(0, kScale);
    const auto result = engine.update({.lr = 0.01f});
    EXPECT_FALSE(result.skipped);
    EXPECT_TRUE(std::isfinite(result.loss));
}

// To the byte, whatever is kept or recomputed; steps, validation and timing of stages allocate
// nothing more, except the stamps of the timing, which are not part of a step.
TEST_F(GpuTraining, HoldsWhatWasPlanned) {
    const ModelSpec gpt2 =
        trainable_spec(load_model(std::string(MR_SOURCE_DIR) + "/tests/reference/gpt2").spec);
    for (const ModelSpec& spec : {small_spec(), gpt2}) {
        for (const bool bf16_masters : {false, true}) {
            for (const Recompute recompute : {Recompute::none, Recompute::light, Recompute::full}) {
                SCOPED_TRACE(spec.family + ", " + recompute_name(recompute));
                TrainEngineOptions options = options_of(true, recompute);
                options.bf16_masters = bf16_masters;
                const std::uint64_t before = cuda::held_bytes();
                {
                    TrainEngine engine(spec, options);
                    const std::uint64_t held = cuda::held_bytes() - before;
                    EXPECT_EQ(held, engine.plan().total());
                    EXPECT_EQ(held, TrainEngine::plan(spec, options).total());
                    engine.init(1);
                    put_batch(engine);
                    engine.accumulate(0, kScale);
                    engine.update({.lr = 0.01f});
                    engine.evaluate(0);
                    EXPECT_EQ(cuda::held_bytes() - before, held);
                    engine.ops().watch();
                    engine.accumulate(0, kScale);
                    EXPECT_FALSE(engine.ops().watched().empty());
                    EXPECT_LE(cuda::held_bytes() - before, held + (std::uint64_t{4} << 20));
                }
                EXPECT_EQ(cuda::held_bytes(), before);
            }
        }
    }
}

// Few tokens and a large vocabulary, whose padded rows make the widest GEMM.
TEST_F(GpuTraining, AFewTokensOfALargeVocabulary) {
    ModelSpec spec = small_spec();
    spec.vocab = 50257;
    TrainEngineOptions options = options_of(true);
    for (const int sequences : {1, 3}) {
        options.shape = {.sequences = sequences, .seq = 16};
        TrainEngine engine(spec, options);
        engine.init(1);
        put_batch(engine);
        engine.accumulate(0, 1.0 / static_cast<double>(options.shape.tokens()));
        const auto result = engine.update({.lr = 0.001f});
        EXPECT_FALSE(result.skipped);
        // With new parameters all tokens are about equally likely; one target does not count.
        const double counted = static_cast<double>(options.shape.tokens() - 1) /
                               static_cast<double>(options.shape.tokens());
        EXPECT_NEAR(result.loss, std::log(50257.0) * counted, 0.2);
    }
}

// Batches go to the two slots in turn while others compute: the losses equal those of one at a
// time.
TEST_F(GpuTraining, GrainsAreAddedUpInABinaryTree) { test::every_grain_case(true); }

TEST_F(GpuTraining, BatchesInTurnAreEachTheirOwn) {
    TrainEngine engine(small_spec(), options_of(true));
    engine.init(4);
    const auto fill = [&](int slot, int which) {
        const auto host = engine.ops().host_slot(slot);
        for (std::size_t i = 0; i < host.size(); ++i) {
            host[i] =
                static_cast<std::int32_t>((i * 7 + static_cast<std::size_t>(which) * 31) % 1001);
        }
    };
    std::vector<double> alone, in_turn;
    for (int which = 0; which < 6; ++which) {
        fill(0, which);
        engine.put(0);
        alone.push_back(engine.evaluate(0));
    }
    fill(0, 0);
    engine.put(0);
    for (int which = 0; which < 6; ++which) {
        if (which < 5) {
            fill((which + 1) % 2, which + 1);
            engine.put((which + 1) % 2);
        }
        in_turn.push_back(engine.evaluate(which % 2));
    }
    EXPECT_EQ(in_turn, alone);
}

TEST_F(GpuTraining, HeadsThatAreTooWideAreRefusedInWords) {
    ModelSpec spec = small_spec();
    spec.head_dim = 136;
    EXPECT_THROW(TrainEngine(spec, options_of(true)), Error);
    spec.head_dim = 12;
    EXPECT_THROW(TrainEngine(spec, options_of(true)), Error);
}

}  // namespace
}  // namespace mr::model::train_test
