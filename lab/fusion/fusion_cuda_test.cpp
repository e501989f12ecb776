// Every fusion of a step separately: the same NLL, and fewer kernels by the number it joins.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/cuda/device.h"
#include "core/cuda/testing.h"
#include "families.h"
#include "gpu/engines.h"
#include "lab/fusion/fusion.h"
#include "lab/fusion/score.h"
#include "model/engine.h"
#include "model/io/random.h"

namespace mr::fusion {
namespace {

class GpuFusion : public testing::Test {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
    static bool sm90() { return cuda::device()->sm >= 90; }
    static model::EngineOptions small() {
        model::EngineOptions options;
        options.cuda = true;
        options.context = 256;
        options.max_batch = 128;
        return options;
    }
    static Ladder climb_quickly(const test::OnDevice& on, const model::EngineOptions& engine) {
        Options options;
        options.measure = {.prompt = 16, .steps = 4, .repetitions = 1, .warmup = 0};
        options.ids = decode::made_up_ids(128, on.model->spec.vocab);
        options.engine = engine;
        return climb(on.model, on.weights, options);
    }
    static test::OnDevice pythia(int layers, DType type) {
        model::ModelSpec spec = model::random_shape("random:pythia-2.8b").first;
        spec.layers = layers;
        return test::to_device(model::deferred_random_model(spec, type, 3));
    }
};

constexpr int kRungs = 8;
enum { kSeparate, kAddInNorm, kNorms, kAddInProduct, kNormInProduct, kDependent, kGraph, kOne };

TEST_F(GpuFusion, EveryRungOfANeoxHasTheSameNllAndFewerKernels) {
    constexpr int kLayers = 3;
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
        SCOPED_TRACE(dtype_name(type));
        const Ladder ladder = climb_quickly(pythia(kLayers, type), small());
        ASSERT_EQ(ladder.rungs.size(), kRungs);
        EXPECT_TRUE(ladder.same_nll());
        const std::vector<Rung>& rungs = ladder.rungs;
        for (const Rung& rung : rungs) {
            SCOPED_TRACE(rung.name);
            if (!rung.absent.empty()) continue;
            EXPECT_GT(rung.seconds, 0);
            EXPECT_GT(rung.bytes, 0);
            EXPECT_GT(rung.nll, 5);  // ids at random, of 50,304
            EXPECT_TRUE(same_to_4_digits(rung.nll, rungs[kSeparate].nll)) << rung.nll;
            const bool one_by_one = &rung < &rungs[kGraph];
            EXPECT_EQ(rung.launches, one_by_one ? rung.kernels : 1);
        }
        const auto fewer = [&](int rung) {
            EXPECT_EQ(rungs[static_cast<std::size_t>(rung)].absent, "");
            return rungs[static_cast<std::size_t>(rung) - 1].kernels -
                   rungs[static_cast<std::size_t>(rung)].kernels;
        };
        // Of a layer's two sums a norm takes the second, except in the last layer: the final norm
        // covers other rows in a pass.
        EXPECT_EQ(fewer(kAddInNorm), kLayers - 1);
        EXPECT_EQ(fewer(kNorms), kLayers);
        EXPECT_EQ(fewer(kAddInProduct), kLayers + 1);
        if (type == DType::f32 || cuda::device()->sm < 80) {
            EXPECT_NE(rungs[kNormInProduct].absent, "");
            EXPECT_NE(rungs[kOne].absent, "");
            EXPECT_EQ(rungs[kGraph].kernels, rungs[kAddInProduct].kernels);
            continue;
        }
        // Norm, rotation, activation; and the norm before the head.
        EXPECT_EQ(fewer(kNormInProduct), 3 * kLayers + 1);
        EXPECT_EQ(rungs[kGraph].kernels, rungs[kNormInProduct].kernels);
        if (!sm90()) {
            EXPECT_NE(rungs[kDependent].absent, "");
            EXPECT_NE(rungs[kOne].absent, "");
            continue;
        }
        EXPECT_EQ(fewer(kDependent), 0);
        EXPECT_GT(fewer(kOne), 0);
    }
}

TEST_F(GpuFusion, ASequentialResidualHasNoNormsOfOneSum) {
    const test::OnDevice on = test::load_on_device("random:stories-42m:bf16");
    const Ladder ladder = climb_quickly(on, small());
    ASSERT_EQ(ladder.rungs.size(), kRungs);
    EXPECT_TRUE(ladder.same_nll());
    EXPECT_NE(ladder.rungs[kNorms].absent.find("sequential"), std::string::npos);
    // First all sums but the last are done by norms, then all by GEMMs.
    const int layers = on.model->spec.layers;
    EXPECT_EQ(ladder.rungs[kSeparate].kernels - ladder.rungs[kAddInNorm].kernels, 2 * layers - 1);
    EXPECT_EQ(ladder.rungs[kAddInNorm].kernels - ladder.rungs[kAddInProduct].kernels, 1);
}

// What an engine was told to leave off stays off in every rung.
TEST_F(GpuFusion, WhatIsSwitchedOffIsNoRung) {
    const test::OnDevice on = test::load_on_device("random:stories-42m:bf16");
    model::EngineOptions engine = small();
    engine.persistent = engine.graph = false;
    const Ladder ladder = climb_quickly(on, engine);
    for (const int rung : {kGraph, kOne}) {
        EXPECT_EQ(ladder.rungs[static_cast<std::size_t>(rung)].absent, "it is switched off");
    }
}

// The switches of earlier rungs have no effect on the step in one kernel.
TEST_F(GpuFusion, TheWholeStepDoesNotKnowOfThem) {
    if (!sm90()) GTEST_SKIP() << "only code for 9.0 has a step in one kernel";
    const test::OnDevice on = pythia(2, DType::bf16);
    const auto kernels = [&](const model::EngineOptions& options) {
        return on.engine(options)->step_launches(1, 200).kernels;
    };
    model::EngineOptions apart = small();
    apart.add_in_norm = apart.norms_together = false;
    EXPECT_EQ(kernels(apart), kernels(small()));
    EXPECT_EQ(on.engine(small())->step_launches(1, 200).launches, 1);
}

// A prompt's GEMMs always add, whatever a step does.
TEST_F(GpuFusion, PromptsHaveTheSameBits) {
    for (const DType type : {DType::f32, DType::bf16}) {
        const test::OnDevice on = pythia(2, type);
        model::EngineOptions options = small();
        options.max_logits = 100;
        const std::vector<std::int32_t> ids = decode::made_up_ids(100, on.model->spec.vocab);
        const auto logits = [&](const model::EngineOptions& of) {
            return test::logits_of(*on.engine(of), ids, ids.size());
        };
        EXPECT_TRUE(logits(nothing_fused(options)) == logits(options)) << dtype_name(type);
    }
}

// Several rows of the decode form, from several sequences, on engines without any fusion.
TEST_F(GpuFusion, ManyRowsWithoutAnyFusionAreNear) {
    model::EngineOptions options = small();
    options.max_logits = 40;
    for (const test::OnDevice& on :
         {pythia(2, DType::f16), test::load_on_device("random:stories-42m:bf16")}) {
        const std::vector<std::int32_t> ids = decode::made_up_ids(40, on.model->spec.vocab);
        for (const std::size_t chunk : {std::size_t{1}, std::size_t{3}, ids.size()}) {
            const std::vector<float> want = test::logits_of(*on.engine(options), ids, chunk);
            const std::vector<float> got =
                test::logits_of(*on.engine(nothing_fused(options)), ids, chunk);
            EXPECT_LT(test::relative_rms(got, want), 0.03) << chunk;
        }
    }
}

// Fed tokens are scored by the step, given ones by a pass of the decode form: the same text.
TEST_F(GpuFusion, ScoresWhatAPassOfTheSameTokensScores) {
    const test::OnDevice on = test::load_on_device("random:stories-42m:bf16");
    const std::unique_ptr<model::Engine> engine = on.engine(small());
    const std::vector<std::int32_t> ids = decode::made_up_ids(40, on.model->spec.vocab);
    const double fed = score_fed(*engine, ids);
    const model::SeqId seq = engine->cache().open();
    double nats = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        const model::BatchItem item{.seq = seq, .tokens = std::span(ids).subspan(i, 1)};
        double nll = 0;
        engine->cross_entropy({&nll, 1}, engine->submit({&item, 1}),
                              std::span(ids).subspan(i + 1, 1));
        if (i > 0) nats += nll;
    }
    engine->cache().close(seq);
    EXPECT_NEAR(fed, nats / 38, 1e-6);
    EXPECT_EQ(score_fed(*engine, ids), fed);
}

}  // namespace
}  // namespace mr::fusion
