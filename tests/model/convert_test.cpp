#include "model/io/convert.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "families.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "model/io/convert_formats.h"
#include "model/io/random.h"
#include "model/model.h"
#include "model/model_files.h"
#include "model/names.h"
#include "ops/quant/quant.h"
#include "text/tokenizer_json_writer.h"
#include "without_sums.h"

namespace mr::model {
namespace {

ConvertOptions to_type(DType type) {
    ConvertOptions options;
    options.type = type;
    return options;
}

std::vector<float> values(const Tensor& tensor) {
    std::vector<float> out(static_cast<std::size_t>(tensor.shape.count()));
    ops::dequantize(tensor.dtype, tensor.data, out.data(), tensor.shape.count());
    return out;
}

// The same bits in every role after expanding both to f32. A quantised zero loses its sign:
// `by_value` allows that.
void expect_same_weights(const Model& model, const Model& expected, bool by_value = false) {
    for (RoleAt at : roles_of(expected.spec)) {
        const std::vector<float> a = values(role_slot(model.weights, at));
        const std::vector<float> b = values(role_slot(expected.weights, at));
        ASSERT_EQ(a.size(), b.size());
        const bool same =
            by_value ? a == b : std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
        EXPECT_TRUE(same) << tensor_names(Dialect::gguf, at).front();
    }
}

void expect_same_spec(const ModelSpec& a, const ModelSpec& b) {
    EXPECT_EQ(a.family, b.family);
    EXPECT_EQ(a.vocab, b.vocab);
    EXPECT_EQ(a.dim, b.dim);
    EXPECT_EQ(a.layers, b.layers);
    EXPECT_EQ(a.heads, b.heads);
    EXPECT_EQ(a.kv_heads, b.kv_heads);
    EXPECT_EQ(a.head_dim, b.head_dim);
    EXPECT_EQ(a.hidden, b.hidden);
    EXPECT_EQ(a.context, b.context);
    EXPECT_EQ(a.norm, b.norm);
    EXPECT_EQ(a.norm_eps, b.norm_eps);
    EXPECT_EQ(a.residual, b.residual);
    EXPECT_EQ(a.qk_norm, b.qk_norm);
    EXPECT_EQ(a.activation, b.activation);
    EXPECT_EQ(a.gated, b.gated);
    EXPECT_EQ(a.qkv_bias, b.qkv_bias);
    EXPECT_EQ(a.out_bias, b.out_bias);
    EXPECT_EQ(a.mlp_bias, b.mlp_bias);
    EXPECT_EQ(a.learned_positions, b.learned_positions);
    EXPECT_EQ(a.tied_embeddings, b.tied_embeddings);
    EXPECT_EQ(a.diffusion, b.diffusion);
    ASSERT_EQ(a.own.size(), b.own.size());
    for (int i = 0; i < a.layers; ++i) {
        EXPECT_EQ(a.layer(i).mask, b.layer(i).mask) << "layer " << i;
        EXPECT_EQ(a.layer(i).norm_eps, b.layer(i).norm_eps) << "layer " << i;
        EXPECT_EQ(a.layer(i).rope.style, b.layer(i).rope.style) << "layer " << i;
    }
    EXPECT_EQ(a.rope.rotary, b.rope.rotary);
    EXPECT_EQ(a.rope.style, b.rope.style);
    // The keys of GGUF are f32.
    const RopeFrequencies ours = rope_frequencies(a.rope), theirs = rope_frequencies(b.rope);
    ASSERT_EQ(ours.inv_freq.size(), theirs.inv_freq.size());
    for (std::size_t i = 0; i < ours.inv_freq.size(); ++i) {
        EXPECT_NEAR(ours.inv_freq[i], theirs.inv_freq[i], 1.2e-7 * theirs.inv_freq[i]);
    }
    EXPECT_NEAR(ours.magnitude, theirs.magnitude, 1.2e-7);
}

TEST(Convert, ThereAndBackGivesTheSameBits) {
    for (const std::string name : test::all_families()) {
        SCOPED_TRACE(name);
        TempFolder folder;
        const Model original = load_model(reference(name));
        const ConvertResult there =
            convert_model(reference(name), folder / "a.gguf", to_type(DType::f32));
        EXPECT_EQ(there.files, std::vector<std::string>{folder / "a.gguf"});
        convert_model(folder / "a.gguf", folder / "back", to_type(DType::f32));
        const Model back = load_model(folder / "back");
        EXPECT_EQ(back.format, "safetensors");
        expect_same_spec(back.spec, original.spec);
        expect_same_weights(back, original);
    }
}

TEST(Convert, TheFileIsTheOriginalOne) {
    TempFolder folder;
    convert_model(reference("llama2"), folder / "a.gguf");
    convert_model(folder / "a.gguf", folder / "back");
    const auto before = formats::SafetensorsFile::open(reference("llama2"));
    const auto after = formats::SafetensorsFile::open(folder / "back");
    ASSERT_EQ(after.tensors().size(), before.tensors().size());
    for (const formats::FileTensor& tensor : before.tensors()) {
        const formats::FileTensor* same = after.find_tensor(tensor.name);
        ASSERT_NE(same, nullptr) << tensor.name;
        EXPECT_EQ(same->view.shape, tensor.view.shape);
        ASSERT_EQ(same->view.dtype, tensor.view.dtype);
        EXPECT_EQ(std::memcmp(same->view.data, tensor.view.data, tensor.view.bytes()), 0);
    }
}

TEST(Convert, LlamaRowsAreReorderedForGguf) {
    TempFolder folder;
    convert_model(reference("llama2"), folder / "a.gguf");
    const Model from = load_model(reference("llama2")), to = load_model(folder / "a.gguf");
    EXPECT_EQ(from.spec.rope.style, ops::RopeStyle::half);
    EXPECT_EQ(to.spec.rope.style, ops::RopeStyle::interleaved);
    // Heads of 8 elements: rows 0 and 4 rotate together, and are neighbours in GGUF.
    const int order[] = {0, 4, 1, 5, 2, 6, 3, 7};
    for (int row = 0; row < 32; ++row) {
        const int source = row / 8 * 8 + order[row % 8];
        EXPECT_EQ(std::memcmp(to.weights.layers[1].q.f32(row), from.weights.layers[1].q.f32(source),
                              32 * 4),
                  0);
        if (row >= 16) continue;
        EXPECT_EQ(std::memcmp(to.weights.layers[1].k.f32(row), from.weights.layers[1].k.f32(source),
                              32 * 4),
                  0);
        EXPECT_EQ(
            std::memcmp(to.weights.layers[1].v.f32(row), from.weights.layers[1].v.f32(row), 32 * 4),
            0);
    }
    // Qwen2 rotates halves in both formats.
    convert_model(reference("qwen2"), folder / "q.gguf");
    expect_same_weights(load_model(folder / "q.gguf"), load_model(reference("qwen2")));
}

// The weights of the reference models are exact in all of these types.
TEST(Convert, TypesThatHoldTheReferenceWeightsExactly) {
    for (const std::string name : test::all_families()) {
        for (DType type : {DType::f16, DType::bf16, DType::q8_0}) {
            SCOPED_TRACE(name + " " + dtype_name(type));
            TempFolder folder;
            const ConvertResult result =
                convert_model(reference(name), folder / "a.gguf", to_type(type));
            const Model typed = load_model(folder / "a.gguf");
            EXPECT_EQ(typed.weights.layers[0].up.dtype, type);
            EXPECT_EQ(typed.weights.layers[0].q.dtype, type);
            EXPECT_EQ(typed.weights.layers[0].attn_norm.dtype, DType::f32);
            if (typed.spec.learned_positions) {
                EXPECT_EQ(typed.weights.positions.dtype, type == DType::q8_0 ? DType::f32 : type);
            }
            convert_model(reference(name), folder / "b.gguf", to_type(DType::f32));
            expect_same_weights(typed, load_model(folder / "b.gguf"), is_quantised(type));
            EXPECT_LT(result.bytes, fs::file_size(folder / "a.gguf"));
        }
    }
}

TEST(Convert, Q4FilesKeepTheHeadInEightBits) {
    TempFolder folder;
    convert_model(reference("llama2"), folder / "tied.gguf", to_type(DType::q4_0));
    const Model tied = load_model(folder / "tied.gguf");
    EXPECT_EQ(tied.weights.embedding.dtype, DType::q8_0);
    EXPECT_EQ(tied.weights.layers[0].down.dtype, DType::q4_0);
    convert_model(reference("llama3"), folder / "untied.gguf", to_type(DType::q4_0));
    const Model untied = load_model(folder / "untied.gguf");
    EXPECT_EQ(untied.weights.embedding.dtype, DType::q4_0);
    EXPECT_EQ(untied.weights.head.dtype, DType::q8_0);
    // Each row quantised, then moved to its place among the pairs.
    const Model original = load_model(reference("llama3"));
    std::vector<std::uint8_t> row(dtype_bytes(DType::q4_0, 32));
    ops::quantize(DType::q4_0, original.weights.layers[0].q.f32(8), row.data(), 32);
    EXPECT_EQ(std::memcmp(untied.weights.layers[0].q.row<std::byte>(1), row.data(), row.size()), 0);
}

TEST(Convert, TokenizersComeAlong) {
    const std::vector<std::string> texts = {"", "Once upon a time",
                                            "  two  spaces\n\tand é, 漢字 🙂",
                                            "</s><|endoftext|> x", "don't 12345"};
    for (const char* name : {"llama2", "gpt2"}) {
        SCOPED_TRACE(name);
        TempFolder folder;
        convert_model(reference(name), folder / "a.gguf", to_type(DType::q8_0));
        convert_model(reference(name), folder / "b", to_type(DType::f16));
        const Model original = load_model(reference(name));
        convert_model(folder / "a.gguf", folder / "c");  // made from the vocabulary
        for (const std::string& path : {folder / "a.gguf", folder / "b", folder / "c"}) {
            const Model model = load_model(path);
            ASSERT_TRUE(model.tokenizer) << path;
            EXPECT_EQ(model.tokenizer->bos(), original.tokenizer->bos());
            EXPECT_EQ(model.tokenizer->eos(), original.tokenizer->eos());
            for (const std::string& text : texts) {
                EXPECT_EQ(model.tokenizer->encode(text), original.tokenizer->encode(text))
                    << path << ": " << text;
            }
        }
    }
    // Without a tokenizer the file has none.
    TempFolder folder;
    const ConvertResult result = convert_model(reference("qwen2"), folder / "a.gguf");
    EXPECT_EQ(result.notes.size(), 1u);
    EXPECT_FALSE(load_model(folder / "a.gguf").tokenizer);
    const auto file = formats::GgufFile::open(folder / "a.gguf");
    EXPECT_EQ(file.get_string("tokenizer.ggml.model"), "no_vocab");
}

// Loading does not read it.
TEST(Convert, EmptyFilesBesideATokenizerAreLeftOut) {
    TempFolder folder;
    fs::copy(reference("llama2"), folder / "in");
    std::ofstream(folder / "in/special_tokens_map.json").close();
    convert_model(folder / "in", folder / "out");
    EXPECT_FALSE(fs::exists(folder / "out/special_tokens_map.json"));
    for (const char* name : {"/tokenizer.json", "/tokenizer_config.json"}) {
        EXPECT_EQ(read_text_file(folder / "out" + name), read_text_file(folder / "in" + name));
    }
    // A folder of that name is no companion either.
    fs::remove(folder / "in/special_tokens_map.json");
    fs::create_directory(folder / "in/special_tokens_map.json");
    convert_model(folder / "in", folder / "again");
    EXPECT_FALSE(fs::exists(folder / "again/special_tokens_map.json"));
}

TEST(Convert, AGivenTokenizerIsTheOneThatIsCopied) {
    TempFolder folder;
    fs::copy(reference("llama2"), folder / "in");
    fs::rename(folder / "in/tokenizer.json", folder / "in/mine.json");
    convert_model(folder / "in", folder / "out", {.tokenizer = folder / "in/mine.json"});
    EXPECT_EQ(read_text_file(folder / "out/tokenizer.json"),
              read_text_file(folder / "in/mine.json"));
}

TEST(Convert, TokensAreAsManyAsTheEmbeddingHasRows) {
    TempFolder folder;
    ConvertOptions options = to_type(DType::f32);
    options.tokenizer = reference("llama2/tokenizer.json");
    // llama3 has 48 rows, fewer than the tokenizer: refused.
    EXPECT_NE(error_of([&] {
                  convert_model(reference("llama3"), folder / "x.gguf", options);
              }).find("288"),
              std::string::npos);
    EXPECT_FALSE(fs::exists(folder / "x.gguf"));
    // 32000 rows and 288 tokens: the remaining tokens exist, and have no text.
    convert_model("random:stories-42m:q8_0", folder / "p.gguf",
                  {.type = {}, .tokenizer = options.tokenizer, .progress = {}});
    const auto padded = load_model(folder / "p.gguf").tokenizer;
    EXPECT_EQ(padded->vocab_size(), 32000);
    EXPECT_EQ(padded->encode("Once [PAD300]"),
              load_model(reference("llama2")).tokenizer->encode("Once [PAD300]"));
    // 32000 rows and a byte tokenizer of the same size: one token per byte.
    convert_model("random:stories-42m:q8_0", folder / "r.gguf");
    const auto file = formats::GgufFile::open(folder / "r.gguf");
    EXPECT_EQ(file.get_strings("tokenizer.ggml.tokens")->size(), 32000u);
    EXPECT_EQ(load_model(folder / "r.gguf").tokenizer->decode(std::vector<std::int32_t>{72, 105}),
              "Hi");
}

TEST(Convert, StoriesFromLlama2c) {
    const std::string path = data_folder() + "/models/stories260K.bin";
    if (!fs::exists(path)) GTEST_SKIP() << "no " << path;
    TempFolder folder;
    const Model original = load_model(path);
    convert_model(path, folder / "a.gguf");
    const Model gguf = load_model(folder / "a.gguf");
    expect_same_spec(gguf.spec, original.spec);
    expect_same_weights(gguf, original);
    EXPECT_EQ(gguf.tokenizer->encode("Once upon a time, Lily"),
              original.tokenizer->encode("Once upon a time, Lily"));

    // Rows of 172 are not whole blocks: those matrices fall back, and a note says so.
    const ConvertResult result = convert_model(path, folder / "q.gguf", to_type(DType::q8_0));
    ASSERT_EQ(result.notes.size(), 1u);
    EXPECT_NE(result.notes[0].find("5 matrices"), std::string::npos) << result.notes[0];
    const Model quantised = load_model(folder / "q.gguf");
    EXPECT_EQ(quantised.weights.layers[0].down.dtype, DType::f16);
    EXPECT_EQ(quantised.weights.layers[0].up.dtype, DType::q8_0);

    // Through Hugging Face's order of pairs, and back.
    convert_model(path, folder / "hf");
    convert_model(folder / "hf", folder / "b.gguf");
    const Model back = load_model(folder / "b.gguf");
    expect_same_weights(back, original);
    EXPECT_EQ(back.tokenizer->encode("Once upon a time, Lily"),
              original.tokenizer->encode("Once upon a time, Lily"));
}

TEST(Convert, OtherQuantsStayOrAreExpanded) {
    TempFolder folder;
    TinyGguf file;
    file.tensors["blk.0.attn_q.weight"].first = DType::q6_k;
    file.tensors["blk.0.ffn_down.weight"].first = DType::q4_k;
    file.write(folder / "a.gguf");
    convert_model(folder / "a.gguf", folder / "same.gguf");
    const auto before = formats::GgufFile::open(folder / "a.gguf");
    const auto after = formats::GgufFile::open(folder / "same.gguf");
    for (const formats::FileTensor& tensor : before.tensors()) {
        const Tensor same = after.find_tensor(tensor.name)->view;
        ASSERT_EQ(same.dtype, tensor.view.dtype) << tensor.name;
        EXPECT_EQ(std::memcmp(same.data, tensor.view.data, same.bytes()), 0) << tensor.name;
    }
    convert_model(folder / "a.gguf", folder / "wide.gguf", to_type(DType::f32));
    const auto wide = formats::GgufFile::open(folder / "wide.gguf");
    const Tensor q = wide.find_tensor("blk.0.attn_q.weight")->view;
    EXPECT_EQ(q.dtype, DType::f32);
    EXPECT_EQ(values(q), values(before.find_tensor("blk.0.attn_q.weight")->view));
    // safetensors has no quantised types.
    convert_model(folder / "a.gguf", folder / "hf");
    const auto hf = formats::SafetensorsFile::open(folder / "hf");
    EXPECT_EQ(hf.find_tensor("model.layers.0.self_attn.q_proj.weight")->view.dtype, DType::f16);
    EXPECT_EQ(hf.find_tensor("model.layers.0.self_attn.k_proj.weight")->view.dtype, DType::f32);
}

TEST(Convert, RandomWeightsCanBeWritten) {
    TempFolder folder;
    convert_model("random:stories-42m:q4_0", folder / "a.gguf");
    const Model model = load_model(folder / "a.gguf");
    EXPECT_EQ(model.weights.layers[3].gate.dtype, DType::q4_0);
    const Model again = load_model("random:stories-42m:q4_0");
    EXPECT_EQ(std::memcmp(model.weights.layers[3].gate.data, again.weights.layers[3].gate.data,
                          again.weights.layers[3].gate.bytes()),
              0);
}

TEST(Convert, OneSafetensorsFile) {
    TempFolder folder;
    const ConvertResult result =
        convert_model(reference("qwen2"), folder / "mine.safetensors", to_type(DType::bf16));
    EXPECT_EQ(result.files[0], folder / "mine.safetensors");
    EXPECT_TRUE(fs::exists(folder / "config.json"));
    expect_same_weights(load_model(folder / "mine.safetensors"), load_model(reference("qwen2")));
}

// Overwrites the first number of a tensor in an f32 folder.
void plant(const std::string& folder, const std::string& tensor, float value) {
    const std::string path = folder + "/model.safetensors";
    std::ptrdiff_t at = 0;
    {
        const auto file = formats::SafetensorsFile::open(path);
        at = static_cast<const std::byte*>(file.find_tensor(tensor)->view.data) -
             file.maps().front().bytes().data();
    }
    std::fstream out(path, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(at);
    out.write(reinterpret_cast<const char*>(&value), sizeof value);
    ASSERT_TRUE(out.good());
}

// A number that the type cannot hold would silently become infinite.
TEST(Convert, NumbersThatDoNotFitAreNamedOrKept) {
    struct Case {
        const char *model, *tensor, *name;  // name: in GGUF
    };
    for (const Case& c :
         {Case{"llama2", "model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight"},
          Case{"gpt2", "transformer.h.0.mlp.c_fc.weight", "blk.0.ffn_up.weight"}}) {
        SCOPED_TRACE(c.model);
        TempFolder folder;
        convert_model(reference(c.model), folder / "a", to_type(DType::f32));
        test::remove_sums(folder / "a/model.safetensors");
        plant(folder / "a", c.tensor, -1e6f);
        for (const DType type : {DType::f16, DType::q4_0}) {
            const std::string to = folder / (std::string(dtype_name(type)) + ".gguf");
            ConvertOptions options = to_type(type);
            const std::string said = error_of([&] { convert_model(folder / "a", to, options); });
            EXPECT_NE(said.find(c.name), std::string::npos) << said;
            EXPECT_NE(said.find("1e+06"), std::string::npos) << said;
            EXPECT_NE(said.find("--keep-outliers"), std::string::npos) << said;
            EXPECT_FALSE(fs::exists(to));
            options.keep_outliers = true;
            const ConvertResult result = convert_model(folder / "a", to, options);
            ASSERT_EQ(result.notes.size(), 1u);
            EXPECT_NE(result.notes[0].find(c.name), std::string::npos) << result.notes[0];
            const auto file = formats::GgufFile::open(to);
            const Tensor kept = file.find_tensor(c.name)->view;
            EXPECT_EQ(kept.dtype, DType::f32);
            EXPECT_EQ(values(kept)[0], -1e6f);
            std::uint64_t bytes = 0;
            for (const auto& tensor : file.tensors()) bytes += tensor.view.bytes();
            EXPECT_EQ(result.bytes, bytes);
            EXPECT_EQ(file.find_tensor("blk.1.ffn_down.weight")->view.dtype, type);
            load_model(to);
        }
        // These types hold them.
        for (const DType type : {DType::bf16, DType::q8_0}) {
            convert_model(folder / "a", folder / "c.gguf", to_type(type));
        }
        EXPECT_NE(error_of([&] {
                      convert_model(folder / "a", folder / "d", to_type(DType::f16));
                  }).find(c.tensor),
                  std::string::npos);
        // A value that is not finite is not an outlier.
        plant(folder / "a", c.tensor, -std::numeric_limits<float>::infinity());
        convert_model(folder / "a", folder / "e.gguf", to_type(DType::f16));
    }
}

// llama.cpp interprets the same file differently: a note says so.
TEST(Convert, DifferencesToLlamaCppAreSaid) {
    struct Case {
        const char *model, *says;
    };
    for (const Case& c : {Case{"mistral", "no sliding window for llama"},
                          Case{"qwen2-window", "no sliding window for qwen2"},
                          Case{"llama-yarn", "beta_fast"}, Case{"gpt-neox", "tanh"}}) {
        SCOPED_TRACE(c.model);
        const TempFolder folder;
        const ConvertResult result = convert_model(reference(c.model), folder / "a.gguf");
        bool said = false;
        for (const std::string& note : result.notes) {
            said = said || note.find(c.says) != std::string::npos;
        }
        EXPECT_TRUE(said);
    }
    ModelSpec spec = load_model(reference("qwen3")).spec;
    EXPECT_TRUE(llama_cpp_differences(spec).empty());
    spec.qkv_bias = spec.out_bias = true;
    EXPECT_EQ(llama_cpp_differences(spec).size(), 1u);
    spec = load_model(reference("gpt-neox")).spec;
    spec.qkv_bias = spec.out_bias = false;
    EXPECT_EQ(llama_cpp_differences(spec).size(), 2u);
    spec = load_model(reference("qwen2")).spec;
    EXPECT_TRUE(llama_cpp_differences(spec).empty());
    spec.head_dim *= 2;
    EXPECT_EQ(llama_cpp_differences(spec).size(), 1u);
    for (const char* plain : {"llama2", "llama3", "llama-linear", "gpt2", "qwen2-yarn"}) {
        EXPECT_TRUE(llama_cpp_differences(load_model(reference(plain)).spec).empty()) << plain;
    }
}

// AutoTokenizer uses Qwen's word splitting for every Qwen2 model unless another class is named.
TEST(Convert, QwenModelsWithAnotherTokenizerNameAClassThatReadsIt) {
    text::TokenizerData data = load_model(reference("gpt2")).tokenizer->data();
    const auto config = [&](const char* family) {
        return text::huggingface_tokenizer(data, family).value().config;
    };
    EXPECT_NE(config("qwen2").find("LlamaTokenizerFast"), std::string::npos);
    EXPECT_NE(config("qwen3").find("PreTrainedTokenizerFast"), std::string::npos);
    EXPECT_NE(config("gpt2").find("PreTrainedTokenizerFast"), std::string::npos);
    data.pre = "qwen2";
    data.nfc = true;
    EXPECT_NE(config("qwen2").find("PreTrainedTokenizerFast"), std::string::npos);
}

// Another model's files stay, and the error names the first of them.
TEST(Convert, FilesThatAreThereNeedForce) {
    TempFolder folder;
    convert_model(reference("llama2"), folder / "llama");
    convert_model(reference("qwen2"), folder / "qwen.gguf");
    const auto content = [&](const char* name) { return read_text_file(folder / name, 1u << 24); };
    const std::string config = content("llama/config.json"),
                      weights = content("llama/model.safetensors"),
                      tokenizer = content("llama/tokenizer.json");
    const auto unchanged = [&] {
        return content("llama/config.json") == config &&
               content("llama/tokenizer.json") == tokenizer &&
               content("llama/model.safetensors") == weights;
    };
    const std::string said =
        error_of([&] { convert_model(folder / "qwen.gguf", folder / "llama"); });
    EXPECT_NE(said.find("llama/model.safetensors"), std::string::npos) << said;
    EXPECT_NE(said.find("--force"), std::string::npos) << said;
    EXPECT_TRUE(unchanged());
    fs::remove(folder / "llama/model.safetensors");  // the others are enough
    EXPECT_NE(error_of([&] {
                  convert_model(folder / "qwen.gguf", folder / "llama");
              }).find("llama/config.json"),
              std::string::npos);
    convert_model(reference("llama2"), folder / "llama", {.force = true});
    EXPECT_TRUE(unchanged());

    // A single file: its companions belong to the folder, and stay.
    const ConvertResult one =
        convert_model(folder / "qwen.gguf", folder / "llama/other.safetensors");
    EXPECT_EQ(one.files, std::vector<std::string>{folder / "llama/other.safetensors"});
    ASSERT_FALSE(one.notes.empty());
    EXPECT_NE(one.notes[0].find("llama/config.json"), std::string::npos) << one.notes[0];
    EXPECT_TRUE(unchanged());
    convert_model(folder / "qwen.gguf", folder / "llama/other.safetensors");  // the named file
    convert_model(folder / "qwen.gguf", folder / "llama", {.force = true});
    EXPECT_NE(content("llama/config.json").find("qwen2"), std::string::npos);
}

// Names in a folder, hidden ones too.
std::set<std::string> names_in(const fs::path& folder) {
    std::set<std::string> out;
    for (const auto& entry : fs::directory_iterator(folder)) {
        out.insert(entry.path().filename().string());
    }
    return out;
}

std::string joined(const std::vector<std::string>& notes) {
    std::string out;
    for (const std::string& note : notes) out += note + "\n";
    return out;
}

// Nothing of an older model is left, neither where the folder is exchanged nor where its files are
// replaced one by one (it has a folder in it), and what is no model's stays and is named.
TEST(Convert, AFolderThatIsReplacedHasNothingOfTheOldModel) {
    const std::set<std::string> fresh = [] {
        TempFolder other;
        convert_model(reference("llama2"), other / "m");
        return names_in(other / "m");
    }();
    for (const bool with_folder : {false, true}) {
        SCOPED_TRACE(with_folder);
        TempFolder folder;
        convert_model(reference("qwen2"), folder / "m");
        const std::string old[] = {"generation_config.json",
                                   "chat_template.jinja",
                                   "vocab.json",
                                   "model.safetensors.index.json",
                                   "model-00001-of-00002.safetensors",
                                   "pytorch_model.bin"};
        for (const std::string& name : old) std::ofstream(folder / ("m/" + name)) << "{}";
        const std::string own[] = {"README.md", "notes.txt", "model.py", "adapter.safetensors"};
        for (const std::string& name : own) std::ofstream(folder / ("m/" + name)) << name;
        fs::create_symlink("nowhere", folder / "m/link");
        fs::permissions(folder / "m", fs::perms(0750));
        fs::permissions(folder / "m/model.safetensors", fs::perms(0600));
        if (with_folder) fs::create_directory(folder / "m/.git");
        EXPECT_NE(
            error_of([&] { convert_model(reference("llama2"), folder / "m"); }).find("--force"),
            std::string::npos);
        const ConvertResult result =
            convert_model(reference("llama2"), folder / "m", {.force = true});
        std::set<std::string> expected = fresh;
        expected.insert(std::begin(own), std::end(own));
        expected.insert("link");
        if (with_folder) expected.insert(".git");
        EXPECT_EQ(names_in(folder / "m"), expected);
        for (const std::string& name : own) EXPECT_EQ(read_text_file(folder / ("m/" + name)), name);
        EXPECT_TRUE(fs::is_symlink(folder / "m/link"));
        EXPECT_EQ(fs::status(folder / "m").permissions(), fs::perms(0750));
        EXPECT_EQ(fs::status(folder / "m/model.safetensors").permissions(), fs::perms(0600));
        EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"m"}) << "nothing beside it";
        const std::string notes = joined(result.notes);
        for (const char* part : {"removed with the older model: chat_template.jinja", "vocab.json",
                                 "kept, being no files of a model: README.md", "notes.txt"}) {
            EXPECT_NE(notes.find(part), std::string::npos) << part << "\n" << notes;
        }
        EXPECT_EQ(load_model(folder / "m").spec.family, "llama");
    }
}

// A folder with only a stale part of a model is not taken for an empty one.
TEST(Convert, APartOfAnOldModelNeedsForce) {
    for (const char* name : {"generation_config.json", "chat_template.jinja", "vocab.json"}) {
        TempFolder folder;
        fs::create_directory(folder / "m");
        std::ofstream(folder / ("m/" + std::string(name))) << "{}";
        EXPECT_NE(error_of([&] { convert_model(reference("llama2"), folder / "m"); }).find(name),
                  std::string::npos);
        if (name == std::string("vocab.json")) continue;
        // A single file leaves the folder's other files, and says so.
        const ConvertResult one = convert_model(reference("llama2"), folder / "m/one.safetensors");
        EXPECT_NE(joined(one.notes).find(name), std::string::npos) << joined(one.notes);
        EXPECT_EQ(names_in(folder / "m"), (std::set<std::string>{"one.safetensors", name}));
        convert_model(reference("llama2"), folder / "m/one.safetensors", {.force = true});
        const std::string path = folder / ("m/" + std::string(name));
        EXPECT_TRUE(!fs::exists(path) || read_text_file(path) != "{}") << "it is the old one";
        EXPECT_EQ(load_model(folder / "m/one.safetensors").spec.family, "llama");
    }
}

// A type that changes although none was asked for is said.
TEST(Convert, TypesThatChangeAreSaid) {
    TempFolder folder;
    const auto notes = [&](const std::string& in, const std::string& out,
                           const ConvertOptions& options = {}) {
        return joined(convert_model(in, folder / out, options).notes);
    };
    EXPECT_EQ(notes(reference("llama2"), "q8.gguf", to_type(DType::q8_0)).find("became"),
              std::string::npos);
    const std::string said = notes(folder / "q8.gguf", "hf");
    EXPECT_NE(said.find("of type q8_0 became f16: safetensors holds no quantised weights"),
              std::string::npos)
        << said;
    // Asked for, or unchanged.
    EXPECT_EQ(notes(folder / "q8.gguf", "hf32", to_type(DType::f32)).find("became"),
              std::string::npos);
    EXPECT_EQ(notes(folder / "q8.gguf", "same.gguf").find("became"), std::string::npos);
    EXPECT_EQ(notes(reference("llama2"), "plain").find("became"), std::string::npos);
}

TEST(Convert, ProgressEndsAtTheTotal) {
    TempFolder folder;
    std::uint64_t last = 0, end = 0;
    ConvertOptions options;
    options.progress = [&](std::string_view, std::uint64_t done, std::uint64_t total) {
        EXPECT_GE(done, last);
        last = done;
        end = total;
    };
    const ConvertResult result = convert_model(reference("gpt2"), folder / "a.gguf", options);
    EXPECT_EQ(last, end);
    EXPECT_EQ(result.bytes, end);
}

TEST(Convert, RefusesWhatItMust) {
    TempFolder folder;
    convert_model(reference("qwen2"), folder / "a.gguf");
    const auto before = fs::file_size(folder / "a.gguf");
    const auto says = [&](const std::string& in, const std::string& out,
                          const ConvertOptions& options, const char* part) {
        const std::string said = error_of([&] { convert_model(in, out, options); });
        EXPECT_NE(said.find(part), std::string::npos) << said;
    };
    says(folder / "a.gguf", folder / "a.gguf", to_type(DType::f16), "the model being read");
    fs::create_symlink(folder / "a.gguf", folder / "link.gguf");
    says(folder / "a.gguf", folder / "link.gguf", to_type(DType::f16), "the model being read");
    EXPECT_EQ(fs::file_size(folder / "a.gguf"), before);
    convert_model(folder / "a.gguf", folder / "hf");
    says(folder / "hf", folder / "hf", {}, "the model being read");
    says(folder / "hf", folder / "hf/other.safetensors", {}, "config.json");
    EXPECT_FALSE(fs::exists(folder / "hf/other.safetensors"));
    says(folder / "a.gguf", folder / "b.bin", {}, ".gguf or .safetensors");
    says(folder / "a.gguf", folder / "b", to_type(DType::q8_0), "safetensors supports");
    fs::create_directory(folder / "shards");
    std::ofstream(folder / "shards/model.safetensors.index.json") << "{}";
    says(folder / "a.gguf", folder / "shards", {}, "model.safetensors.index.json");
    says(folder / "a.gguf", folder / "shards/a.safetensors", {.force = true}, "in several shards");
    fs::create_directory(folder / "checkpoint");
    for (const char* name : {"state.json", "optimizer.safetensors"}) {
        std::ofstream(folder / ("checkpoint/" + std::string(name))) << "{}";
    }
    says(folder / "a.gguf", folder / "checkpoint", {.force = true},
         "a checkpoint of a training run");
    std::ofstream(folder / "file") << "mine";
    says(folder / "a.gguf", folder / "file", {.force = true}, "is a file, not a folder");
    EXPECT_EQ(read_text_file(folder / "file"), "mine");
    EXPECT_FALSE(fs::exists(folder / "b"));
    says(folder / "a.gguf", folder / "b.gguf", to_type(DType::q6_k), "q6_k");
    says(folder / "a.gguf", folder / "no/such/folder/b.gguf", {}, "no/such/folder/b.gguf");
    says(folder / "missing.gguf", folder / "b.gguf", {}, "missing.gguf");
    // A folder that cannot be created.
    says(folder / "a.gguf", folder / "a.gguf/b", {}, "a.gguf/b");
    EXPECT_FALSE(fs::exists(folder / "b.gguf"));
}

TEST(Convert, NothingIsLeftBehindOnFailure) {
    TempFolder folder;
    // The folder is made before the weights are written; a throwing progress callback simulates a
    // full disk.
    ConvertOptions options;
    options.progress = [](std::string_view, std::uint64_t done, std::uint64_t total) {
        if (done > total / 2) throw Error::input({.problem = "no space left"});
    };
    for (const char* out : {"out", "out.gguf"}) {
        EXPECT_NE(error_of([&] {
                      convert_model(reference("gpt2"), folder / out, options);
                  }).find("no space left"),
                  std::string::npos);
        EXPECT_TRUE(fs::is_empty(folder.path())) << out;
    }
}

}  // namespace
}  // namespace mr::model
