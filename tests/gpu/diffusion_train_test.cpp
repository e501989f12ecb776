// Block diffusion models trained on the GPU compared with the CPU, and changes that must not affect
// bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/cuda/testing.h"
#include "core/half.h"
#include "model/train/train_engine.h"

namespace mr::model {
namespace {

struct Case {
    int sequences, seq, block, head_dim;
};

ModelSpec spec_of(const Case& c) {
    ModelSpec spec;
    spec.family = "qwen3";
    spec.vocab = 517;
    spec.dim = 64;
    spec.layers = 2;
    spec.heads = 4;
    spec.kv_heads = 2;
    spec.head_dim = c.head_dim;
    spec.hidden = 128;
    spec.context = c.seq;
    spec.rope.rotary = c.head_dim;
    spec.qk_norm = true;
    spec.tied_embeddings = true;
    return diffusion_spec(spec, 517, c.block);
}

TrainEngineOptions options_of(const Case& c, bool cuda, Recompute recompute = Recompute::none,
                              std::int64_t head_rows = 0) {
    return {
        .cuda = cuda,
        .threads = 2,
        .shape = {.sequences = c.sequences, .seq = c.seq, .head_rows = head_rows, .block = c.block},
        .recompute = recompute};
}

std::int64_t put_batch(TrainEngine& engine) {
    const TrainShape& shape = engine.options().shape;
    const SlotParts<std::int32_t> to(engine.ops().host_slot(0), shape);
    const auto half = static_cast<std::size_t>(shape.half());
    const auto block = static_cast<std::size_t>(shape.block);
    std::uint32_t x = 99;
    std::size_t count = 0;
    for (std::size_t i = 0; i < half; ++i) {
        x = i % 11 == 0 ? 99u + static_cast<std::uint32_t>(i / 33) : x * 1664525u + 1013904223u;
        const auto id = static_cast<std::int32_t>((x >> 8) % 517);
        const std::size_t masks = 1 + i / block % block;  // in the block
        to.ids[i] = to.ids[half + i] = id;
        if ((i + i / block) % block >= masks) continue;
        to.ids[i] = engine.spec().diffusion->mask;
        to.rows[count] = static_cast<std::int32_t>(i);
        to.targets[count] = id;
        const float weight = static_cast<float>(block) / static_cast<float>(masks);
        std::memcpy(&to.weights[count], &weight, sizeof weight);
        ++count;
    }
    engine.put(0, static_cast<std::int64_t>(count));
    return static_cast<std::int64_t>(count);
}

std::vector<float> parameters(TrainEngine& engine) {
    engine.init(3);
    std::vector<float> out(static_cast<std::size_t>(engine.layout().count));
    engine.get_state(out.data(), nullptr, nullptr);
    for (std::int64_t i = 0; i < engine.layout().decayed; ++i) {
        float& v = out[static_cast<std::size_t>(i)];
        v = bf16_to_f32(f32_to_bf16(4 * v));  // both engines use the same values
    }
    return out;
}

class GpuDiffusionTraining : public ::testing::Test {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
    // Blocks inside a tile of attention and longer ones, sequences that end inside a tile. Short
    // blocks have a specialised kernel, longer ones are sequences for attention's.
    static constexpr Case kCases[] = {{3, 24, 4, 16},    {5, 64, 1, 32},    {2, 272, 16, 32},
                                      {2, 384, 128, 64}, {40, 128, 32, 64}, {2, 192, 64, 128},
                                      {3, 30, 6, 24}};
};

TEST_F(GpuDiffusionTraining, GradientsAreThoseOfTheCpu) {
    for (const Case& c : kCases) {
        SCOPED_TRACE("block " + std::to_string(c.block) + ", seq " + std::to_string(c.seq));
        const ModelSpec spec = spec_of(c);
        TrainEngine cpu(spec, options_of(c, false)), gpu(spec, options_of(c, true));
        const std::vector<float> params = parameters(cpu);
        const double scale = 1.0 / (c.sequences * c.seq);
        std::vector<std::vector<float>> grads, losses;
        for (TrainEngine* engine : {&cpu, &gpu}) {
            engine->set_state(params.data(), nullptr, nullptr);
            losses.emplace_back(static_cast<std::size_t>(put_batch(*engine)));
            engine->accumulate(0, scale);
            engine->read_losses(losses.back());
            grads.emplace_back(params.size());
            engine->read_grads(grads.back());
        }
        // As in tests/gpu/train_test.cpp; losses are weighted.
        const float weights = static_cast<float>(c.block);
        for (std::size_t t = 0; t < losses[0].size(); ++t) {
            ASSERT_NEAR(losses[1][t], losses[0][t], 0.05 * (weights + std::abs(losses[0][t]))) << t;
        }
        double whole = 0;
        for (const float g : grads[0]) whole += double{g} * double{g};
        whole = std::sqrt(whole);
        for (const ParamLayout::Entry& entry : cpu.layout().entries) {
            double error = 0, size = 0;
            for (std::int64_t i = 0; i < entry.shape.count(); ++i) {
                const auto at = static_cast<std::size_t>(entry.offset + i);
                const double want = grads[0][at], got = grads[1][at];
                error += (got - want) * (got - want);
                size += want * want;
            }
            EXPECT_LT(std::sqrt(error), 0.06 * std::sqrt(size) + 0.004 * whole)
                << "role " << static_cast<int>(entry.at.role) << " of layer " << entry.at.layer;
        }
    }
}

TEST_F(GpuDiffusionTraining, RepetitionAndRecomputationChangeNoBit) {
    for (const Case& c : kCases) {
        SCOPED_TRACE("block " + std::to_string(c.block) + ", seq " + std::to_string(c.seq));
        std::vector<float> first;
        for (const Recompute recompute :
             {Recompute::none, Recompute::none, Recompute::light, Recompute::full}) {
            TrainEngine engine(spec_of(c), options_of(c, true, recompute));
            engine.init(3);
            put_batch(engine);
            for (int step = 1; step <= 3; ++step) {
                engine.accumulate(0, 1.0 / (c.sequences * c.seq));
                EXPECT_FALSE(engine.update({.lr = 0.01f, .step = step}).skipped);
            }
            std::vector<float> params(static_cast<std::size_t>(engine.layout().count));
            engine.get_state(params.data(), nullptr, nullptr);
            if (first.empty()) first = params;
            EXPECT_EQ(std::memcmp(params.data(), first.data(), 4 * first.size()), 0)
                << recompute_name(recompute);
        }
    }
}

TEST_F(GpuDiffusionTraining, LearnsAsTheCpuDoes) {
    const Case c{4, 32, 8, 16};
    std::vector<double> last;
    for (const bool cuda : {false, true, true}) {
        TrainEngine engine(spec_of(c), options_of(c, cuda, Recompute::none, 50));
        engine.init(3);
        put_batch(engine);
        double loss = 0;
        for (int step = 1; step <= 60; ++step) {
            engine.accumulate(0, 1.0 / (c.sequences * c.seq));
            loss = engine.update({.lr = 0.005f, .clip = 1.0f, .step = step}).loss;
        }
        last.push_back(loss);
    }
    EXPECT_LT(last[0], 3);  // log(517) is 6.2
    EXPECT_NEAR(last[1], last[0], 0.1 * (1 + last[0]));
    EXPECT_EQ(last[1], last[2]);
}

// Every number of rows is another GEMM, whose algorithm is searched once, at the cost of many runs.
// Batches that differ by a few masks must not cause that.
TEST_F(GpuDiffusionTraining, TheHeadSeesFewNumbersOfRows) {
    const Case c{8, 256, 16, 32};
    TrainEngine engine(spec_of(c), options_of(c, true));
    engine.init(3);
    const std::int64_t count = put_batch(engine);
    ASSERT_EQ((count + 63) / 64, (count - 2 + 63) / 64);  // the same multiple of 64
    std::uint64_t first = 0;
    for (const std::int64_t less : {0, 1, 2}) {
        put_batch(engine);
        engine.put(0, count - less);
        const Ledger before = engine.ledger();
        engine.accumulate(0, 1.0 / (c.sequences * c.seq));
        const Ledger spent = engine.ledger().since(before);
        const std::uint64_t flops = spent.op(OpKind::lm_head).flops;
        ASSERT_GT(flops, 0u);
        if (less == 0) first = flops;
        EXPECT_EQ(flops, first) << less;
        EXPECT_FALSE(engine.update({.lr = 0.001f, .step = 1}).skipped);
    }
}

TEST_F(GpuDiffusionTraining, EvaluatesWithoutChangingAnything) {
    const Case c{2, 64, 16, 32};
    TrainEngine engine(spec_of(c), options_of(c, true));
    engine.init(3);
    put_batch(engine);
    const double sum = engine.evaluate(0);
    EXPECT_EQ(engine.evaluate(0), sum);
    engine.accumulate(0, 1.0);
    EXPECT_NEAR(engine.update({.lr = 0.0f, .step = 1}).loss, sum, 1e-3 * sum);
    EXPECT_NEAR(sum / (c.sequences * c.seq), std::log(517.0), 0.5);
}

}  // namespace
}  // namespace mr::model
