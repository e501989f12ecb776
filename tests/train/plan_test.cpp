// Plans compared with cases computed by hand, and with the trainer's own numbers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/error.h"
#include "model/io/random.h"
#include "model/train/train_engine.h"
#include "model/train/train_ops.h"
#include "train/layout.h"
#include "train/plan/measured.h"
#include "train/plan/search.h"

namespace mr::plan {
namespace {

ModelSpec shape(const char* name) {
    return model::random_shape(std::string("random:") + name).first;
}

ClusterSpec cluster(const char* device, int gpus, int node = 8) {
    ClusterSpec out;
    out.device = *find_device(device);
    out.gpus = gpus;
    out.node = node;
    out.link_node = out.device.link_node;
    out.link_net = out.device.link_net;
    return out;
}

Job job(const char* name, int seq, std::int64_t batch) {
    Job out;
    out.spec = shape(name);
    out.seq = seq;
    out.batch = batch;
    return out;
}

// Relative: both sides are the same sums in another order.
constexpr double kClose = 1e-9;
#define EXPECT_CLOSE(a, b) EXPECT_NEAR(a, b, kClose* std::abs(b))

TEST(Plan, CollectivesByHand) {
    const ClusterSpec c = cluster("h100", 32);
    // Eight GPUs of a node, 1 GB, all-reduce: a call of 8.4 us, 14 steps of 3.4 us, and 2 x 7/8 GB
    // at 0.8 x 450 GB/s.
    EXPECT_CLOSE(collective_seconds(c, {8, 1}, 1e9, 1, Rounds::two),
                 8.4e-6 + 14 * 3.4e-6 + 2 * 0.875 / 360);
    // Four nodes of eight, one round: three calls of 7 steps inside and a depth of 2 between nodes.
    // Of the 3/4 GB that leave a node each of 8 cards sends an eighth at 0.8 x 50 GB/s, slightly
    // faster than the links inside; at 25 GB/s it is slower.
    const double calls = 3 * (8.4e-6 + 7 * 3.4e-6 + 2 * 14e-6);
    EXPECT_CLOSE(collective_seconds(c, {8, 4}, 1e9, 3, Rounds::one), calls + 0.875 / 360);
    ClusterSpec slow = c;
    slow.link_net = 25e9;
    EXPECT_CLOSE(collective_seconds(slow, {8, 4}, 1e9, 3, Rounds::one), calls + 0.75 / 8 / 20);
    EXPECT_EQ(collective_seconds(c, {1, 1}, 1e9, 1, Rounds::two), 0);
    EXPECT_CLOSE(collective_sent({8, 4}, 1e9, Rounds::two), 2e9 * 31 / 32);
    EXPECT_CLOSE(send_seconds(c, 1e9, 4), 3.4e-6 + 1 / 360.0);
    EXPECT_CLOSE(send_seconds(c, 1e9, 8), 14e-6 + 1 / 40.0);
}

TEST(Plan, GroupsLieInNodes) {
    const ClusterSpec c = cluster("h100", 64);
    const auto is = [&](int ranks, int stride, int inside, int nodes) {
        const Group group = group_of(c, ranks, stride);
        EXPECT_EQ(group.inside, inside) << ranks << " by " << stride;
        EXPECT_EQ(group.nodes, nodes) << ranks << " by " << stride;
    };
    is(8, 1, 8, 1);
    is(64, 1, 8, 8);
    is(4, 1, 4, 1);
    is(16, 4, 2, 8);  // every fourth GPU: two per node
    is(8, 8, 1, 8);
}

TEST(Plan, CountsWhatTheTrainerCounts) {
    for (const char* name : {"gpt2", "llama-3-8b", "pythia-2.8b", "qwen3-4b", "tinyllama-1.1b"}) {
        SCOPED_TRACE(name);
        const ModelSpec spec = shape(name);
        const int seq = 512;
        const LayerWork layer = layer_work(spec, seq, Recompute::full), head = head_work(spec);
        const double products = spec.layers * (layer.forward.products + layer.backward.products) +
                                head.forward.products + head.backward.products;
        // MFU counts six products of scores; flash attention's backward has a seventh.
        const double scores = static_cast<double>(spec.layers) * spec.q_dim() * seq;
        EXPECT_EQ(products + 6 * scores,
                  static_cast<double>(model::TrainEngine::flops_per_token(spec, seq)));
        EXPECT_EQ(layer.forward.attention + layer.backward.attention, 7.0 * spec.q_dim() * seq);
        EXPECT_EQ(spec.layers * (layer.again.products + layer.again.attention),
                  static_cast<double>(
                      model::TrainEngine::remade_flops_per_token(spec, seq, Recompute::full)));
        const Parameters all = parameters_of(spec);
        EXPECT_EQ(spec.layers * all.layer + all.embedding + all.head + all.last_norm,
                  static_cast<double>(spec.parameters()));
    }
    // As published.
    EXPECT_NEAR(static_cast<double>(shape("llama-3-70b").parameters()), 70.55e9, 0.01e9);
    EXPECT_NEAR(static_cast<double>(shape("gpt3-175b").parameters()), 175.6e9, 0.5e9);
    EXPECT_NEAR(static_cast<double>(shape("qwen2.5-0.5b").parameters()), 494e6, 1e6);
    EXPECT_NEAR(static_cast<double>(shape("gpt2-xl").parameters()), 1558e6, 1e6);
}

TEST(Plan, OneGpuByHand) {
    // GPT-2, 32 x 1,024 tokens on an H200. A layer's matrices have 7,077,888 elements, the head
    // 38,597,376: two FLOPs each forward, four backward, at 69% of 989.4 TFLOP/s.
    const ClusterSpec c = cluster("h200", 1);
    Job j = job("gpt2", 1024, 32);
    const Cost cost = cost_of(c, j, {});
    const double matrices = 12 * 7077888.0 + 38597376;
    const double rate = 0.69 * 989.4e12;
    EXPECT_CLOSE(cost.forward.products, 2 * matrices * 32768 / rate);
    EXPECT_CLOSE(cost.backward.products, 4 * matrices * 32768 / rate);
    EXPECT_CLOSE(cost.forward.attention, 2.0 * 12 * 768 * 1024 * 32768 / (0.33 * 989.4e12));
    // Norms read 4 and write 2 bytes of 768 elements, twice per layer and once at the end; the
    // activation reads 2 and writes 2 bytes of 3,072; the embedding 6 of 768. 12 x 11 + 3 kernels
    // of 2 us.
    const double passes = 25 * 6 * 768 + 12 * 4 * 3072 + 6 * 768;
    EXPECT_CLOSE(cost.forward.passes, passes * 32768 / (0.8 * 4.8e12) + 135 * 2e-6);
    // 38 bytes for each of 124,439,808 parameters.
    EXPECT_CLOSE(cost.optimizer, 38 * 124439808.0 / (0.8 * 4.8e12));
    EXPECT_EQ(cost.bubble + cost.data.exposed + cost.tensor.exposed + cost.pipeline.exposed, 0);
    // Measured: 54.4 to 55.0 ms, 13.15 GiB planned, scratch included (docs/benchmarks.md).
    EXPECT_NEAR(cost.step(), 54.5e-3, 0.03 * 54.5e-3);
    EXPECT_NEAR(cost.most_memory(), 13.15 * 0x1p30, 0.02 * 13.15 * 0x1p30);
    EXPECT_CLOSE(flops_share(c, j, 0.1),
                 6 * (matrices + 12.0 * 768 * 1024) * 32768 / (0.1 * 989.4e12));
}

TEST(Plan, MeasuredStepsOfALargerModel) {
    // docs/benchmarks.md: 625.4, 968.0 and 1,359.3 ms.
    const ClusterSpec c = cluster("h200", 1);
    const auto step = [&](std::int64_t batch, Recompute recompute) {
        Layout layout;
        layout.recompute = recompute;
        return cost_of(c, job("tinyllama-1.1b", 2048, batch), layout).step();
    };
    EXPECT_NEAR(step(24, Recompute::light), 0.6254, 0.03 * 0.6254);
    EXPECT_NEAR(step(38, Recompute::none), 0.9680, 0.03 * 0.9680);
    EXPECT_NEAR(step(52, Recompute::light), 1.3593, 0.03 * 1.3593);
}

TEST(Plan, ActivationsAreTheTrainers) {
    for (const Recompute recompute : {Recompute::none, Recompute::light, Recompute::full}) {
        SCOPED_TRACE(model::recompute_name(recompute));
        const Job j = job("tinyllama-1.1b", 2048, 4);
        Layout layout;
        layout.recompute = recompute;
        const Cost cost = cost_of(cluster("h200", 1), j, layout);
        model::TrainShape of;
        of.sequences = 4;
        of.seq = 2048;
        of.head_rows = model::default_head_rows(j.spec, of.tokens(), DType::bf16);
        const MemoryPlan plan = model::TrainPass::plan(j.spec, of, recompute, DType::bf16);
        EXPECT_CLOSE(cost.stages[0].activations, static_cast<double>(plan.items()[0].bytes));
        EXPECT_CLOSE(cost.stages[0].workspace, static_cast<double>(plan.items()[1].bytes));
    }
}

TEST(Plan, BytesOfAParameter) {
    // 18 bytes on one GPU; 6 + 12/N with a sharded optimizer, 2 + 16/N, 18/N.
    const double p = static_cast<double>(shape("gpt2").parameters());
    Job j = job("gpt2", 1024, 64);
    j.exact = false;
    const auto bytes = [&](int zero) {
        Layout layout;
        layout.data = 8;
        layout.zero = zero;
        const StageMemory m = cost_of(cluster("h100", 8), j, layout).stages[0];
        return (m.weights + m.masters + m.gradients + m.optimizer) / p;
    };
    EXPECT_CLOSE(bytes(0), 18.0);
    EXPECT_CLOSE(bytes(1), 6 + 12 / 8.0);
    EXPECT_CLOSE(bytes(2), 2 + 16 / 8.0);
    EXPECT_CLOSE(bytes(3), 18 / 8.0);
    j.bf16_masters = true;
    EXPECT_CLOSE(bytes(0), 14.0);
    // Exact sums over 8 micro-batches hold log2(8) + 1 gradients.
    j.exact = true;
    Layout layout;
    layout.data = 8;
    layout.micro_batches = 8;
    EXPECT_CLOSE(cost_of(cluster("h100", 8), j, layout).stages[0].gradients, 4 * 4 * p);
}

TEST(Plan, PipelineByHand) {
    const Job j = job("llama-3-8b", 2048, 16);
    Layout layout;
    layout.pipeline = 4;
    layout.micro_batches = 8;
    layout.recompute = Recompute::full;
    const ClusterSpec c = cluster("h100", 4);
    const Cost cost = cost_of(c, j, layout);
    // Three of eight micro-batches' time, (p - 1) / m of the ideal.
    const double busy = cost.forward.sum() + cost.backward.sum() + cost.again.sum();
    EXPECT_CLOSE(cost.bubble, 3 * busy / 8);
    // 2 x 2,048 tokens of 4,096 in f32, in both directions, for 8 micro-batches.
    const double message = 4.0 * 2 * 2048 * 4096;
    EXPECT_CLOSE(cost.pipeline.sent, 16 * message);
    EXPECT_CLOSE(cost.pipeline.exposed, 6 * send_seconds(c, message, 1));
    ASSERT_EQ(cost.stages.size(), 4u);
    const auto layers = stage_layers(c, j, layout);
    EXPECT_EQ(std::accumulate(layers.begin(), layers.end(), 0), 32);
    EXPECT_LT(layers.back(), layers.front());  // it has the head
    // Stage i has 4 - i micro-batches in flight: 4 inputs of a layer for each of the last stage.
    const double input = 4.0 * 2 * 2048 * 4096;  // bytes of a layer's input
    const auto kept = [&](std::size_t i) { return cost.stages[i].activations; };
    EXPECT_CLOSE(kept(0) - kept(1), input * (4 * layers[0] - 3 * layers[1]));
    // Every parameter is in exactly one stage: the head is not tied.
    double sum = 0;
    for (const StageMemory& stage : cost.stages) sum += stage.parameters;
    EXPECT_EQ(sum, static_cast<double>(j.spec.parameters()));
}

TEST(Plan, BothEndsHoldATiedTable) {
    const Job j = job("gpt2", 1024, 8);
    Layout layout;
    layout.pipeline = 2;
    layout.micro_batches = 4;
    const ClusterSpec c = cluster("h100", 2);
    const Cost cost = cost_of(c, j, layout);
    const double table = 50257.0 * 768;
    EXPECT_EQ(cost.stages[0].parameters + cost.stages[1].parameters,
              static_cast<double>(j.spec.parameters()) + table);
    // 2 x 1,024 tokens of 768 in both directions, four times, and the table's gradient once.
    const double message = 4.0 * 2 * 1024 * 768;
    EXPECT_CLOSE(cost.pipeline.sent, 8 * message + 4 * table);
    EXPECT_CLOSE(cost.pipeline.exposed,
                 2 * send_seconds(c, message, 1) + send_seconds(c, 4 * table, 1));
}

TEST(Plan, GradientsHideBehindTheBackward) {
    Job j = job("gpt2", 1024, 256);
    j.exact = false;
    Layout layout;
    layout.data = 8;
    ClusterSpec c = cluster("h100", 8);
    const double p = static_cast<double>(j.spec.parameters());
    const double slowed = 16.0 / 132;
    // Fast links: only the table's part is exposed, 39,383,808 parameters with the positions.
    Cost cost = cost_of(c, j, layout);
    double all = collective_seconds(c, {8, 1}, 2 * p, 13, Rounds::two);
    const double tail = all * 39383808 / p;
    EXPECT_CLOSE(cost.data.seconds, all);
    EXPECT_CLOSE(cost.data.sent, 2 * 2 * p * 7 / 8);
    EXPECT_CLOSE(cost.data.exposed, tail + slowed * (all - tail));
    // Slow links: everything that the backward does not hide is exposed.
    c.link_node = 1e9;
    cost = cost_of(c, j, layout);
    all = collective_seconds(c, {8, 1}, 2 * p, 13, Rounds::two);
    const double back = cost.backward.sum();
    ASSERT_GT(all, 2 * back);
    EXPECT_CLOSE(cost.data.exposed, all - back + slowed * back);
    EXPECT_EQ(cost.binds().substr(0, 13), "communication");
    // Gathering sharded parameters is exposed, too.
    layout.zero = 1;
    cost = cost_of(c, j, layout);
    const double half = collective_seconds(c, {8, 1}, 2 * p, 13, Rounds::one);
    EXPECT_CLOSE(cost.data.seconds, 2 * half);
    EXPECT_CLOSE(cost.data.exposed, half - back + slowed * back + half);
    // Everything sharded: parameters are gathered forward and backward, gradients reduced.
    layout.zero = 3;
    layout.micro_batches = 2;
    EXPECT_CLOSE(cost_of(c, j, layout).data.seconds, 6 * half);
}

TEST(Plan, TheBestOfAllLayouts) {
    const ClusterSpec c = cluster("h100", 16);
    const Job j = job("llama-3-8b", 8192, 64);
    const Found found = find_layouts(c, j, {}, 1000);
    ASSERT_GT(found.fitting.size(), 10u);
    bool pipelines = false, shards = false;
    for (std::size_t i = 0; i < found.fitting.size(); ++i) {
        const Candidate& one = found.fitting[i];
        if (i > 0) {
            EXPECT_GE(one.cost.step(), found.fitting[i - 1].cost.step());
        }
        EXPECT_EQ(one.layout.gpus(), 16);
        EXPECT_TRUE(fits(one.cost, c));
        EXPECT_FALSE(one.layout.only_to_compare());
        pipelines |= one.layout.pipeline > 1;
        shards |= one.layout.zero == 3;
    }
    EXPECT_TRUE(pipelines && shards);
    Wanted wanted;
    wanted.pipeline = 4;
    wanted.zero = 1;
    const Found some = find_layouts(c, j, wanted, 1000);
    ASSERT_FALSE(some.fitting.empty());
    for (const Candidate& one : some.fitting) {
        EXPECT_EQ(one.layout.pipeline, 4);
        EXPECT_EQ(one.layout.zero, 1);
    }
    EXPECT_GE(some.fitting[0].cost.step(), found.fitting[0].cost.step());
    EXPECT_EQ(find_layouts(c, j, {}, 3).fitting.size(), 3u);
}

TEST(Plan, WhatDoesNotFitSaysHowMuchItNeeds) {
    const Found found = find_layouts(cluster("rtx-4090", 1), job("llama-3-8b", 8192, 1), {}, 1);
    EXPECT_TRUE(found.fitting.empty());
    ASSERT_TRUE(found.nearest.has_value());
    // 18 bytes for each of 8.03 billion parameters, and the kept activations.
    EXPECT_GT(found.nearest->cost.most_memory(), 18 * 8.03e9);
    EXPECT_EQ(found.nearest->layout.recompute, Recompute::full);
}

TEST(Plan, LayoutsThatCannotBe) {
    const ClusterSpec c = cluster("h100", 8);
    Job j = job("gpt2", 1024, 24);
    const auto fault = [&](int data, int pipeline, int micro, int tensor = 1) {
        Layout layout;
        layout.data = data;
        layout.pipeline = pipeline;
        layout.micro_batches = micro;
        layout.tensor = tensor;
        return layout_fault(c, j, layout);
    };
    EXPECT_EQ(fault(8, 1, 1), "");
    EXPECT_NE(fault(4, 1, 1).find("are 4 GPUs, and --gpus is 8"), std::string::npos);
    EXPECT_NE(fault(8, 1, 2).find("not a multiple of 8 replicas x 2"), std::string::npos);
    // train needs powers of two also for sums in the library's order; other programs do not.
    for (const bool exact : {true, false}) {
        j.exact = exact;
        EXPECT_NE(fault(8, 1, 3).find("--micro-batches 3: must be a power of two"),
                  std::string::npos);
    }
    EXPECT_EQ(fault(1, 1, 3, 8), "");
    j.exact = true;
    EXPECT_NE(fault(1, 1, 3, 8).find("no power of two"), std::string::npos);
    j.spec.layers = 4;
    EXPECT_NE(fault(1, 8, 1).find("more than the 4 layers"), std::string::npos);
    ClusterSpec odd = cluster("h100", 7);
    j.exact = true;
    j.batch = 7;
    EXPECT_TRUE(find_layouts(odd, j, {}, 1).fitting.empty());
    EXPECT_FALSE(find_layouts(odd, j, {}, 1).fault.empty());
}

TEST(Plan, TheBandHoldsTheStep) {
    const ClusterSpec c = cluster("h100", 16);
    const Job j = job("gpt2", 1024, 64);
    Layout layout;
    layout.data = 16;
    const double step = cost_of(c, j, layout).step();
    const Band wide = band_of(c, j, layout, 0.2), narrow = band_of(c, j, layout, 0.1);
    EXPECT_LT(wide.low, narrow.low);
    EXPECT_LT(narrow.low, step);
    EXPECT_LT(step, narrow.high);
    EXPECT_LT(narrow.high, wide.high);
    // For one GPU only its own pace is uncertain.
    const Band alone = band_of(cluster("h100", 1), job("gpt2", 1024, 4), {}, 0.2);
    EXPECT_CLOSE(alone.high / alone.low, 1.2 / 0.8);
}

constexpr const char* kBench =
    R"({"bench": "train", "model": "random:gpt2", "device": "NVIDIA H200", "type": "bf16",
        "batch": 32, "seq": 1024, "accumulate": 2, "objective": "ar", "recompute": "light",
        "masters": "f32", "ms_per_step": 250.0, "seconds": [0.25]})";

