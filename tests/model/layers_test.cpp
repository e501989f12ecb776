// Layers that differ: their spec, which paths support them, and the effect of windows in some
// layers.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "families.h"
#include "model/cpu/cpu_engine.h"
#include "model/cuda/device_engine.h"
#include "model/engine.h"
#include "model/io/convert_formats.h"
#include "model/model_files.h"
#include "model/train/train_engine.h"

namespace mr::model {
namespace {

// Four layers; 1 and 3 have a window of 12.
Model windowed() { return load_model(reference("qwen2-window")); }

std::vector<std::int32_t> recorded_ids() {
    return test::read_expected(reference("qwen2-window")).ids;
}

// Logits of all tokens, [ids, vocab].
std::vector<float> logits_of(const Model& model, const std::vector<std::int32_t>& ids,
                             std::size_t chunk) {
    EngineOptions options;
    options.threads = 2;
    options.max_batch = options.max_logits = static_cast<int>(chunk);
    const auto engine = make_engine(std::make_shared<const Model>(model), options);
    const SeqId seq = engine->cache().open();
    std::vector<float> out;
    for (std::size_t i = 0; i < ids.size(); i += chunk) {
        const BatchItem item{
            seq, {ids.data() + i, std::min(chunk, ids.size() - i)}, BatchItem::Logits::all};
        const Tensor logits = engine->submit({&item, 1});
        out.insert(out.end(), logits.f32(), logits.f32() + logits.shape.count());
    }
    return out;
}

float largest_difference(const std::vector<float>& a, const std::vector<float>& b, std::size_t from,
                         std::size_t to) {
    float most = 0;
    for (std::size_t i = from; i < to; ++i) most = std::max(most, std::fabs(a[i] - b[i]));
    return most;
}

TEST(Layers, ASpecSaysWhatEachIs) {
    ModelSpec spec = windowed().spec;
    ASSERT_EQ(spec.layers, 4);
    EXPECT_EQ(spec.mask.window, 0);
    for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(spec.layer(i).mask.window, i % 2 ? 12 : 0) << i;
        EXPECT_EQ(spec.layer(i).rope, spec.rope);
        EXPECT_EQ(spec.layer(i).norm_eps, 1e-6f);
        EXPECT_EQ(spec.layer(i).scale, ops::default_scale(8));
    }
    EXPECT_EQ(spec.layer_specs().size(), 4u);
    EXPECT_EQ(layer_ropes(spec).ropes.size(), 1u);
    EXPECT_EQ(layer_ropes(spec).of_layer, std::vector<int>(4, 0));
    spec.own[2].rope.theta = 500000;
    spec.own[3].rope.rotary = 0;
    spec.own[1].scale = 0.5f;
    EXPECT_EQ(layer_ropes(spec).ropes.size(), 2u);
    EXPECT_EQ(layer_ropes(spec).of_layer, (std::vector<int>{0, 0, 1, -1}));
    EXPECT_EQ(spec.layer(1).scale, 0.5f);
    // If a model's layers are alike, the common values are enough.
    spec.own.clear();
    spec.mask.window = 7;
    EXPECT_EQ(spec.layer(2).mask.window, 7);
    EXPECT_EQ(spec.layer(2), spec.common());
}

TEST(Layers, WeightsAreThoseOfEachLayer) {
    ModelSpec spec = windowed().spec;
    const std::uint64_t before = spec.parameters();
    spec.own[1].qk_norm = true;
    spec.own[2].gated = false;
    EXPECT_EQ(spec.parameters(), before + 2 * 8 - 32 * 32);
    int norms = 0, gates = 0;
    for (const RoleAt at : roles_of(spec)) {
        norms += at.role == Role::q_norm && at.layer == 1;
        gates += at.role == Role::gate;
    }
    EXPECT_EQ(norms, 1);
    EXPECT_EQ(gates, 3);
}

TEST(Layers, ValuesOfOneAreChecked) {
    const auto said = [](const std::function<void(ModelSpec&)>& spoil) {
        ModelSpec spec = windowed().spec;
        spoil(spec);
        return error_of([&] { spec.validate("bad.gguf"); });
    };
    EXPECT_EQ(said([](ModelSpec&) {}), "no error");
    const auto expect_in = [&](const std::string& text, const char* part) {
        EXPECT_NE(text.find(part), std::string::npos) << text;
    };
    expect_in(said([](ModelSpec& s) { s.own[2].mask.window = -1; }), "layer 2: sliding window");
    expect_in(said([](ModelSpec& s) { s.own[1].rope.rotary = 3; }), "layer 1: rotary dimensions");
    expect_in(said([](ModelSpec& s) { s.own[3].norm_eps = 2; }), "layer 3: norm epsilon");
    expect_in(said([](ModelSpec& s) { s.own[0].scale = -1; }), "layer 0: scale of scores");
    expect_in(said([](ModelSpec& s) { s.own[0].softcap = -1; }), "layer 0: softcap of scores");
    expect_in(said([](ModelSpec& s) { s.own[0].mask.block = 0; }), "layer 0: attention block");
    expect_in(said([](ModelSpec& s) { s.own.pop_back(); }), "layers of their own");
    expect_in(said([](ModelSpec& s) { s.softcap = INFINITY; }), "softcap of scores");
}

// Every path says in words what it lacks, and for which layer.
TEST(Layers, ASoftcapIsRefusedOnEveryPath) {
    Model model = windowed();
    model.spec.own[2].softcap = 50;
    EXPECT_NO_THROW(model.spec.validate("capped.gguf"));
    const LayerSpec capped = model.spec.layer(2), common = model.spec.common();
    for (const TakesLayer takes :
         {cpu_takes, device_takes, step_takes_layer, train_takes, formats_take}) {
        EXPECT_EQ(takes(capped, common), "a softcap of scores");
        EXPECT_EQ(takes(common, common), "");
        EXPECT_EQ(lack_of(model.spec, takes).has_value(), true);
    }
    const auto expect_said = [](const std::string& text, const char* path) {
        EXPECT_NE(text.find("layer 2"), std::string::npos) << text;
        EXPECT_NE(text.find(std::string(path) + " lacks a softcap of scores"), std::string::npos)
            << text;
    };
    const auto shared = std::make_shared<const Model>(model);
    expect_said(error_of([&] { make_engine(shared, {}); }), "the CPU engine");
    expect_said(error_of([&] { require_engine(model, {}); }), "the CPU engine");
    EngineOptions on_gpu;
    on_gpu.cuda = true;
    expect_said(error_of([&] { require_engine(model, on_gpu); }), "the GPU engine");
    expect_said(error_of([&] {
                    TrainEngine::plan(model.spec,
                                      {.threads = 1, .shape = {.sequences = 1, .seq = 8}});
                }),
                "training");
    expect_said(error_of([&] { huggingface_config(model.spec, nullptr, DType::f32, "m"); }),
                "the output format");
    expect_said(error_of([&] { require_gguf_can_hold(model.spec, "m"); }), "the output format");
}

TEST(Layers, WhatPathsShareMustBeAlike) {
    const ModelSpec spec = windowed().spec;
    const LayerSpec common = spec.common();
    LayerSpec other = common;
    other.mask.window = 12;
    EXPECT_EQ(cpu_takes(other, common), "");
    EXPECT_EQ(device_takes(other, common), "");
    EXPECT_EQ(train_takes(other, common), "");
    EXPECT_EQ(formats_take(other, common), "");
    EXPECT_EQ(step_takes_layer(other, common), "masks that differ by layer");
    other = common;
    other.rope.theta *= 2;
    EXPECT_EQ(cpu_takes(other, common), "");
    for (const TakesLayer takes : {device_takes, step_takes_layer, train_takes, formats_take}) {
        EXPECT_EQ(takes(other, common), "rotary positions that differ by layer");
    }
    other = common;
    other.scale *= 2;
    EXPECT_EQ(device_takes(other, common), "");
    EXPECT_EQ(step_takes_layer(other, common), "scales of scores that differ by layer");
    other = common;
    other.gated = false;
    EXPECT_NE(device_takes(other, common), "");
    EXPECT_NE(train_takes(other, common), "");
    // A window in all layers is one mask.
    LayerSpec slid = common;
    slid.mask.window = 12;
    EXPECT_EQ(step_takes_layer(slid, slid), "");
}

TEST(Layers, WindowsInSomeAreNeitherThoseOfAllNorOfNone) {
    const Model mixed = windowed();
    const std::vector<std::int32_t> ids = recorded_ids();
    const auto vocab = static_cast<std::size_t>(mixed.spec.vocab);
    ASSERT_EQ(ids.size(), 40u);
    const std::vector<float> some = logits_of(mixed, ids, 64);
    for (const int window : {0, 12}) {
        Model alike = mixed;
        alike.spec.own.clear();
        alike.spec.mask.window = window;
        const std::vector<float> other = logits_of(alike, ids, 64);
        // The first 12 tokens see everything; the 13th is the first that does not.
        EXPECT_EQ(largest_difference(some, other, 0, 12 * vocab), 0);
        EXPECT_GT(largest_difference(some, other, 12 * vocab, some.size()), 0.01f) << window;
    }
    EXPECT_EQ(logits_of(mixed, ids, 1), some);
    EXPECT_EQ(logits_of(mixed, ids, 7), some);
}

TEST(Layers, RotationsAndScalesAreThoseOfTheLayer) {
    const Model mixed = windowed();
    const std::vector<std::int32_t> ids = recorded_ids();
    const auto changed = [&](const std::function<void(ModelSpec&)>& change) {
        Model model = mixed;
        change(model.spec);
        return logits_of(model, ids, 64);
    };
    const std::vector<float> plain = logits_of(mixed, ids, 64);
    // Stating a default explicitly changes nothing.
    EXPECT_EQ(changed([](ModelSpec& s) { s.own[1].scale = ops::default_scale(s.head_dim); }),
              plain);
    // All layers by their own specs, or by the common one.
    const auto alone = changed([](ModelSpec& s) {
        for (LayerSpec& layer : s.own) layer.rope.theta = 500, layer.scale = 0.25f;
    });
    const auto together = changed([](ModelSpec& s) {
        s.rope.theta = 500;
        s.scale = 0.25f;
        const std::vector<LayerSpec> own = s.own;
        s.own.assign(own.size(), s);
        for (std::size_t i = 0; i < own.size(); ++i) s.own[i].mask = own[i].mask;
    });
    EXPECT_EQ(alone, together);
    // Two tables in one pass: different from either for all layers.
    const auto two = changed([](ModelSpec& s) {
        for (LayerSpec& layer : s.own) layer.scale = 0.25f;
        s.own[2].rope.theta = 500;
    });
    const auto one = changed([](ModelSpec& s) {
        for (LayerSpec& layer : s.own) layer.scale = 0.25f;
    });
    EXPECT_GT(largest_difference(two, one, 0, one.size()), 1e-3f);
    EXPECT_GT(largest_difference(two, alone, 0, one.size()), 1e-3f);
}

TEST(Layers, WindowsThatAFormatCannotSayAreRefused) {
    ModelSpec spec = windowed().spec;
    spec.own[3].mask.window = 16;
    for (const std::string& said :
         {error_of([&] { huggingface_config(spec, nullptr, DType::f32, "m"); }),
          error_of([&] { require_gguf_can_hold(spec, "m"); })}) {
        EXPECT_NE(said.find("12 and 16"), std::string::npos) << said;
    }
    spec = windowed().spec;
    spec.family = "mistral";
    spec.qkv_bias = false;
    const std::string said = error_of([&] { huggingface_config(spec, nullptr, DType::f32, "m"); });
    EXPECT_NE(said.find("sliding window"), std::string::npos) << said;
    EXPECT_NE(said.find("GGUF"), std::string::npos) << said;
    EXPECT_NO_THROW(require_gguf_can_hold(spec, "m"));
}

}  // namespace
}  // namespace mr::model
