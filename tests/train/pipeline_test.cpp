// A model in stages compared with the same model on one rank: the same bits. Ranks are threads
// here.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "model/grain_cases.h"
#include "thread_messages.h"
#include "train/options.h"
#include "train/parallel/exchange.h"
#include "train/parallel/host_link.h"
#include "train/parallel/schedule.h"

namespace mr::train::pipeline_test {
namespace {

using comm::on_ranks;
using model::TrainEngine;

constexpr int kGrains = 8, kSteps = 2, kLayers = 4;

struct Layout {
    int replicas = 1, stages = 1;
    PipeSchedule schedule = PipeSchedule::one_f_one_b;
    int zero = 0;
    model::Recompute recompute = model::Recompute::none;
    bool bf16_masters = false;
};

struct Result {
    std::vector<double> numbers;  // losses, norms, losses of a validation
    std::vector<float> params, m, v;
    bool operator==(const Result&) const = default;
};

void put(TrainEngine& engine, int slot, int number) {
    const auto host = engine.ops().host_slot(slot);
    const auto vocab = static_cast<std::uint32_t>(engine.spec().vocab);
    std::uint32_t x = 7u + static_cast<std::uint32_t>(number);
    for (std::int32_t& id : host) {
        x = x * 1664525u + 1013904223u;
        id = static_cast<std::int32_t>((x >> 8) % vocab);
    }
    engine.put(slot);
}

// A stage's part of a step, and of a validation over three batches.
void run_stage(TrainEngine& engine, const Layout& layout, int replica, int stage, Result& out) {
    const int here = kGrains / layout.replicas;
    const int slots = engine.options().shape.slots;
    for (int step = 1; step <= kSteps; ++step) {
        for (const PipeOp& op : stage_ops(layout.schedule, stage, layout.stages, here)) {
            const bool more = op.pass + 1 < here;
            if (op.forward) {
                put(engine, op.pass % slots, step * kGrains + replica * here + op.pass);
                engine.forward(op.pass % slots, more);
            } else {
                engine.backward(1.0 / (kGrains * test::kGrainSequences * test::kGrainSeq), true,
                                more);
            }
        }
        ops::AdamW with;
        with.step = step;
        with.clip = 0.1f;
        with.seed = 5;
        const auto result = engine.update(with);
        EXPECT_FALSE(result.skipped);
        EXPECT_GT(result.grad_norm, 0.1);
        out.numbers.push_back(result.loss);
        out.numbers.push_back(result.grad_norm);
    }
    for (int i = 0; i < 3; ++i) {
        put(engine, i % slots, 1000 + i);
        const double sum = engine.evaluate(i % slots, i < 2);
        EXPECT_EQ(sum > 0, stage + 1 == layout.stages);
        out.numbers.push_back(sum);
    }
}

Result train(const model::ModelSpec& spec, const Layout& layout) {
    Result out;
    std::vector<double> last;  // of the last stage
    on_ranks(layout.replicas * layout.stages, [&](comm::Comm& comm) {
        const RankGrid grid{layout.replicas, layout.stages};
        const int replica = grid.replica(comm.rank()), stage = grid.stage(comm.rank());
        const auto replicas = comm.split(grid.same_stage(comm.rank()), 1 + stage);
        Exchange exchange(*replicas, 10000);
        std::unique_ptr<HostLink> link;
        model::TrainEngineOptions options{
            .threads = 1,
            .shape = {.sequences = test::kGrainSequences, .seq = test::kGrainSeq},
            .recompute = layout.recompute,
            .bf16_masters = layout.bf16_masters,
            .grains = kGrains / layout.replicas,
            .apart = true,
            .exchange = layout.replicas > 1 ? &exchange : nullptr,
            .zero = layout.zero};
        if (layout.stages > 1) {
            const std::vector<int> same = grid.same_replica(comm.rank());
            link = std::make_unique<HostLink>(comm.split(same, 10 + 2 * replica),
                                              comm.split(same, 11 + 2 * replica));
            options.pipeline = {.layers = balanced_layers(spec.layers, layout.stages, 1, 0.5),
                                .stage = stage,
                                .on_their_way = on_their_way(layout.schedule, stage, layout.stages,
                                                             kGrains / layout.replicas),
                                .link = link.get()};
        }
        TrainEngine engine(spec, options);
        engine.init(3);
        Result mine;
        run_stage(engine, layout, replica, stage, mine);
        if (stage + 1 == layout.stages && replica == 0) last = mine.numbers;
        EXPECT_EQ(engine.shares_state(),
                  layout.stages > 1 || (layout.zero > 0 && layout.replicas > 1));
        // A stage allocates what it planned.
        std::uint64_t planned = 0;
        for (const MemoryPlan::Item& item : engine.plan().items()) {
            if (item.name == "exchange") planned = item.bytes;
        }
        EXPECT_EQ(engine.ops().allocated() + planned, engine.plan().total());
        if (!comm.first()) return engine.serve();
        const auto count = static_cast<std::size_t>(engine.layout().count);
        mine.params.resize(count);
        mine.m.resize(count);
        mine.v.resize(count);
        engine.get_state(mine.params.data(), mine.m.data(), mine.v.data());
        engine.end_serving();
        out = std::move(mine);
    });
    // All stages know losses and norms of steps, only the last one those of a validation.
    for (std::size_t i = 0; i < 2 * kSteps; ++i) EXPECT_EQ(out.numbers[i], last[i]);
    out.numbers = last;
    return out;
}

model::ModelSpec spec_of(const std::string& family, const char* tied) {
    NewModel wanted;
    wanted.family = family;
    wanted.dim = 32;
    wanted.layers = kLayers;
    wanted.heads = 2;
    wanted.tied = tied;
    return new_spec(wanted, 70, test::kGrainSeq);
}

void expect_same(const model::ModelSpec& spec, const Layout& layout, const Result& one) {
    const Result got = train(spec, layout);
    SCOPED_TRACE(std::to_string(layout.replicas) + " x " + std::to_string(layout.stages) +
                 ", ZeRO " + std::to_string(layout.zero));
    EXPECT_EQ(got.numbers, one.numbers);
    EXPECT_TRUE(got == one);
}

TEST(Pipeline, BothEndsHaveATiedTable) {
    const model::ModelSpec spec = spec_of("gpt2", "yes");
    const Result one = train(spec, {});
    expect_same(spec, {.stages = 4}, one);
    expect_same(spec, {2, 2, PipeSchedule::gpipe, 1, model::Recompute::none}, one);
}

TEST(Pipeline, StagesTrainAsOneRankDoes) {
    using enum model::Recompute;
    constexpr auto k1f1b = PipeSchedule::one_f_one_b, kGpipe = PipeSchedule::gpipe;
    for (const auto& [family, tied] :
         {std::pair{"gpt2", "yes"}, {"llama", "no"}, {"qwen3", "yes"}, {"gpt-neox", "no"}}) {
        for (const bool bf16 : {false, true}) {
            if (bf16 && family != std::string("gpt2")) continue;
            SCOPED_TRACE(family);
            const model::ModelSpec spec = spec_of(family, tied);
            const Result one = train(spec, {.bf16_masters = bf16});
            const Layout layouts[] = {{1, 2, k1f1b, 0, none},  {1, 4, k1f1b, 0, light},
                                      {1, 3, kGpipe, 0, none}, {2, 2, k1f1b, 0, full},
                                      {2, 2, kGpipe, 1, none}, {4, 2, k1f1b, 1, none}};
            for (Layout layout : layouts) {
                if (!spec.tied_embeddings && layout.replicas == 1 && layout.stages < 4) continue;
                layout.bf16_masters = bf16;
                expect_same(spec, layout, one);
            }
        }
    }
}

// A stage plans and has the parameters, gradients and moments of its layers, and their kept
// activations for every pass in flight.
TEST(Pipeline, AStageHoldsItsPart) {
    const model::ModelSpec spec = spec_of("llama", "no");
    const auto plan_of = [&](const std::vector<int>& layers, int stage, int on_their_way) {
        const MemoryPlan plan = TrainEngine::plan(
            spec, {.threads = 1,
                   .shape = {.sequences = 2, .seq = test::kGrainSeq},
                   .pipeline = {.layers = layers, .stage = stage, .on_their_way = on_their_way}});
        std::vector<std::uint64_t> bytes;
        for (const MemoryPlan::Item& item : plan.items()) bytes.push_back(item.bytes);
        return bytes;
    };
    const auto whole = plan_of({}, 0, 1);
    std::uint64_t params = 0;
    for (int stage = 0; stage < 4; ++stage) params += plan_of({1, 1, 1, 1}, stage, 1)[0];
    EXPECT_NEAR(static_cast<double>(params), static_cast<double>(whole[0]), 4096);
    const auto one = plan_of({2, 2}, 0, 1), two = plan_of({2, 2}, 0, 2),
               four = plan_of({2, 2}, 0, 4);
    EXPECT_EQ(four[3] - two[3], 2 * (two[3] - one[3]));  // activations
    EXPECT_GT(four[3], 3 * one[3]);
    EXPECT_EQ(four[4], one[4]);  // there is one workspace
}

}  // namespace
}  // namespace mr::train::pipeline_test
