// Grains of a step (TrainEngineOptions::grains), on any device: gradients, losses and parameters
// equal those of a binary tree summed here.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/comm/comm.h"
#include "model/io/source.h"
#include "model/train/train_engine.h"

namespace mr::test {

using namespace model;

constexpr int kGrainSequences = 2, kGrainSeq = 16;

// Batch `number` of random tokens.
inline void put_grain(TrainEngine& engine, int number) {
    const auto host = engine.ops().host_slot(0);
    const auto vocab = static_cast<std::uint32_t>(engine.spec().vocab);
    std::uint32_t x = 7u + static_cast<std::uint32_t>(number);
    for (std::int32_t& id : host) {
        x = x * 1664525u + 1013904223u;
        id = static_cast<std::int32_t>((x >> 8) % vocab);
    }
    engine.put(0);
}

inline std::vector<float> params_of(TrainEngine& engine) {
    std::vector<float> out(static_cast<std::size_t>(engine.layout().count));
    engine.get_state(out.data(), nullptr, nullptr);
    return out;
}

// `passes` per grain, in `grains` grains.
inline void grains_are_a_tree(const std::string& family, bool cuda, int grains, int passes) {
    SCOPED_TRACE(family + ", " + std::to_string(grains) + " grains of " + std::to_string(passes));
    const Model model = load_model(std::string(MR_SOURCE_DIR) + "/tests/reference/" + family);
    const ModelSpec spec = trainable_spec(model.spec);
    TrainEngineOptions options{
        .cuda = cuda, .threads = 2, .shape = {.sequences = kGrainSequences, .seq = kGrainSeq}};
    const double scale = 1.0 / (kGrainSequences * kGrainSeq * grains * passes);
    // Each grain alone: its gradients and its loss.
    TrainEngine single(spec, options);
    single.load(model);
    const auto count = static_cast<std::size_t>(single.layout().count);
    std::vector<std::vector<float>> parts;
    std::vector<double> losses;
    ops::AdamW none;
    none.lr = 0;
    none.weight_decay = 0;
    for (int grain = 0; grain < grains; ++grain) {
        for (int i = 0; i < passes; ++i) {
            put_grain(single, grain * passes + i);
            single.accumulate(0, scale);
        }
        single.read_grads(parts.emplace_back(count));
        losses.push_back(single.update(none).loss / scale);
    }
    std::vector<float*> tree;
    for (std::vector<float>& part : parts) tree.push_back(part.data());
    comm::tree_sum(tree, static_cast<std::int64_t>(count));

    options.grains = grains;
    TrainEngine engine(spec, options);
    engine.load(model);
    const auto step = [&](bool look) {
        for (int i = 0; i < grains * passes; ++i) {
            put_grain(engine, i);
            engine.accumulate(0, scale, (i + 1) % passes == 0);
        }
        if (look) {
            std::vector<float> got(count);
            engine.read_grads(got);
            EXPECT_EQ(std::memcmp(got.data(), parts[0].data(), 4 * count), 0);
        }
        return engine.update({});
    };
    EXPECT_EQ(step(true).loss, comm::tree_sum(losses) * scale);
    // The two gradients of a tied table are summed separately, then added: nearly the same.
    options.apart = true;
    TrainEngine apart(spec, options);
    apart.load(model);
    for (int i = 0; i < grains * passes; ++i) {
        put_grain(apart, i);
        apart.accumulate(0, scale, (i + 1) % passes == 0);
    }
    apart.update({});
    const std::vector<float> one = params_of(engine), two = params_of(apart);
    if (!spec.tied_embeddings) {
        EXPECT_EQ(one, two);
    } else {
        std::size_t differ = 0;
        for (std::size_t i = 0; i < count; ++i) {
            // A first step of Adam has size lr in the direction of the gradient's sign.
            EXPECT_NEAR(one[i], two[i], 2.1e-3) << i;
            differ += std::abs(one[i] - two[i]) > 1e-4f ? 1 : 0;
        }
        EXPECT_LT(differ, count / 100);
    }
    // Nothing of the first step is left in any buffer: the second equals that of an engine with the
    // state from before it.
    TrainEngine again(spec, options);
    again.load(model);
    std::vector<float> p(count), m(count), v(count);
    apart.get_state(p.data(), m.data(), v.data());
    again.set_state(p.data(), m.data(), v.data());
    for (TrainEngine* const each : {&apart, &again}) {
        for (int i = 0; i < grains * passes; ++i) {
            put_grain(*each, 100 + i);
            each->accumulate(0, scale, (i + 1) % passes == 0);
        }
        ops::AdamW second;
        second.step = 2;
        each->update(second);
    }
    EXPECT_EQ(params_of(apart), params_of(again));
}

inline void every_grain_case(bool cuda) {
    for (const char* const family : {"llama2", "gpt2", "gpt-neox", "qwen3"}) {
        for (const int grains : {1, 2, 4, 8}) {
            for (const int passes : {1, 2}) grains_are_a_tree(family, cuda, grains, passes);
        }
    }
}

}  // namespace mr::test
