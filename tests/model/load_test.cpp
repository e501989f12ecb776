#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "formats/gguf.h"
#include "model/io/convert.h"
#include "model/model.h"
#include "model/model_files.h"
#include "model_input.h"
#include "ops/quant/quant.h"

namespace mr::model {
namespace {

using Scaling = RopeSpec::Scaling;

TEST(LoadLlama2c, Stories) {
    const std::string path = data_folder() + "/models/stories260K.bin";
    if (!fs::exists(path)) GTEST_SKIP() << "no " << path;
    const Model model = load_model(path);
    EXPECT_EQ(model.format, "llama2.c v0");
    EXPECT_EQ(model.spec.dim, 64);
    EXPECT_EQ(model.spec.hidden, 172);
    EXPECT_EQ(model.spec.layers, 5);
    EXPECT_EQ(model.spec.heads, 8);
    EXPECT_EQ(model.spec.kv_heads, 4);
    EXPECT_EQ(model.spec.vocab, 512);
    EXPECT_EQ(model.spec.rope.style, ops::RopeStyle::interleaved);
    EXPECT_TRUE(model.spec.tied_embeddings);
    ASSERT_TRUE(model.tokenizer);
    EXPECT_EQ(model.tokenizer->vocab_size(), 512);
    expect_shapes_match(model);

    TempFolder alone;
    fs::copy(path, alone / "stories260K.bin");
    EXPECT_NE(error_of([&] { load_model(alone / "stories260K.bin"); }).find("--tokenizer"),
              std::string::npos);
    LoadOptions options;
    options.tokenizer = data_folder() + "/models/tok512.bin";
    EXPECT_NO_THROW(load_model(alone / "stories260K.bin", options));
}

TEST(LoadGguf, ReadsTheSpecAndUsesTheMap) {
    TempFolder folder;
    TinyGguf file;
    file.keys["llama.rope.freq_base"] = TinyGguf::f32(500000.0f);
    file.keys["llama.rope.scaling.type"] = TinyGguf::text("linear");
    file.keys["llama.rope.scaling.factor"] = TinyGguf::f32(2.0f);
    file.write(folder / "a.gguf");
    const Model model = load_model(folder / "a.gguf");
    EXPECT_EQ(model.format, "GGUF v3");
    EXPECT_EQ(model.spec.family, "llama");
    EXPECT_EQ(model.spec.vocab, 40);
    EXPECT_EQ(model.spec.head_dim, 64);
    EXPECT_EQ(model.spec.rope.rotary, 64);
    EXPECT_EQ(model.spec.rope.style, ops::RopeStyle::interleaved);
    EXPECT_EQ(model.spec.rope.theta, 500000);
    EXPECT_EQ(model.spec.rope.scaling, Scaling::linear);
    EXPECT_EQ(model.spec.rope.factor, 2);
    EXPECT_TRUE(model.spec.tied_embeddings);
    EXPECT_FALSE(model.tokenizer);
    EXPECT_EQ(model.weights.owned_bytes, 3u * 256 * 4);
    expect_shapes_match(model);
}

TEST(LoadGguf, YarnAndFrequencyFactors) {
    TempFolder folder;
    TinyGguf file;
    file.keys["llama.rope.scaling.type"] = TinyGguf::text("yarn");
    file.keys["llama.rope.scaling.factor"] = TinyGguf::f32(4.0f);
    file.keys["llama.rope.scaling.original_context_length"] = TinyGguf::u32(32);
    file.tensors["rope_freqs.weight"] = {DType::f32, {32}};
    file.write(folder / "a.gguf");
    // The factors count from -6 up, and a frequency's divisor must be positive.
    EXPECT_NE(error_of([&] { load_model(folder / "a.gguf"); }).find("frequency factor"),
              std::string::npos);
    file.tensors.erase("rope_freqs.weight");
    file.write(folder / "b.gguf");
    const RopeSpec rope = load_model(folder / "b.gguf").spec.rope;
    EXPECT_EQ(rope.scaling, Scaling::yarn);
    EXPECT_EQ(rope.original_context, 32);
    EXPECT_DOUBLE_EQ(rope_frequencies(rope).magnitude, 0.1 * std::log(4.0) + 1);
    file.keys["llama.rope.scaling.attn_factor"] = TinyGguf::f32(0.5f);
    file.write(folder / "c.gguf");
    EXPECT_DOUBLE_EQ(rope_frequencies(load_model(folder / "c.gguf").spec.rope).magnitude,
                     0.5 * (0.1 * std::log(4.0) + 1));
}

TEST(LoadGguf, OtherQuantsAreExpandedToQ8) {
    for (DType type :
         {DType::q4_1, DType::q5_0, DType::q5_1, DType::q4_k, DType::q5_k, DType::q6_k}) {
        SCOPED_TRACE(dtype_name(type));
        TempFolder folder;
        TinyGguf file;
        file.tensors["token_embd.weight"].first = type;
        file.tensors["blk.0.attn_q.weight"].first = type;
        file.tensors["blk.0.ffn_down.weight"].first = type;
        file.write(folder / "a.gguf");
        const Model model = load_model(folder / "a.gguf");
        const Tensor q = model.weights.layers[0].q;
        EXPECT_EQ(q.dtype, DType::q8_0);
        EXPECT_EQ(model.weights.embedding.dtype, DType::q8_0);
        EXPECT_EQ(model.weights.layers[0].k.dtype, DType::f32);
        expect_shapes_match(model);
        // Equal bit for bit to dequantizing and quantizing each row.
        const auto gguf = formats::GgufFile::open(folder / "a.gguf");
        const Tensor raw = gguf.find_tensor("blk.0.attn_q.weight")->view;
        std::vector<float> row(256);
        std::vector<std::uint8_t> expected(dtype_bytes(DType::q8_0, 256));
        for (std::int64_t r = 0; r < 256; ++r) {
            ops::dequantize(type, raw.row<std::byte>(r), row.data(), 256);
            ops::quantize(DType::q8_0, row.data(), expected.data(), 256);
            ASSERT_EQ(std::memcmp(q.row<std::byte>(r), expected.data(), expected.size()), 0);
        }
    }
}

TEST(LoadGguf, QuantisedMatricesAreUsedFromTheMap) {
    for (DType type : {DType::f16, DType::bf16, DType::q8_0, DType::q4_0}) {
        TempFolder folder;
        TinyGguf file;
        for (auto& [name, tensor] : file.tensors) {
            if (tensor.second.rank == 2) tensor.first = type;
        }
        file.write(folder / "a.gguf");
        const Model model = load_model(folder / "a.gguf");
        EXPECT_EQ(model.weights.layers[0].down.dtype, type);
        EXPECT_EQ(model.weights.owned_bytes, 3u * 256 * 4);  // the norms
    }
}

TEST(LoadGguf, BadFilesAreNamed) {
    struct Case {
        std::function<void(TinyGguf&)> spoil;
        std::vector<const char*> says;
    };
    const std::vector<Case> cases = {
        {[](TinyGguf& f) { f.keys["general.architecture"] = TinyGguf::text("mamba"); },
         {"general.architecture", "mamba", "gptneox"}},
        {[](TinyGguf& f) { f.keys.erase("general.architecture"); }, {"general.architecture"}},
        {[](TinyGguf& f) { f.keys.erase("llama.block_count"); }, {"llama.block_count", "missing"}},
        {[](TinyGguf& f) { f.keys["llama.block_count"] = TinyGguf::text("one"); },
         {"llama.block_count"}},
        {[](TinyGguf& f) { f.keys["llama.block_count"] = TinyGguf::u32(4000000000u); },
         {"llama.block_count", "4000000000"}},
        {[](TinyGguf& f) { f.keys["llama.block_count"] = TinyGguf::u32(2); }, {"blk.1."}},
        {[](TinyGguf& f) { f.keys["llama.attention.head_count"] = TinyGguf::u32(0); },
         {"llama.attention.head_count", "0"}},
        {[](TinyGguf& f) { f.keys["llama.attention.head_count_kv"] = TinyGguf::u32(3); },
         {"kv heads", "3"}},
        {[](TinyGguf& f) { f.keys["llama.attention.value_length"] = TinyGguf::u32(32); },
         {"llama.attention.value_length", "32"}},
        {[](TinyGguf& f) { f.keys["llama.expert_count"] = TinyGguf::u32(8); },
         {"llama.expert_count", "8"}},
        {[](TinyGguf& f) { f.keys["split.count"] = TinyGguf::u32(3); }, {"split.count", "3"}},
        {[](TinyGguf& f) { f.keys["llama.rope.scaling.type"] = TinyGguf::text("longrope"); },
         {"llama.rope.scaling.type", "longrope"}},
        {[](TinyGguf& f) { f.keys["llama.feed_forward_length"] = TinyGguf::u32(128); },
         {"blk.0.ffn_gate.weight", "[256, 256]", "[128, 256]"}},
        {[](TinyGguf& f) { f.tensors.erase("blk.0.attn_v.weight"); },
         {"blk.0.attn_v.weight", "no such"}},
        {[](TinyGguf& f) { f.tensors.erase("token_embd.weight"); }, {"token_embd.weight"}},
        {[](TinyGguf& f) { f.tensors["token_embd.weight"].second = {40}; }, {"token_embd.weight"}},
        {[](TinyGguf& f) {
             f.tensors["blk.0.ffn_gate.bias"] = {DType::f32, {256}};
         },
         {"blk.0.ffn_gate.bias", "no such tensor"}},
        {[](TinyGguf& f) {
             f.tensors["blk.0.ffn_up.bias"] = {DType::f32, {256}};
         },
         {"mlp bias"}},
        {[](TinyGguf& f) { f.tensors["blk.0.attn_norm.weight"].first = DType::q8_0; },
         {"blk.0.attn_norm.weight", "q8_0"}},
        {[](TinyGguf& f) {
             f.tensors["rope_freqs.weight"] = {DType::f32, {7}};
         },
         {"rope_freqs.weight", "[7]", "[32]"}},
    };
    for (const Case& test : cases) {
        TempFolder folder;
        TinyGguf file;
        test.spoil(file);
        file.write(folder / "bad.gguf");
        const std::string said = error_of([&] { load_model(folder / "bad.gguf"); });
        EXPECT_NE(said.find("bad.gguf"), std::string::npos) << said;
        for (const char* part : test.says) {
            EXPECT_NE(said.find(part), std::string::npos)
                << "\"" << part << "\" is not in: " << said;
        }
    }
}

// The corpus of src/model/io/model_fuzz.cpp: one of which nothing is loaded would only fuzz the
// first check.
TEST(Load, FuzzCorpusIsWhatItsNamesSay) {
    test::ModelInput input;
    int good = 0, bad = 0;
    for (const auto& entry : fs::directory_iterator(MR_SOURCE_DIR "/tests/fuzz/corpus/model")) {
        const std::string name = entry.path().filename().string();
        SCOPED_TRACE(name);
        const std::string path = input.write(test::read_all(entry.path().string()));
        try {
            expect_shapes_match(load_model(path));
            EXPECT_TRUE(name.starts_with("good_"));
            ++good;
        } catch (const Error& error) {
            EXPECT_TRUE(name.starts_with("bad_")) << error.what();
            EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
            ++bad;
        }
    }
    EXPECT_GE(good, 14);
    EXPECT_GE(bad, 30);
}

TEST(Load, GgufSaysWhichLayersSlide) {
    TempFolder folder;
    const auto window = [&](const std::function<void(TinyGguf&)>& change) {
        TinyGguf file;
        file.keys["llama.attention.sliding_window"] = TinyGguf::u32(16);
        change(file);
        file.write(folder / "a.gguf");
        return load_model(folder / "a.gguf").spec.layer(0).mask.window;
    };
    const std::string key = "llama.attention.sliding_window_pattern";
    const auto flags = [](const std::vector<bool>& values) {
        return [values](formats::GgufWriter& w, const std::string& k) { w.set_bools(k, values); };
    };
    EXPECT_EQ(window([](TinyGguf&) {}), 16);  // no pattern: all do
    EXPECT_EQ(window([&](TinyGguf& f) { f.keys[key] = flags({true}); }), 16);
    EXPECT_EQ(window([&](TinyGguf& f) { f.keys[key] = flags({false}); }), 0);
    // A period: its last layer has no window; 0: all have one.
    EXPECT_EQ(window([&](TinyGguf& f) { f.keys[key] = TinyGguf::u32(0); }), 16);
    EXPECT_EQ(window([&](TinyGguf& f) { f.keys[key] = TinyGguf::u32(1); }), 0);
    EXPECT_EQ(window([&](TinyGguf& f) { f.keys[key] = TinyGguf::u32(2); }), 16);
    const std::string said = error_of([&] {
        window([&](TinyGguf& f) { f.keys[key] = flags({true, false}); });
    });
    EXPECT_NE(said.find("sliding_window_pattern"), std::string::npos) << said;
    EXPECT_NE(said.find("each of the 1 layers"), std::string::npos) << said;
    // A converted file with four layers.
    convert_model(reference("qwen2-window"), folder / "b.gguf");
    const auto gguf = formats::GgufFile::open(folder / "b.gguf");
    EXPECT_EQ(gguf.get_uint("qwen2.attention.sliding_window"), 12u);
    EXPECT_EQ(gguf.get_ints("qwen2.attention.sliding_window_pattern"),
              (std::vector<std::int64_t>{0, 1, 0, 1}));
    EXPECT_EQ(load_model(folder / "b.gguf").spec.layer(2).mask.window, 0);
    EXPECT_EQ(load_model(folder / "b.gguf").spec.layer(3).mask.window, 12);
}

// The bytes planned before a weight is read equal those allocated.
TEST(Load, PlanComesBeforeTheWeights) {
    TempFolder folder;
    TinyGguf gguf;
    gguf.tensors["blk.0.ffn_up.weight"].first = DType::q6_k;  // expanded
    gguf.write(folder / "a.gguf");
    std::vector<std::string> sources = {reference("llama2"), reference("gpt2"),
                                        reference("gpt-neox"), folder / "a.gguf",
                                        "random:stories-42m:q8_0"};
    const std::string stories = data_folder() + "/models/stories260K.bin";
    if (fs::exists(stories)) sources.push_back(stories);
    for (const std::string& source : sources) {
        SCOPED_TRACE(source);
        Weights planned;
        LoadOptions options;
        options.planned = [&](const Model& model) {
            planned = model.weights;
            EXPECT_GT(model.spec.layers, 0);
            EXPECT_FALSE(model.weights.final_norm);  // a copy
        };
        const Model model = load_model(source, options);
        EXPECT_GT(planned.owned_bytes, 0u);
        EXPECT_EQ(planned.owned_bytes, model.weights.owned_bytes);
        EXPECT_EQ(planned.mapped_bytes, model.weights.mapped_bytes);
        options.planned = [](const Model&) { throw Error::usage({.problem = "stop here"}); };
        EXPECT_NE(error_of([&] { load_model(source, options); }).find("stop here"),
                  std::string::npos);
    }
}
}  // namespace
}  // namespace mr::model
