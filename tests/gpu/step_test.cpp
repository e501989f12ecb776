// A decode step in one kernel compared with the same step in five kernels per layer: the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/device.h"
#include "core/cuda/testing.h"
#include "decode/loop.h"
#include "gpu/engines.h"
#include "model/cuda/device_engine.h"
#include "model/engine.h"

namespace mr::model {
namespace {

class GpuStep : public testing::Test {
  protected:
    void SetUp() override {
        MR_NEED_GPU();
        if (cuda::device()->sm < 90) GTEST_SKIP() << "steps in one kernel need sm_90";
    }
};

using Loaded = test::OnDevice;
Loaded open(const std::string& source) { return test::load_on_device(source); }

struct Drawn {
    bool persistent = false;
    std::vector<std::int32_t> ids;
    std::vector<float> numbers;  // probability and confidence: they depend on every logit
    bool operator==(const Drawn& other) const {
        return ids == other.ids && numbers == other.numbers;
    }
};

// Sequences with prompts of these lengths, decoded together.
Drawn decode(const Loaded& from, EngineOptions options, const std::vector<int>& prompts, int tokens,
             int context = 2048) {
    options.cuda = true;
    const ModelSpec& spec = from.model->spec;
    if (spec.learned_positions) context = std::min(context, spec.context);
    options.context = context;
    options.max_batch = context / 2;
    options.max_sequences = static_cast<int>(prompts.size());
    const std::unique_ptr<Engine> opened = make_engine(from.model, options, from.weights);
    Engine& engine = *opened;
    std::vector<std::vector<std::int32_t>> ids;
    std::vector<BatchItem> batch;
    std::vector<decode::DecodeRow> rows;
    for (std::size_t s = 0; s < prompts.size(); ++s) {
        const SeqId seq = engine.cache().open();
        std::vector<std::int32_t>& prompt = ids.emplace_back();
        for (int i = 0; i < prompts[s]; ++i) {
            prompt.push_back(static_cast<std::int32_t>((i * 7919 + 13 * (s + 1)) % 30000));
        }
        decode::DecodeRow row;
        row.seq = seq;
        row.most = tokens;
        row.params.seed = 5 + s;
        rows.push_back(row);
    }
    for (std::size_t s = 0; s < ids.size(); ++s) batch.push_back(prompt_item(rows[s].seq, ids[s]));
    decode::DecodeLoop loop(engine, engine.submit(batch), rows);
    Drawn drawn;
    for (int i = 0; i < tokens; ++i) {
        for (const ops::Sampled& s : loop.next()) {
            drawn.ids.push_back(s.id);
            drawn.numbers.push_back(s.probability);
            drawn.numbers.push_back(s.confidence);
        }
    }
    drawn.persistent = engine.one_kernel();
    return drawn;
}

void expect_same_bits(const std::string& source, const std::vector<std::vector<int>>& batches,
                      int tokens) {
    SCOPED_TRACE(source);
    const Loaded from = open(source);
    for (const std::vector<int>& prompts : batches) {
        SCOPED_TRACE(prompts.size());
        EngineOptions parts;
        parts.persistent = false;
        const Drawn want = decode(from, parts, prompts, tokens);
        EXPECT_FALSE(want.persistent);
        for (const bool graph : {true, false}) {
            EngineOptions one;
            one.graph = one.dependent_launch = graph;
            const Drawn got = decode(from, one, prompts, tokens);
            EXPECT_TRUE(got.persistent);
            EXPECT_EQ(got.ids, want.ids) << "graph " << graph;
            EXPECT_TRUE(got == want) << "graph " << graph;
        }
    }
}

// Rows that end inside a granule (hidden 1376), all types; keys that cross a bucket (256).
TEST_F(GpuStep, HasTheBitsOfItsPartsInEveryType) {
    for (const char* type : {"bf16", "f16", "q8_0", "q4_0"}) {
        expect_same_bits(std::string("random:stories-42m:") + type,
                         {{5}, {240}, {600}, {1, 30, 65}, {3, 100, 64, 200}}, 40);
    }
}
// Separate tests, so that none hides another.
TEST_F(GpuStep, HasTheBitsOfItsPartsWithGroupedHeads) {
    expect_same_bits("random:tinyllama-1.1b:q8_0", {{130}, {1, 30, 65, 9}}, 20);
}
TEST_F(GpuStep, HasTheBitsOfItsPartsWithBiasesAndLearnedPositions) {
    expect_same_bits("random:gpt2:bf16", {{130}, {1, 30, 65}}, 20);
}
TEST_F(GpuStep, HasTheBitsOfItsPartsWithAParallelResidualAndHeadsOf80) {
    expect_same_bits("random:pythia-2.8b:bf16", {{130}, {1, 30, 65, 9}}, 20);
}
TEST_F(GpuStep, HasTheBitsOfItsPartsWithHeadsOf128) {
    expect_same_bits("random:llama-2-7b:q4_0", {{130}, {1, 30}}, 20);
    expect_same_bits("random:llama-2-7b:bf16", {{1000}}, 40);
}

// Keys in long parts, the newest in the last step; more parts than teams; a window, and
// sinks.
TEST_F(GpuStep, HasTheBitsOfItsPartsWithManyKeys) {
    Loaded from = open("random:stories-42m:bf16");
    EngineOptions parts;
    parts.persistent = false;
    for (const auto& [window, sinks] : {std::pair{0, 0}, {300, 0}, {300, 4}, {100, 330}}) {
        from.model->spec.mask.window = window;
        from.model->spec.mask.sinks = sinks;
        const Drawn want = decode(from, parts, {3000}, 70, 8192);
        const Drawn got = decode(from, {}, {3000}, 70, 8192);
        EXPECT_TRUE(got.persistent);
        EXPECT_TRUE(got == want) << "window " << window << ", sinks " << sinks;
    }
}

// Keys in the ring: every layout of weights (hidden 1376 ends inside a granule), every head size,
// groups of 1, 4 and 8; positions among the sinks, before the window is full and after. A window of
// 300 gives a team one part at most, longer ones several, also of two heads.
struct WithSinks {
    const char* source;
    int window, sinks;
    std::vector<int> prompts;
};
class GpuStepWithSinks : public GpuStep, public testing::WithParamInterface<WithSinks> {};
TEST_P(GpuStepWithSinks, HasTheBitsOfItsParts) {
    const WithSinks& of = GetParam();
    EngineOptions parts;
    parts.persistent = false;
    Loaded from = open(std::string("random:") + of.source);
    from.model->spec.mask.window = of.window;
    from.model->spec.mask.sinks = of.sinks;
    const int context = of.window > 3000 ? 20480 : 8192;  // a pass takes half of it
    for (const int prompt : of.prompts) {
        const Drawn want = decode(from, parts, {prompt}, 30, context);
        const Drawn got = decode(from, {}, {prompt}, 30, context);
        EXPECT_TRUE(got.persistent);
        EXPECT_TRUE(got == want) << prompt;
    }
}
const std::vector<int> kShort{1, 60, 290, 700}, kLong{60, 1990, 2600};
INSTANTIATE_TEST_SUITE_P(Models, GpuStepWithSinks,
                         testing::Values(WithSinks{"stories-42m:f16", 300, 5, kShort},
                                         WithSinks{"stories-42m:q8_0", 300, 5, kShort},
                                         WithSinks{"stories-42m:q4_0", 300, 70, kShort},
                                         WithSinks{"tinyllama-1.1b:bf16", 300, 5, kShort},
                                         WithSinks{"llama-3-8b:q4_0", 300, 5, kShort},
                                         WithSinks{"pythia-2.8b:bf16", 300, 5, kShort},
                                         WithSinks{"pythia-2.8b:bf16", 2040, 5, kLong},
                                         WithSinks{"pythia-2.8b:f16", 2041, 70, kLong},
                                         WithSinks{"llama-2-7b:q8_0", 2040, 5, kLong},
                                         WithSinks{"llama-2-7b:q4_0", 2040, 70, kLong},
                                         WithSinks{"llama-3-8b:bf16", 5000, 4, {60, 5500}},
                                         WithSinks{"tinyllama-1.1b:q8_0", 9000, 4, {9500}}));

// In an engine's first step nothing stale may be taken for a value that has arrived, and nothing of
// an earlier sequence for one of a later sequence.
TEST_F(GpuStep, TheFirstStepOfEveryEngineIsRight) {
    const Loaded from = open("random:stories-42m:q4_0");
    EngineOptions parts;
    parts.persistent = false;
    const Drawn want = decode(from, parts, {70}, 2);
    for (int i = 0; i < 100; ++i) {
        const Drawn got = decode(from, {}, {70}, 2);
        EXPECT_TRUE(got.persistent);
        ASSERT_TRUE(got == want) << "engine " << i;
    }
}
TEST_F(GpuStep, SequencesOfAnyLengthFollowOneAnother) {
    const Loaded from = open("random:stories-42m:q8_0");
    const auto draw = [&](bool persistent) {
        EngineOptions options;
        options.cuda = true;
        options.context = 2048;
        options.max_batch = 1024;
        options.max_sequences = 8;
        options.persistent = persistent;
        const std::unique_ptr<Engine> opened = make_engine(from.model, options, from.weights);
        Engine& engine = *opened;
        std::vector<float> numbers;
        for (const int length : {900, 3, 500, 1, 1000, 64}) {
            const SeqId seq = engine.cache().open();
            const std::vector<std::int32_t> prompt(static_cast<std::size_t>(length), 7 + length);
            const BatchItem item = prompt_item(seq, prompt);
            decode::DecodeRow row;
            row.seq = seq;
            row.most = 5;
            decode::DecodeLoop loop(engine, engine.submit({&item, 1}), {row});
            for (int i = 0; i < 5; ++i) {
                for (const ops::Sampled& s : loop.next()) numbers.push_back(s.confidence);
            }
            EXPECT_EQ(engine.one_kernel(), persistent);
            engine.cache().close(seq);  // the next sequence takes these pages
        }
        return numbers;
    };
    EXPECT_EQ(draw(true), draw(false));
}

// Twenty rows in one pass over the weights or in three: the same bits.
TEST_F(GpuStep, BatchesHaveTheBitsOfPassesOfEight) {
    std::vector<int> prompts;
    for (int i = 0; i < 20; ++i) prompts.push_back(1 + 13 * i % 50);
    for (const char* type : {"bf16", "f16", "q8_0", "q4_0"}) {
        SCOPED_TRACE(type);
        const Loaded from = open(std::string("random:stories-42m:") + type);
        EngineOptions passes;
        passes.batch_products = false;
        const Drawn want = decode(from, passes, prompts, 20);
        const Drawn got = decode(from, {}, prompts, 20);
        EXPECT_EQ(got.ids, want.ids);
        EXPECT_TRUE(got == want);
    }
}

TEST_F(GpuStep, IsNotTakenWhereItCannotBe) {
    const EngineOptions always;
    const Loaded floats = open("random:stories-42m:f32");
    EXPECT_FALSE(decode(floats, always, {5}, 2).persistent);
    const Loaded from = open("random:stories-42m:bf16");
    EXPECT_TRUE(decode(from, always, {5}, 2).persistent);
    EXPECT_FALSE(decode(from, always, std::vector<int>(5, 4), 2).persistent);  // five rows
    EngineOptions other = always;
    other.kv_type = DType::f32;
    EXPECT_FALSE(decode(from, other, {5}, 2).persistent);
    other = always;
    other.check_nan = true;
    EXPECT_FALSE(decode(from, other, {5}, 2).persistent);
    other = always;
    other.persistent = false;
    EXPECT_FALSE(decode(from, other, {5}, 2).persistent);
    other = always;
    other.fuse = false;
    EXPECT_FALSE(decode(from, other, {5}, 2).persistent);
}

// Windows in some layers: the step runs kernel by kernel, and its ledger has the keys that each
// layer's mask allows.
TEST_F(GpuStep, LayersThatDifferGoKernelByKernel) {
    Loaded from = open("random:stories-42m:bf16");
    ModelSpec& spec = from.model->spec;
    const auto read_by = [&](bool graph) {
        EngineOptions options;
        options.cuda = true;
        options.context = 1024;
        options.max_batch = 512;
        options.graph = graph;
        const std::unique_ptr<Engine> opened = make_engine(from.model, options, from.weights);
        Engine& engine = *opened;
        const SeqId seq = engine.cache().open();
        const std::vector<std::int32_t> prompt(500, 7);
        const BatchItem item = prompt_item(seq, prompt);
        decode::DecodeRow row;
        row.seq = seq;
        row.most = 8;
        decode::DecodeLoop loop(engine, engine.submit({&item, 1}), {row});
        loop.next();
        engine.synchronize();
        EXPECT_EQ(engine.one_kernel(), spec.own.empty());
        return engine.ledger().op(OpKind::attention).bytes_read;
    };
    const std::uint64_t alike = read_by(true);
    EXPECT_EQ(read_by(false), alike);
    spec.own.assign(static_cast<std::size_t>(spec.layers), spec);
    for (std::size_t i = 1; i < spec.own.size(); i += 2) spec.own[i].mask.window = 100;
    const std::uint64_t some = read_by(true);
    EXPECT_EQ(read_by(false), some);
    EXPECT_LT(some, alike);
    spec.own.clear();
}

TEST_F(GpuStep, OneEngineAtATimeHasIt) {
    const Loaded from = open("random:stories-42m:q8_0");
    EngineOptions options;
    options.cuda = true;
    options.context = 512;
    const std::vector<std::int32_t> prompt{1, 2, 3};
    const auto is_persistent = [&](Engine& engine) {
        const SeqId seq = engine.cache().open();
        const BatchItem item = prompt_item(seq, prompt);
        decode::DecodeRow row;
        row.seq = seq;
        const decode::DecodeLoop loop(engine, engine.submit({&item, 1}), {row});
        return engine.one_kernel();
    };
    {
        const auto first = make_engine(from.model, options, from.weights);
        const auto second = make_engine(from.model, options, from.weights);
        EXPECT_TRUE(is_persistent(*first));
        EXPECT_FALSE(is_persistent(*second));
    }
    const auto third = make_engine(from.model, options, from.weights);
    EXPECT_TRUE(is_persistent(*third));
}

// A watched step is the same step, and is replayed alike.
TEST_F(GpuStep, StagesOfAllProductsAreStamped) {
    const Loaded from = open("random:stories-42m:q8_0");
    EngineOptions options;
    options.cuda = true;
    options.context = 512;
    const std::unique_ptr<Engine> opened = make_engine(from.model, options, from.weights);
    Engine& engine = *opened;
    const SeqId seq = engine.cache().open();
    const std::vector<std::int32_t> prompt{1, 2, 3};
    const BatchItem item = prompt_item(seq, prompt);
    decode::DecodeRow row;
    row.seq = seq;
    row.most = 50;
    decode::DecodeLoop loop(engine, engine.submit({&item, 1}), {row});
    EXPECT_TRUE(engine.one_kernel());
    engine.watch(true);
    for (int i = 0; i < 3; ++i) {
        loop.step();
        const std::vector<Stage> stages = engine.take_stages();
        // Embedding, five per layer, head, sampler.
        EXPECT_EQ(stages.size(), 5u * static_cast<std::size_t>(from.model->spec.layers) + 3);
        double last = 0;
        for (const Stage& stage : stages) {
            EXPECT_GT(stage.work.seconds, 0) << stage.name;
            EXPECT_GE(stage.begin, last) << stage.name;
            last = stage.begin;
        }
    }
}

}  // namespace
}  // namespace mr::model
