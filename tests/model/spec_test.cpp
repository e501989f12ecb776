#include "model/spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/mapped_file.h"

namespace mr::model {
namespace {

using nlohmann::json;

RopeSpec rope_of(const json& entry) {
    const json& given = entry["rope"];
    RopeSpec rope;
    rope.rotary = entry["head_dim"];
    rope.theta = entry["theta"];
    const std::string kind = given["rope_type"];
    rope.scaling = kind == "linear"   ? RopeSpec::Scaling::linear
                   : kind == "llama3" ? RopeSpec::Scaling::llama3
                   : kind == "yarn"   ? RopeSpec::Scaling::yarn
                                      : RopeSpec::Scaling::none;
    rope.factor = given.value("factor", 1.0);
    rope.original_context = given.value("original_max_position_embeddings", 0.0);
    rope.low_freq_factor = given.value("low_freq_factor", 1.0);
    rope.high_freq_factor = given.value("high_freq_factor", 4.0);
    rope.beta_fast = given.value("beta_fast", 32.0);
    rope.beta_slow = given.value("beta_slow", 1.0);
    rope.attention_factor = given.value("attention_factor", 0.0);
    return rope;
}

TEST(Rope, FrequenciesAreThoseOfTransformers) {
    const json cases =
        json::parse(read_text_file(MR_SOURCE_DIR "/tests/model/rope_reference.json"));
    ASSERT_EQ(cases.size(), 8u);
    for (const json& entry : cases) {
        SCOPED_TRACE(entry["name"].get<std::string>());
        const RopeFrequencies ours = rope_frequencies(rope_of(entry));
        ASSERT_EQ(ours.inv_freq.size(), entry["inv_freq"].size());
        // The reference is f32: theta^x loses ln(theta) ulps from the rounding of x, and the blend
        // of two frequencies a few more; where it cancels, in units of the larger of them.
        const double eps = std::numeric_limits<float>::epsilon();
        const double ulps = std::log(entry["theta"].get<double>()) + 8;
        for (std::size_t i = 0; i < ours.inv_freq.size(); ++i) {
            const double expected = entry["inv_freq"][i];
            EXPECT_NEAR(ours.inv_freq[i], expected, ulps * eps * expected) << "pair " << i;
        }
        EXPECT_DOUBLE_EQ(ours.magnitude, entry["magnitude"].get<double>());
    }
}

TEST(Rope, NoRotaryPositionsGiveNothing) {
    const RopeFrequencies none = rope_frequencies({});
    EXPECT_TRUE(none.inv_freq.empty());
    EXPECT_EQ(none.magnitude, 1.0);
}

TEST(Rope, FactorsOfAFileDivideTheFrequencies) {
    RopeSpec rope;
    rope.rotary = 4;
    rope.theta = 100.0;
    rope.freq_factors = {2.0f, 5.0f};
    const RopeFrequencies out = rope_frequencies(rope);
    ASSERT_EQ(out.inv_freq.size(), 2u);
    EXPECT_DOUBLE_EQ(out.inv_freq[0], 0.5);
    EXPECT_DOUBLE_EQ(out.inv_freq[1], 0.1 / 5);
}

ModelSpec good_spec() {
    ModelSpec spec;
    spec.family = "llama";
    spec.vocab = 100;
    spec.dim = 64;
    spec.layers = 2;
    spec.heads = 4;
    spec.kv_heads = 2;
    spec.head_dim = 16;
    spec.hidden = 96;
    spec.context = 128;
    spec.rope.rotary = 16;
    return spec;
}

TEST(Spec, CountsParameters) {
    ModelSpec spec = good_spec();
    // embedding and head; per layer q, o, k, v, gate, up, down and two norms; the last norm
    const std::uint64_t layer = 64 * 64 * 2 + 32 * 64 * 2 + 96 * 64 * 3 + 2 * 64;
    EXPECT_EQ(spec.parameters(), 100 * 64 * 2 + 2 * layer + 64u);
    spec.tied_embeddings = true;
    EXPECT_EQ(spec.parameters(), 100 * 64 + 2 * layer + 64u);

    ModelSpec gpt2;  // 124,439,808: the published count of the smallest GPT-2
    gpt2.vocab = 50257;
    gpt2.dim = 768;
    gpt2.layers = gpt2.heads = gpt2.kv_heads = 12;
    gpt2.head_dim = 64;
    gpt2.hidden = 3072;
    gpt2.context = 1024;
    gpt2.norm = NormKind::layer;
    gpt2.gated = false;
    gpt2.qkv_bias = gpt2.out_bias = gpt2.mlp_bias = gpt2.learned_positions = true;
    gpt2.tied_embeddings = true;
    EXPECT_EQ(gpt2.parameters(), 124439808u);
}

TEST(Spec, AcceptsAGoodOne) { EXPECT_NO_THROW(good_spec().validate("good.gguf")); }

struct Case {
    const char* field;
    std::function<void(ModelSpec&)> spoil;
};
void expect_refused(ModelSpec spec, const Case& test) {
    test.spoil(spec);
    try {
        spec.validate("bad.gguf");
        ADD_FAILURE() << test.field << " was accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.info().field, test.field) << error.what();
        EXPECT_EQ(error.info().file, "bad.gguf");
        EXPECT_EQ(error.kind(), ErrorKind::input);
    }
}

TEST(Spec, RejectsContradictions) {
    using Scaling = RopeSpec::Scaling;
    const std::vector<Case> cases = {
        {"vocabulary", [](ModelSpec& s) { s.vocab = 0; }},
        {"width", [](ModelSpec& s) { s.dim = -64; }},
        {"layers", [](ModelSpec& s) { s.layers = 0; }},
        {"layers", [](ModelSpec& s) { s.layers = 1 << 20; }},
        {"heads", [](ModelSpec& s) { s.heads = 0; }},
        {"kv heads", [](ModelSpec& s) { s.kv_heads = 3; }},
        {"kv heads", [](ModelSpec& s) { s.kv_heads = 0; }},
        {"kv heads", [](ModelSpec& s) { s.kv_heads = 8; }},
        {"head size", [](ModelSpec& s) { s.head_dim = 0; }},
        {"hidden size", [](ModelSpec& s) { s.hidden = 0; }},
        {"context", [](ModelSpec& s) { s.context = 0; }},
        {"norm epsilon", [](ModelSpec& s) { s.norm_eps = -1e-5f; }},
        {"norm epsilon", [](ModelSpec& s) { s.norm_eps = std::nanf(""); }},
        {"sliding window", [](ModelSpec& s) { s.mask.window = -1; }},
        {"attention sinks", [](ModelSpec& s) { s.mask.sinks = 4; }},  // without a window
        {"attention sinks",
         [](ModelSpec& s) {
             s.mask.window = 8;
             s.mask.sinks = -1;
         }},
        {"mlp bias", [](ModelSpec& s) { s.mlp_bias = true; }},
        {"rotary dimensions", [](ModelSpec& s) { s.rope.rotary = 15; }},
        {"rotary dimensions", [](ModelSpec& s) { s.rope.rotary = 18; }},
        {"rotary dimensions", [](ModelSpec& s) { s.rope.rotary = -2; }},
        {"rope theta", [](ModelSpec& s) { s.rope.theta = 0; }},
        {"rope theta", [](ModelSpec& s) { s.rope.theta = INFINITY; }},
        {"rope factor",
         [](ModelSpec& s) {
             s.rope.scaling = Scaling::linear;
             s.rope.factor = 0;
         }},
        {"rope original context", [](ModelSpec& s) { s.rope.scaling = Scaling::yarn; }},
        {"rope high_freq_factor",
         [](ModelSpec& s) {
             s.rope.scaling = Scaling::llama3;
             s.rope.original_context = 64;
             s.rope.high_freq_factor = 1;
         }},
        {"rope beta_slow",
         [](ModelSpec& s) {
             s.rope.scaling = Scaling::yarn;
             s.rope.original_context = 64;
             s.rope.beta_slow = -1;
         }},
        {"rope frequency factors", [](ModelSpec& s) { s.rope.freq_factors = {1.0f}; }},
        {"rope frequency factor", [](ModelSpec& s) { s.rope.freq_factors.assign(8, 0.0f); }},
    };
    for (const Case& test : cases) expect_refused(good_spec(), test);
}

// Diffusion models: blocks of 8, and full attention.
ModelSpec block_spec() {
    ModelSpec spec = good_spec();
    spec.mask.kind = ops::AttentionMask::Kind::block_causal;
    spec.mask.block = 8;
    spec.diffusion = DiffusionSpec{.mask = spec.vocab - 1, .block = 8};
    return spec;
}
ModelSpec full_spec() {
    ModelSpec spec = good_spec();
    spec.mask.kind = ops::AttentionMask::Kind::full;
    spec.diffusion = DiffusionSpec{.mask = 0, .shifted = true};
    return spec;
}

TEST(Spec, AcceptsModelsThatFillInTokens) {
    EXPECT_NO_THROW(block_spec().validate("good.gguf"));
    EXPECT_NO_THROW(full_spec().validate("good.gguf"));
    ModelSpec spec = block_spec();
    for (const int part : {1, 2, 4, 8}) {
        spec.diffusion->sub_block = part;
        EXPECT_NO_THROW(spec.validate("good.gguf")) << part;
    }
    // One block as long as the context.
    spec.diffusion->block = spec.mask.block = spec.context;
    EXPECT_NO_THROW(spec.validate("good.gguf"));
}

TEST(Spec, RejectsContradictionsOfModelsThatFillInTokens) {
    using Kind = ops::AttentionMask::Kind;
    const std::vector<Case> blocks = {
        {"mask token", [](ModelSpec& s) { s.diffusion->mask = -1; }},
        {"mask token", [](ModelSpec& s) { s.diffusion->mask = s.vocab; }},
        {"block", [](ModelSpec& s) { s.diffusion->block = -8; }},
        {"block", [](ModelSpec& s) { s.diffusion->block = s.mask.block = s.context + 1; }},
        {"sub-block", [](ModelSpec& s) { s.diffusion->sub_block = 3; }},
        {"sub-block", [](ModelSpec& s) { s.diffusion->sub_block = 16; }},
        {"sub-block", [](ModelSpec& s) { s.diffusion->sub_block = -4; }},
        // The layers contradict it.
        {"attention", [](ModelSpec& s) { s.mask.block = 4; }},
        {"attention", [](ModelSpec& s) { s.mask.kind = Kind::causal; }},
        {"attention", [](ModelSpec& s) { s.mask.kind = Kind::full; }},
        {"attention", [](ModelSpec& s) { s.diffusion->block = 0; }},
        {"attention", [](ModelSpec& s) { s.mask.origin = 3; }},
        {"attention", [](ModelSpec& s) { s.mask.window = 16; }},
        {"attention",
         [](ModelSpec& s) {
             s.own.assign(static_cast<std::size_t>(s.layers), s);
             s.own.back().mask.kind = Kind::causal;
         }},
        {"positions", [](ModelSpec& s) { s.learned_positions = true; }},
        // Later tokens are visible, but it is not a diffusion model.
        {"attention", [](ModelSpec& s) { s.diffusion.reset(); }},
    };
    for (const Case& test : blocks) expect_refused(block_spec(), test);
    const std::vector<Case> full = {
        {"sub-block", [](ModelSpec& s) { s.diffusion->sub_block = 4; }},
        {"attention", [](ModelSpec& s) { s.mask.kind = Kind::block_causal; }},
        {"attention", [](ModelSpec& s) { s.diffusion.reset(); }},
    };
    for (const Case& test : full) expect_refused(full_spec(), test);
}

}  // namespace
}  // namespace mr::model
