// Plans are exact to the byte; what cannot run is refused before anything is allocated.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda/device.h"
#include "core/cuda/testing.h"
#include "core/cuda/timeline.h"
#include "core/error.h"
#include "core/thread_pool.h"
#include "decode/loop.h"
#include "model/cuda/device_engine.h"
#include "model/cuda/device_weights.h"
#include "model/engine.h"
#include "model/io/random.h"

namespace mr::model {
namespace {

class GpuPlan : public testing::Test {
  protected:
    void SetUp() override { MR_NEED_GPU(); }
    static std::unique_ptr<Engine> open(const std::string& source, EngineOptions options) {
        auto model = std::make_shared<Model>(load_model(source, {.defer_random = true}));
        ThreadPool pool(4);
        auto weights = load_to_device(*model, pool, nullptr);
        options.cuda = true;
        return make_engine(model, options, weights);
    }
    static std::vector<std::int32_t> prompt(int tokens) {
        std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
        for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i % 251);
        return ids;
    }
};

TEST_F(GpuPlan, IsWhatTheArenasHold) {
    struct Case {
        const char* model;
        std::int64_t context;
        int sequences, batch;
        bool check_nan;
    };
    for (const Case& c : {Case{"random:stories-42m:bf16", 512, 1, 256, false},
                          Case{"random:stories-42m:q4_0", 1000, 3, 2048, false},
                          Case{"random:stories-42m:q8_0", 777, 40, 100, true},
                          Case{"random:stories-42m:f32", 33, 1, 1, false},
                          Case{"random:gpt2:f16", 1024, 2, 300, false}}) {
        SCOPED_TRACE(c.model);
        const std::uint64_t before = cuda::held_bytes();
        EngineOptions options;
        options.context = c.context;
        options.max_sequences = c.sequences;
        options.max_batch = c.batch;
        options.check_nan = c.check_nan;
        {
            const auto engine = open(c.model, options);
            const std::uint64_t planned = plan_engine(engine->model(), engine->options()).total();
            EXPECT_EQ(cuda::held_bytes() - before, planned);
        }
        EXPECT_EQ(cuda::held_bytes(), before);
    }
}

// Neither a prompt nor steps allocate, watched or not, in a graph or not.
TEST_F(GpuPlan, NothingIsTakenWhileItRuns) {
    for (const bool graph : {true, false}) {
        EngineOptions options;
        options.context = 600;
        options.max_batch = 512;
        options.graph = graph;
        const auto engine = open("random:stories-42m:bf16", options);
        const std::uint64_t held = cuda::held_bytes();
        const SeqId seq = engine->cache().open();
        const std::vector<std::int32_t> ids = prompt(250);
        const BatchItem item = prompt_item(seq, ids);
        decode::DecodeRow row;
        row.seq = seq;
        row.most = 40;
        engine->watch(true);
        const Tensor logits = engine->submit({&item, 1});
        const std::vector<Stage> pass = engine->take_stages();
        EXPECT_FALSE(pass.empty());
        decode::DecodeLoop loop(*engine, logits, {row});
        // Beyond 256 keys, where another graph is captured.
        for (int i = 0; i < 10; ++i) {
            const Ledger before = engine->ledger();
            loop.step();
            const std::vector<Stage> step = engine->take_stages();
            EXPECT_FALSE(step.empty());
            for (const Stage& stage : step) {
                EXPECT_GT(stage.work.seconds, 0) << stage.name;
                EXPECT_LT(stage.work.seconds, 0.1) << stage.name;
            }
            // Id, probability, confidence and number, and every stage's stamp: nothing is
            // uncounted.
            EXPECT_EQ(engine->ledger().since(before).device_to_host().bytes,
                      16 + step.size() * sizeof(cuda::Stamp));
        }
        engine->watch(false);
        for (int i = 0; i < 10; ++i) loop.step();
        engine->synchronize();
        EXPECT_EQ(cuda::held_bytes(), held) << graph;
    }
}

// The plan of a server with an 8B model: attention's scratch grows with the rows of a step and the
// context of one sequence, not with the pool.
TEST_F(GpuPlan, ServingShapesHaveLittleScratch) {
    const Model model = load_model("random:llama-3-8b:bf16", {.defer_random = true});
    for (const auto& [sequences, context] :
         {std::pair{256, 4096}, std::pair{64, 8192}, std::pair{8, 131072}}) {
        EngineOptions options;
        options.cuda = true;
        options.max_sequences = sequences;
        options.context = context;
        options.pool = 400000;
        options.max_batch = kDeviceBatch;
        const MemoryPlan plan = plan_engine(model, options);
        for (const MemoryPlan::Item& item : plan.items()) {
            if (item.name != "scratch") continue;
            EXPECT_LT(item.bytes, std::uint64_t{2} << 30) << sequences << " x " << context;
        }
    }
}

// Steps are captured when the engine is made: their memory is the driver's, and fits into the room
// that the default pool leaves for it.
TEST_F(GpuPlan, CapturedStepsFitIntoTheDriversRoom) {
    // Without batch products as on GPUs before 9.0: 8 rows per launch.
    for (const auto& [sequences, batch_products] :
         {std::pair{256, true}, std::pair{4096, true}, std::pair{4096, false}}) {
        EngineOptions options;
        options.context = 4096;
        options.max_sequences = sequences;
        options.pool = 8192;
        options.max_batch = 512;
        options.batch_products = batch_products;
        std::uint64_t taken[2] = {};
        for (const bool graph : {false, true}) {
            options.graph = graph;
            const std::uint64_t before = cuda::device()->free_bytes;
            const auto engine = open("random:tinyllama-1.1b:bf16", options);
            taken[graph] = before - cuda::device()->free_bytes;
        }
        const std::uint64_t graphs = taken[1] > taken[0] ? taken[1] - taken[0] : 0;
        std::printf("captured steps of 22 layers, %d sequences of 4096%s: %.1f MiB\n", sequences,
                    batch_products ? "" : " without batch products",
                    static_cast<double>(graphs) / (1 << 20));
        EXPECT_LT(graphs, std::uint64_t{700} << 20);
    }
}

TEST_F(GpuPlan, ConstructingRefusesWhatCannotRun) {
    const std::uint64_t before = cuda::held_bytes();
    EngineOptions options;
    options.context = 2000;
    try {
        open("random:gpt2:bf16", options);
        FAIL() << "the table has 1,024 positions";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::input);
        EXPECT_NE(std::string(error.what()).find("1024"), std::string::npos) << error.what();
    }
    options.context = std::int64_t{1} << 27;
    try {
        open("random:stories-42m:bf16", options);
        FAIL() << "a terabyte of cache was taken";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::device);
        EXPECT_NE(std::string(error.what()).find("--ctx"), std::string::npos) << error.what();
    }
    EXPECT_EQ(cuda::held_bytes(), before);
}

// The loop stops at the end of the table, before a step that runs ahead would read past it.
TEST_F(GpuPlan, DecodingEndsWithTheTable) {
    EngineOptions options;
    options.max_sequences = 2;
    options.max_batch = 1024;
    const auto engine = open("random:gpt2:bf16", options);
    const SeqId seq = engine->cache().open();
    const std::vector<std::int32_t> ids = prompt(1020);
    const BatchItem item = prompt_item(seq, ids);
    decode::DecodeRow row;
    row.seq = seq;
    row.most = 100;
    decode::DecodeLoop loop(*engine, engine->submit({&item, 1}), {row});
    for (int i = 0; i < 5; ++i) loop.next();  // 4 are fed back, at 1020 to 1023
    EXPECT_THROW(loop.next(), Error);
    engine->synchronize();
}

}  // namespace
}  // namespace mr::model