TEST(Plan, CalibratesByAMeasuredStep) {
    const Measured m = read_measured(kBench, "bench.json");
    EXPECT_EQ(m.device, "NVIDIA H200");
    const DeviceSpec device = *device_of_driver_name(m.device);
    EXPECT_STREQ(device.name, "h200");
    const double pace = pace_of(m, shape("gpt2"), device);
    // A plan with this calibration predicts the measured time.
    ClusterSpec c = cluster("h200", 1);
    c.pace = pace;
    Job j = job("gpt2", 1024, 64);
    j.exact = false;
    Layout layout;
    layout.micro_batches = 2;
    layout.recompute = Recompute::light;
    EXPECT_CLOSE(cost_of(c, j, layout).step(), 0.25);
    EXPECT_FALSE(device_of_driver_name("Neoverse-N1").has_value());
}

TEST(Plan, RefusesOtherFiles) {
    const auto refuses = [](const std::string& from, const std::string& to, const char* says) {
        std::string text = kBench;
        text.replace(text.find(from), from.size(), to);
        try {
            read_measured(text, "bench.json");
            ADD_FAILURE() << "no error for " << to;
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::input);
            EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
        }
    };
    refuses("\"train\"", "\"decode\"", "bench");
    refuses("\"bf16\"", "\"f32\"", "type");
    refuses("\"ar\"", "\"diffusion\"", "objective");
    refuses("\"light\"", "\"some\"", "recompute");
    refuses("250.0", "0", "ms_per_step");
    refuses("\"batch\": 32", "\"batch\": -1", "batch");
    refuses("{", "[", "bench.json");
}

// Every layout that is proposed, in the options of train that a user would type for it, passes
// train's own checks.
TEST(Plan, ProposesOnlyWhatTrainAccepts) {
    int proposed = 0, pipelines = 0;
    for (const char* name : {"gpt2", "tinyllama-1.1b", "llama-3-8b"}) {
        for (const int gpus : {1, 2, 6, 8, 64, 1024}) {
            for (const std::int64_t batch : {1, 3, 8, 96, 1024}) {
                for (const bool exact : {true, false}) {
                    Job wanted = job(name, 1024, batch);
                    wanted.exact = exact;
                    const ClusterSpec machines = cluster("h200", gpus);
                    for (const Candidate& one :
                         find_layouts(machines, wanted, Wanted{}, 100000).fitting) {
                        const Layout& l = one.layout;
                        SCOPED_TRACE(fmt::format(
                            "{} on {}: batch {}, data {}, pipeline {}, ZeRO "
                            "{}, {} micro-batches",
                            name, gpus, batch, l.data, l.pipeline, l.zero, l.micro_batches));
                        train::TrainOptions typed;
                        typed.batch = static_cast<int>(batch / l.data / l.micro_batches);
                        typed.accumulate = l.data * l.micro_batches;
                        typed.seq = wanted.seq;
                        typed.pipeline = l.pipeline;
                        typed.zero = l.zero;
                        typed.micro_batches = l.micro_batches;
                        typed.recompute = model::recompute_name(l.recompute);
                        typed.reduce = exact ? "exact" : "fast";
                        typed.cuda = true;
                        ASSERT_EQ(std::int64_t{typed.batch} * typed.accumulate, batch);
                        ASSERT_NO_THROW({
                            const train::RankGrid grid = train::settle_layout(typed, gpus, false);
                            train::require_stages(typed, grid, wanted.spec, false);
                            ASSERT_EQ(grid.replicas, l.data);
                            ASSERT_EQ(grid.stages, l.pipeline);
                            ASSERT_EQ(typed.grains / grid.replicas, l.micro_batches);
                        });
                        ++proposed;
                        pipelines += l.pipeline > 1 ? 1 : 0;
                    }
                }
            }
        }
    }
    EXPECT_GT(proposed, 2000);
    EXPECT_GT(pipelines, 500);
}

// What train refuses is refused in its words, and what train accepts is not.
TEST(Plan, RefusesWhatTrainRefuses) {
    const auto fault = [](int gpus, std::int64_t batch, const Layout& layout) {
        return layout_fault(cluster("h100", gpus), job("gpt2", 1024, batch), layout);
    };
    const auto says = [](const std::string& said, const char* part) {
        EXPECT_NE(said.find(part), std::string::npos) << said;
    };
    says(fault(8, 8, {.pipeline = 8}), "a pipeline needs at least two grains");
    EXPECT_EQ(fault(8, 8, {.pipeline = 8, .micro_batches = 2}), "");
    EXPECT_EQ(fault(8, 8, {.data = 2, .pipeline = 4}), "");  // two grains, one for each replica
    says(fault(8, 8, {.data = 4, .pipeline = 2, .zero = 2}), "--zero 2");
    EXPECT_EQ(fault(8, 8, {.data = 4, .pipeline = 2, .zero = 1}), "");
    says(fault(6, 6, {.data = 3, .pipeline = 2}), "power of two");
    says(fault(2, 6, {.data = 2, .micro_batches = 3}), "--micro-batches 3");
    says(fault(1, 1 << 20, {}), "beyond 2^28 tokens");
}

}  // namespace
}  // namespace mr::plan
